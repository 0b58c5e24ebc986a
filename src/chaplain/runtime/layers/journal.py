"""Puts a node's journal together from its configuration and what its disk holds, and reads its log for it.

A cluster's founding (members, their disks, first clients) stands in every node's file. A data directory has a disk id,
written when it was made; one that lost its id is given a new one, and has no vote until it has caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from uuid import UUID

from chaplain import durable
from chaplain.config import SEGMENTS, NodeConfig
from chaplain.errors import ConfigError
from chaplain.journal.consensus.hard_state import DISK_BYTES
from chaplain.journal.core import JournalCore
from chaplain.journal.messages.cluster import genesis
from chaplain.journal.messages.signing import Wrapping
from chaplain.journal.model.bootstrap import BootstrapClient, BootstrapMember, ClusterBootstrap
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.settings import ConsensusSettings, JournalSettings, RetentionRules
from chaplain.journal.snapshots.checkpoint import checkpoint_name
from chaplain.journal.storage.last_known_members import LAST_KNOWN_MEMBERS_FILE
from chaplain.journal.storage.log import hard_state_name, sync_hint_name
from chaplain.link.auth.identity import Identity
from chaplain.link.auth.keyring import KeyRing
from chaplain.runtime.disk.log_files import content, segments_of
from chaplain.runtime.secret_files import read_keyring, read_public_key

DISK_FILE = f"{SEGMENTS}/disk"
"""Beside the log, so that whoever empties that folder takes the id along: an empty log under an old id would vote."""
FOUNDING_FILE = f"{SEGMENTS}/founding"
"""What the log beside it was executed with, as a digest."""
WRAPPING_FILE = "wrapping"
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


def make_journal(
    config: NodeConfig, identity: Identity, watch: Callable[[AppliedMessage], None] | None = None
) -> JournalCore:
    data = config.path("data")
    wrapping = read_wrapping(data / WRAPPING_FILE, config.text("cluster"))
    founding = make_founding(config, wrapping)
    check_founding(data, founding)
    settings = make_settings(config, founding)
    order = settings.order
    return JournalCore(
        settings,
        founding,
        SystemRandom(),
        identity=identity,
        identifier=identity.identifier,
        segments=segments_of(data / SEGMENTS, order.log),
        sync_hint=content(data / sync_hint_name(order)),
        hard_state=content(data / hard_state_name(order)),
        ingest=content(data / settings.ingest_file),
        checkpoint=content(data / checkpoint_name(order)),
        last_known_members=content(data / LAST_KNOWN_MEMBERS_FILE),
        wrapping=wrapping,
        observer=watch,
    )


def make_founding(config: NodeConfig, wrapping: Wrapping | None) -> ClusterBootstrap:
    members = tuple(
        BootstrapMember(
            node, read_public_key(key, f"[nodes] {node}"), config.uris[node], bytes.fromhex(config.disks[node])
        )
        for node, key in sorted(config.nodes.items())
    )
    clients = tuple(
        BootstrapClient(name, read_public_key(key, f"[clients] {name}")) for name, key in sorted(config.clients.items())
    )
    wrapping_id = b"" if wrapping is None else wrapping.id
    serializers, copies = index_only_of(config)
    return ClusterBootstrap(
        config.text("cluster"), members, clients, wrapping_id=wrapping_id, serializers=serializers, copies=copies
    )


def check_founding(data: Path, founding: ClusterBootstrap) -> None:
    """Refuse to go on with another founding than the log was begun with: this node would decide otherwise than the
    rest from its first message on, and confirm what nobody else has.
    """
    file, digest = data / FOUNDING_FILE, founding.digest().hex()
    try:
        found = file.read_text().strip()
    except FileNotFoundError:
        durable.write_new(file, digest + "\n")
        return
    if found != digest:
        raise ConfigError(
            "what this cluster was founded with has changed since this node's log was begun: put back cluster, [nodes],"
            f" [uris], [disks], [clients], journal.index_only, journal.copies and the file {data / WRAPPING_FILE} as"
            " they were; clients are let in with `chaplain client add`, nodes with `chaplain member add`"
        )


def index_only_of(config: NodeConfig) -> tuple[tuple[int, ...], int]:
    """Which founding nodes are index-only serializers, and how many others hold a payload before it is ordered."""
    texts, copies = config.texts("journal.index_only"), config.number("journal.copies")
    unknown = [text for text in texts if not text.isdecimal() or int(text) not in config.nodes]
    if unknown:
        raise ConfigError(f"journal.index_only names {unknown[0]!r}, which is no node in [nodes]")
    serializers = tuple(sorted({int(text) for text in texts}))
    check_copies(len(serializers), len(config.nodes), copies)
    return serializers, copies


def check_copies(serializers: int, nodes: int, copies: int) -> None:
    if not serializers and not copies:
        return
    if not serializers:
        raise ConfigError("journal.copies is for index-only serializers alone; name them in journal.index_only")
    if not 1 <= copies <= nodes - serializers:
        held = f"{nodes - serializers} of {nodes} nodes hold data"
        raise ConfigError(f"journal.copies must be at least 1 and no more than hold data, not {copies}: {held}")


def make_settings(config: NodeConfig, founding: ClusterBootstrap) -> JournalSettings:
    node = config.number("id")
    mine = [member.disk for member in founding.members if member.node == node]
    added = _hex(config.text("journal.disk"))
    if not mine and not added:
        raise ConfigError(f"[nodes] does not name node {node}, and journal.disk does not say that it was added later")
    reserved = config.texts("journal.reserved")
    return JournalSettings(
        ConsensusSettings(
            node,
            genesis(founding.cluster),
            disk=disk_id(config.path("data")),
            founding_disk=mine[0] if mine else added,
            boot=boot_id(),
            folder=f"{SEGMENTS}/",
            segment_bytes=config.number("journal.segment_bytes"),
            election_ns=config.span_ns("journal.election_seconds"),
            room_bytes_min=config.number("journal.room_bytes_min"),
        ),
        reserved=reserved,
        prevalidate=bool(reserved) and config.flag("journal.prevalidate") and config.text("database") != "none",
        rules=RetentionRules(config.number("journal.keep_bytes"), config.span_ns("journal.keep_seconds")),
    )


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigError(f"journal.disk must be {DISK_BYTES} octets in hex, as `member add` wrote it") from None


def boot_id() -> bytes:
    """16 octets, as a jot holds them; where the system has none, no two starts count as one boot."""
    return UUID(BOOT_FILE.read_text().strip()).bytes if BOOT_FILE.exists() else SystemRandom().randbytes(16)


def disk_id(data: Path) -> bytes:
    """The directory's own name; a directory without one gets one, and with it a past that nobody knows."""
    file = data / DISK_FILE
    try:
        found = bytes.fromhex(file.read_text().strip())
    except FileNotFoundError:
        found = SystemRandom().randbytes(DISK_BYTES)
        durable.write_new(file, found.hex() + "\n")
    except ValueError:
        raise ConfigError(f"{file} does not hold a disk id; remove it, and the node catches up as a new disk") from None
    if len(found) != DISK_BYTES:
        raise ConfigError(f"{file} must hold {DISK_BYTES} octets in hex; remove it, and the node catches up")
    return found


def read_wrapping(file: Path, cluster: str) -> Wrapping | None:
    """The key that HMAC secrets are wrapped with; it stays when the cluster's key is replaced."""
    if not file.exists():
        return None
    ring: KeyRing = read_keyring(file)
    return Wrapping(ring.used, cluster)
