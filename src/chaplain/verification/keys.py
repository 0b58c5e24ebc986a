"""Determines whose key signs on which lane, from the founding clients and the configuration entries in the log.

This module decides with which key a lane's packs must be signed. It does not trust the verdicts of the log: every entry
that adds an identity or leases a lane must itself have the required signature. It does not read packs.

Invariant: it contains a key only if a chain of signatures leads from the key to a founding client.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from chaplain.config import NODE_FILE, load_node
from chaplain.core import Frozen
from chaplain.errors import ConfigError, Inaccessible, Malformed
from chaplain.journal.messages import config as config_message
from chaplain.journal.messages.cluster import Body, ConfigEntry
from chaplain.journal.messages.config import AddIdentity, ConfigRequest, LeaseLane, acl_id
from chaplain.journal.messages.membership import AddNode, NewSet, RemoveNode, is_opening
from chaplain.journal.messages.signing import SignatureType
from chaplain.journal.model.results import ConfigVerdict, ExecutionVerdict
from chaplain.journal.storage.verdict import Reason
from chaplain.link.auth.identity import KEY_BYTES, from_text
from chaplain.verification.access import exists
from chaplain.verification.violations import Break


class FoundingInfo(NamedTuple):
    """The founding configuration that a verification needs. An empty name means that it is unknown."""

    cluster: str = ""
    clients: tuple[bytes, ...] = ()
    """Keys of the founding clients, in the order of their ids."""


def read_founding(file: Path) -> FoundingInfo:
    """Read the founding configuration from a `node.toml`."""
    config = load_node(file, environment={})
    keys = [from_text(key, KEY_BYTES, f"[clients] {name}") for name, key in sorted(config.clients.items())]
    return FoundingInfo(config.text("cluster"), tuple(keys))


def find_founding(segments: Path, founding: str = "") -> FoundingInfo:
    """Read the founding configuration from the given file, or from the `node.toml` beside the segments if it exists."""
    file = Path(founding) if founding else segments.resolve().parent / NODE_FILE
    if file.is_dir():
        file /= NODE_FILE
    if exists(file):
        try:
            return read_founding(file)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError):
                raise Inaccessible(str(error)) from error
            raise
    if founding:
        raise ConfigError(f"{file} does not exist: give the {NODE_FILE} of one of the cluster's nodes")
    return FoundingInfo()


class KnownSigner(Frozen, frozen=True, array_like=True):
    acl: bytes
    key: bytes
    signature_type: int
    admin: bool


class AllowedSigners(Frozen, frozen=True, array_like=True):
    """The clients that may sign, and on which lane, after some message."""

    clients: list[KnownSigner]
    lanes: list[tuple[int, bytes]]


class Registry:
    """Collects signers from the configuration entries of messages, which `take` must receive in order."""

    def __init__(self, founding_info: FoundingInfo, known: AllowedSigners | None = None) -> None:
        self._cluster = founding_info.cluster
        founders = [
            KnownSigner(acl_id(0, 0, number), key, SignatureType.ED25519, admin=True)
            for number, key in enumerate(founding_info.clients, 1)
        ]
        self._clients = {one.acl: one for one in (known.clients if known else founders)}
        self._lanes: dict[int, bytes] = dict(known.lanes) if known else {}
        self.breaks: list[Break] = []

    def signers(self) -> AllowedSigners:
        return AllowedSigners(list(self._clients.values()), list(self._lanes.items()))

    def lanes(self) -> dict[int, tuple[int, bytes]]:
        """Return the signature type and the key of each lane."""
        found = {lane: self._clients[acl] for lane, acl in self._lanes.items()}
        return {lane: (client.signature_type, client.key) for lane, client in found.items()}

    def take(self, body: Body, verdict: ExecutionVerdict) -> None:
        for number, (entry, decided) in enumerate(zip(body.entries, verdict.entries, strict=False)):
            match entry, decided:
                case ConfigEntry(), ConfigVerdict(reason=Reason.APPLIED):
                    self._check_entry(body, number, entry, decided)

    def _check_entry(self, body: Body, number: int, entry: ConfigEntry, decided: ConfigVerdict) -> None:
        if not is_opening(entry.entry_type, entry.stage):
            return  # a later stage of a membership change: only the master orders it, and it has no signature
        try:
            request = config_message.decode(entry.entry_type, entry.stage, entry.data)
        except Malformed as error:
            self.breaks.append(Break("", body.index, "signature", "a configuration entry", str(error)))
            return
        signer = self._clients.get(request.signer)
        if signer is None or not config_message.signature_holds(request, self._cluster, signer.key):
            expected = f"entry {number} signed by {request.signer.hex()}"
            self.breaks.append(Break("", body.index, "signature", expected, request.signature.hex()))
            return
        if not self._apply(body, number, request, signer, decided):
            expected = "entries that are granted to whom they may be"
            self.breaks.append(Break("", body.index, "signature", expected, f"entry {number} of another"))

    def _apply(
        self, body: Body, number: int, request: ConfigRequest, signer: KnownSigner, decided: ConfigVerdict
    ) -> bool:
        message = request.message
        if isinstance(message, AddIdentity):
            key = message.key[:KEY_BYTES]
            known = self._clients.get(decided.acl)
            if known is not None:
                return known.key == key  # a repeated request has the same result
            self._clients[decided.acl] = KnownSigner(decided.acl, key, message.signature_type, message.admin)
            return signer.admin and decided.acl == acl_id(body.regime, body.index, number)
        if isinstance(message, LeaseLane):
            return message.acl == request.signer == self._lanes.setdefault(decided.client_id, message.acl)
        return signer.admin or not isinstance(message, AddNode | RemoveNode | NewSet)
