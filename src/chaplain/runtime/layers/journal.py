"""Builds a node's journal from its configuration and its disk.

Every node's file contains the founding configuration of the cluster: the first members, their disk ids and the first
clients. All nodes must start from the same one (`check_founding`). A data directory has a disk id since its creation. A
directory without the id gets a new one, and the node has no vote until it has caught up.
"""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom
from uuid import UUID

from chaplain import durable
from chaplain.config import SEGMENTS, NodeConfig
from chaplain.errors import ConfigError
from chaplain.executor.core import ExecutorCore
from chaplain.journal.consensus.hard_state import DISK_BYTES
from chaplain.journal.core import JournalCore
from chaplain.journal.messages.cluster import genesis
from chaplain.journal.messages.signing import Wrapping
from chaplain.journal.model.bootstrap import BootstrapClient, BootstrapMember, ClusterBootstrap
from chaplain.journal.settings import ConsensusSettings, JournalSettings, RetentionRules
from chaplain.journal.snapshots.checkpoint import checkpoint_name
from chaplain.journal.storage.last_known_members import LAST_KNOWN_MEMBERS_FILE
from chaplain.journal.storage.log import hard_state_name, sync_hint_name
from chaplain.journal.tree.service import signed_file
from chaplain.link.auth.identity import Identity
from chaplain.link.auth.keyring import KeyRing
from chaplain.runtime.disk.log_files import read_if_exists, segments_of
from chaplain.runtime.secret_files import read_keyring, read_public_key

DISK_FILE = f"{SEGMENTS}/disk"
"""The disk id is stored beside the log, so that deleting the log deletes the id, too: a node with an empty log and its
old id could vote a second time."""
FOUNDING_FILE = f"{SEGMENTS}/founding"
"""Digest of the founding configuration with which the log beside it was executed."""
WRAPPING_FILE = "wrapping"
BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")


def make_journal(config: NodeConfig, identity: Identity, executor: ExecutorCore | None = None) -> JournalCore:
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
        sync_hint=read_if_exists(data / sync_hint_name(order)),
        hard_state=read_if_exists(data / hard_state_name(order)),
        ingest=read_if_exists(data / settings.ingest_file),
        checkpoint=read_if_exists(data / checkpoint_name(order)),
        last_known_members=read_if_exists(data / LAST_KNOWN_MEMBERS_FILE),
        signed=read_if_exists(data / signed_file(settings)),
        wrapping=wrapping,
        replay=None if executor is None else executor.replay,
        needed_by=() if executor is None else (executor.first_needed,),
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
    """Refuse to start if the founding configuration changed since this node's log was begun.

    The node would apply the log differently from all other nodes, from the first message on, and confirm results that
    no other node has.
    """
    file, digest = data / FOUNDING_FILE, founding.digest().hex()
    try:
        found = file.read_text().strip()
    except FileNotFoundError:
        durable.write_new(file, digest + "\n")
        return
    if found != digest:
        raise ConfigError(
            "the founding configuration has changed since this node's log was begun: restore cluster, [nodes], [uris],"
            f" [disks], [clients], journal.index_only, journal.copies and the file {data / WRAPPING_FILE} as they were;"
            " add clients with `chaplain client add`, nodes with `chaplain member add`"
        )


def index_only_of(config: NodeConfig) -> tuple[tuple[int, ...], int]:
    """Return the founding nodes that are index-only serializers, and how many nodes store a payload before ordering."""
    texts, copies = config.texts("journal.index_only"), config.number("journal.copies")
    unknown = [text for text in texts if not text.isdecimal() or int(text) not in config.nodes]
    if unknown:
        raise ConfigError(f"journal.index_only names {unknown[0]!r}, which is not a node in [nodes]")
    serializers = tuple(sorted({int(text) for text in texts}))
    check_copies(len(serializers), len(config.nodes), copies)
    return serializers, copies


def check_copies(serializers: int, nodes: int, copies: int) -> None:
    if not serializers and not copies:
        return
    if not serializers:
        raise ConfigError("journal.copies needs index-only serializers; name them in journal.index_only")
    if not 1 <= copies <= nodes - serializers:
        stores = f"{nodes - serializers} of {nodes} nodes store data"
        raise ConfigError(
            f"journal.copies is {copies}, but must be at least 1 and at most as many as store data: {stores}"
        )


def make_settings(config: NodeConfig, founding: ClusterBootstrap) -> JournalSettings:
    node = config.number("id")
    mine = [member.disk for member in founding.members if member.node == node]
    added = _hex(config.text("journal.disk"))
    if not mine and not added:
        raise ConfigError(f"[nodes] does not name node {node}; a node that was added later needs journal.disk")
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
        witnessed=bool(config.texts("witness.urls")),
    )


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise ConfigError(f"journal.disk must be {DISK_BYTES} octets in hex, as `member add` wrote it") from None


def boot_id() -> bytes:
    """Return the 16 octets that identify this boot of the machine.

    Where the system has no boot id, return random octets: every start of the node then counts as a new boot.
    """
    return UUID(BOOT_FILE.read_text().strip()).bytes if BOOT_FILE.exists() else SystemRandom().randbytes(16)


def disk_id(data: Path) -> bytes:
    """Return the disk id; create it if it is missing. A new id means that the node's history is unknown."""
    file = data / DISK_FILE
    try:
        found = bytes.fromhex(file.read_text().strip())
    except FileNotFoundError:
        found = SystemRandom().randbytes(DISK_BYTES)
        durable.write_new(file, found.hex() + "\n")
    except ValueError:
        raise ConfigError(f"{file} is not a disk id; remove it, and the node catches up as a new disk") from None
    if len(found) != DISK_BYTES:
        raise ConfigError(f"{file} must contain {DISK_BYTES} octets in hex; remove it, and the node catches up")
    return found


def read_wrapping(file: Path, cluster: str) -> Wrapping | None:
    """Return the key that encrypts stored HMAC secrets. Rotating the cluster key does not change it."""
    if not file.exists():
        return None
    ring: KeyRing = read_keyring(file)
    return Wrapping(ring.used, cluster)
