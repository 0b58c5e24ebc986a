"""Configuration requests (petitions): forwarded to the master until they are decided.

    submitted by a client   ──▶ signature checked (Verify) ──▶ sent to the master, repeatedly ──▶ decided, or given up
    forwarded by a node     ──▶ signature checked (Verify) ──▶ offered to the serializer, if this node is master

Decides where a request goes, and when it is sent again: any node accepts requests, only the master can order them, and
the master may change. A request that is ordered twice is decided twice in the same way, so sending it again is
harmless. Does not decide requests: execution does (`execution.config`). The client that submits a request need not be
its signer: a request is decided once, even if several clients submit it.

Bounds: `petitions_max` requests wait, `petitions_per_client_max` of them for one client, each for at most
`petition_ns`. Beyond that a client is answered with `busy`. The node checks `petitions_max` forwarded requests at a
time, and `petitions_per_client_max` of one node. It drops further ones, and the other node sends them again. If a
session submits one request several times, only its last call is answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from typing import TypeAlias

import msgspec

from chaplain.core import Frozen, soonest
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ConfigOffered, DiskSpace, RoleChanged
from chaplain.journal.events import ToClient, ToPeer, Verified, Verify
from chaplain.journal.execution.config import FOR_ADMINS
from chaplain.journal.execution.local_roles import LocalRoles
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.admission import DISK_FULL, full_reason
from chaplain.journal.ingest.signature_queue import SignatureQueue
from chaplain.journal.messages import config
from chaplain.journal.messages.client import Decided, Failed
from chaplain.journal.messages.membership import OPENING, is_opening
from chaplain.journal.messages.peer import ForwardConfigRequest
from chaplain.journal.messages.signing import ConfigCheck
from chaplain.journal.model.reason import REASONS, kind_of
from chaplain.journal.model.records import IdentityStatus
from chaplain.journal.model.results import AppliedMessage, ConfigVerdict
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.verdict import Reason

NOT_CONFIG = "not_config"
ConfigRequestEffect: TypeAlias = ConfigOffered | ToPeer | ToClient | Verify


class _Waiting(msgspec.Struct):
    """A request that waits for its decision."""

    petition: ForwardConfigRequest
    askers: dict[bytes, int]
    """Sessions that wait for the decision, each with its last call."""
    charged: list[bytes]
    """Clients that have submitted the request. It counts against the bound of each until it ends, even if they
    disconnect.
    """
    until_ns: int
    due_ns: int = 0
    checked: bool = False
    """True once the signature of the request was checked and is valid."""


class _Forwarded(Frozen, frozen=True):
    """A request that another node forwarded."""

    node: int
    petition: ForwardConfigRequest
    digest: bytes


class ConfigRequests:
    """Waiting requests by digest."""

    def __init__(
        self, settings: JournalSettings, execution: JournalExecution, tokens: Iterator[int] | None = None
    ) -> None:
        """`tokens` numbers signature checks."""
        self._settings = settings
        self._execution = execution
        self._master = 0
        self._roles = LocalRoles(settings, execution)
        self._disk_full = False
        """The disk has no room for the decision."""
        self.pending: dict[bytes, _Waiting] = {}
        """Requests of clients that are not decided yet, by digest."""
        self._waiting_per_client: Counter[bytes] = Counter()
        """Number of waiting requests that count against each client."""
        self.signatures: SignatureQueue[bytes | _Forwarded] = SignatureQueue(settings.checks_inline_max, tokens)
        """Requests whose signatures are being checked: digests of clients' requests, and forwarded requests."""
        self._forwarded: dict[bytes, int] = {}
        """Forwarded requests that are being checked: by digest, the node that sent each."""
        self.effects: list[ConfigRequestEffect] = []

    @property
    def master(self) -> int:
        """The current master, as far as this node knows; 0 if there is none."""
        return self._master

    @property
    def waiting(self) -> int:
        """Number of client requests that are not decided yet."""
        return len(self.pending)

    @property
    def due_ns(self) -> int | None:
        return soonest([waiting.due_ns for waiting in self.pending.values()]) if self.pending else None

    def on_disk_space(self, event: DiskSpace) -> None:
        self._disk_full = event.free_bytes < self._settings.order.room_bytes_min

    def submit(self, now_ns: int, asker: tuple[bytes, int], client: bytes, petition: ForwardConfigRequest) -> None:
        """A client submits a request. A request that cannot be granted is refused at once. `client` is the ACL id of
        the client's identity.
        """
        instance, call = asker
        if petition.entry_type in OPENING and not self._roles.takes_config:
            self._fail(asker, NOT_CONFIG, "this node takes no requests about nodes: ask one with the role config")
            return
        check = self._check_of(petition)
        if isinstance(check, Reason):
            self.effects.append(ToClient(instance, self._decided(call, ConfigVerdict(petition.entry_type, check))))
            return
        if self._disk_full:
            self._fail(asker, DISK_FULL, full_reason(self._settings.node))
            return
        digest = sha256(petition.data).digest()
        waiting = self.pending.get(digest)
        if waiting is not None and instance in waiting.askers:
            waiting.askers[instance] = call
            return
        if why := self._why_busy(client):
            self._fail(asker, "busy", why)
            return
        self._waiting_per_client[client] += 1
        if waiting is not None:
            waiting.askers[instance] = call
            waiting.charged.append(client)
            return
        until_ns = now_ns + self._settings.petition_ns
        self.pending[digest] = _Waiting(petition, {instance: call}, [client], until_ns, until_ns)
        for item, (holds,) in self.signatures.add(now_ns, digest, (check,)):
            self._on_checked(now_ns, item, holds)

    def _why_busy(self, client: bytes) -> str:
        if self._waiting_per_client[client] >= self._settings.petitions_per_client_max:
            return "too many configuration requests of this client wait here: wait for some of them"
        if self._waiting_per_client.total() >= self._settings.petitions_max:
            return "too many configuration requests wait: ask again later, or another node"
        return ""

    def _fail(self, asker: tuple[bytes, int], kind: str, why: str) -> None:
        self.effects.append(ToClient(asker[0], Failed(asker[1], kind, why)))

    def _check_of(self, petition: ForwardConfigRequest) -> ConfigCheck | Reason:
        """The signature check of a request; or the reason to refuse it without one."""
        if len(petition.data) > self._settings.petition_bytes_max:
            return Reason.UNKNOWN_TYPE
        try:
            decoded = config.decode(petition.entry_type, petition.stage, petition.data)
        except Malformed:
            return Reason.UNKNOWN_TYPE
        signer = self._execution.state.clients.get(decoded.signer)
        if signer is None or signer.status != IdentityStatus.ACTIVE:
            return Reason.UNKNOWN_SIGNER
        if isinstance(decoded.message, FOR_ADMINS) and not signer.admin:
            return Reason.NOT_ALLOWED  # as execution would say; the order and the log need not carry it
        return config.check_of(decoded, self._execution.cluster, signer.key)

    def on_forwarded(self, now_ns: int, node: int, petition: ForwardConfigRequest) -> None:
        """Another node forwards a request to this node as master. Only opening stages may be requested."""
        if self._master != self._settings.node or not is_opening(petition.entry_type, petition.stage):
            return
        digest = sha256(petition.data).digest()
        of_node = sum(one == node for one in self._forwarded.values())
        crowded = (
            len(self._forwarded) >= self._settings.petitions_max or of_node >= self._settings.petitions_per_client_max
        )
        if crowded or digest in self._forwarded:
            return
        check = self._check_of(petition)
        if isinstance(check, ConfigCheck):
            self._forwarded[digest] = node
            for item, (holds,) in self.signatures.add(now_ns, _Forwarded(node, petition, digest), (check,)):
                self._on_checked(now_ns, item, holds)

    def check_signatures(self) -> None:
        """Have the signatures of all requests checked that were not checked when they arrived."""
        self.effects.append(self.signatures.request_checks())

    def on_verified(self, now_ns: int, event: Verified) -> None:
        for item, (holds,) in self.signatures.on_verified(event):
            self._on_checked(now_ns, item, holds)

    def _on_checked(self, now_ns: int, item: bytes | _Forwarded, holds: bool | None) -> None:
        if isinstance(item, _Forwarded):
            del self._forwarded[item.digest]
            if holds and self._master == self._settings.node:
                self._offer(item.petition)
            return
        waiting = self.pending.get(item)
        if waiting is None:
            return  # given up, or decided because another node forwarded it
        if holds:
            waiting.checked = True
            self._send(now_ns, waiting)
        else:
            refused = ConfigVerdict(waiting.petition.entry_type, Reason.SIGNATURE)
            self._answer(self._end(item), refused)

    def _offer(self, petition: ForwardConfigRequest) -> None:
        self.effects.append(ConfigOffered(petition.entry_type, petition.stage, petition.data))

    def _end(self, digest: bytes) -> _Waiting | None:
        """Remove a request."""
        waiting = self.pending.pop(digest, None)
        if waiting is not None:
            self._waiting_per_client.subtract(waiting.charged)
            self._waiting_per_client += Counter()  # drops clients without waiting requests
        return waiting

    def _answer(self, waiting: _Waiting | None, verdict: ConfigVerdict) -> None:
        for instance, call in waiting.askers.items() if waiting is not None else ():
            self.effects.append(ToClient(instance, self._decided(call, verdict)))

    def role_changed(self, now_ns: int, event: RoleChanged) -> None:
        """Send all waiting requests to a new master, which does not know them."""
        if event.master != self._master:
            self._master = event.master
            for waiting in self.pending.values():
                if waiting.checked:
                    self._send(now_ns, waiting)

    def woken(self, now_ns: int) -> None:
        for digest, waiting in list(self.pending.items()):
            if now_ns >= waiting.until_ns:
                self._give_up(self._end(digest))
            elif now_ns >= waiting.due_ns:
                self._send(now_ns, waiting)

    def _give_up(self, waiting: _Waiting | None) -> None:
        why = "no decision in time: it may still be granted; ask again with the same nonce"
        for asker in waiting.askers.items() if waiting is not None else ():
            self._fail(asker, "unknown", why)

    def _send(self, now_ns: int, waiting: _Waiting) -> None:
        waiting.due_ns = now_ns + self._settings.petition_retry_ns
        if self._master == self._settings.node:
            self._offer(waiting.petition)
        elif self._master:
            self.effects.append(ToPeer(self._master, waiting.petition))

    def on_applied(self, executed: AppliedMessage) -> None:
        """Answer the clients whose requests were decided."""
        for entry in executed.verdict.entries:
            if isinstance(entry, ConfigVerdict) and entry.request_digest in self.pending:
                self._answer(self._end(entry.request_digest), entry)

    def session_closed(self, instance: bytes) -> None:
        """A client disconnected. Its request continues, and still counts against its bound."""
        for waiting in self.pending.values():
            waiting.askers.pop(instance, None)

    def _decided(self, call: int, verdict: ConfigVerdict) -> Decided:
        why, epoch = REASONS.get(verdict.reason, ""), self._execution.state.epochs.token
        return Decided(call, kind_of(verdict.reason), why, verdict.client_id, verdict.acl, verdict.last_id, epoch)
