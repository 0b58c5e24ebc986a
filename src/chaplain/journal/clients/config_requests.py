"""Configuration requests on their way to the master, and back as decisions.

    submitted by a client ──▶ signature checked (`Verify`) ──▶ to the master, again and again ──▶ decided, or given up
    passed on by a node   ──▶ signature checked (`Verify`) ──▶ offered to the order, if we are master

Decides where a petition goes and when it is sent again: any node takes them, only the master can order them, and
masters come and go. A petition that is ordered twice is decided twice alike, so sending it again costs nothing but a
line. Refuses to decide petitions: `configuration` does, when they are executed. The client that brings a petition need
not be its signer: a petition is decided once, whoever brings it.

Bounds: `petitions_max` wait, `petitions_per_client_max` of them for one client, each at most `petition_ns`; beyond it a
client is answered with `busy`. Of those that other nodes pass on, `petitions_max` are checked at a time and
`petitions_per_client_max` for one node; more are dropped, and come again. For each petition one call of each session
is answered: the last one.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import TypeAlias

import msgspec

from chaplain.core import Frozen, soonest
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ConfigOffered, RoleChanged
from chaplain.journal.events import ToClient, ToPeer, Verified, Verify
from chaplain.journal.execution.local_roles import LocalRoles
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.admission import DISK_FULL, full_reason
from chaplain.journal.ingest.signature_queue import SignatureQueue
from chaplain.journal.messages import config
from chaplain.journal.messages.client import Decided, Failed
from chaplain.journal.messages.membership import OPENING, is_opening
from chaplain.journal.messages.peer import PassPetition
from chaplain.journal.messages.signing import ConfigCheck
from chaplain.journal.model.reason import REASONS, kind_of
from chaplain.journal.model.records import IdentityStatus
from chaplain.journal.model.results import AppliedMessage, ConfigVerdict
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.verdict import Reason

NOT_CONFIG = "not_config"
PetitionEffect: TypeAlias = ConfigOffered | ToPeer | ToClient | Verify


class _Waiting(msgspec.Struct):
    petition: PassPetition
    askers: dict[bytes, int]
    """Sessions that want the decision, with the call that each of them asked last."""
    charged: list[bytes]
    """The clients that it counts for, until it is over: also if they leave."""
    until_ns: int
    due_ns: int = 0
    checked: bool = False
    """Its signature holds."""


class _Passed(Frozen, frozen=True):
    """Of another node."""

    node: int
    petition: PassPetition
    digest: bytes


class ConfigRequests:
    def __init__(self, settings: JournalSettings, execution: JournalExecution) -> None:
        self._settings = settings
        self._execution = execution
        self._master = 0
        self._seat = LocalRoles(settings, execution)
        self.full = False
        """The disk has no room for what would be decided."""
        self._waiting: dict[bytes, _Waiting] = {}
        self._charges: Counter[bytes] = Counter()
        """How many sessions of each client wait for a petition, or did when they left."""
        self._checking: SignatureQueue[bytes | _Passed] = SignatureQueue()
        """Petitions of clients, by digest, and those of other nodes."""
        self._passed: dict[bytes, int] = {}
        """Petitions of other nodes that are being checked: by digest, which node passed each."""
        self.effects: list[PetitionEffect] = []

    @property
    def master(self) -> int:
        """Who orders, as far as we know; 0 if nobody does."""
        return self._master

    @property
    def restless(self) -> bool:
        """Whether the end of a round means anything to us."""
        return bool(self._checking.new)

    @property
    def due_ns(self) -> int | None:
        return soonest([waiting.due_ns for waiting in self._waiting.values()]) if self._waiting else None

    def submit(self, now_ns: int, asker: tuple[bytes, int], client: bytes, petition: PassPetition) -> None:
        """A client asks; what cannot be granted is refused at once. `client` is the ACL id of its identity."""
        instance, call = asker
        if petition.entry_type in OPENING and not self._seat.takes_config:
            self._fail(asker, NOT_CONFIG, "this node takes no requests about nodes: ask one with the role config")
            return
        check = self._check_of(petition)
        if isinstance(check, Reason):
            self.effects.append(ToClient(instance, self._decided(call, ConfigVerdict(petition.entry_type, check))))
            return
        if self.full:
            self._fail(asker, DISK_FULL, full_reason(self._settings.node))
            return
        digest = sha256(petition.data).digest()
        waiting = self._waiting.get(digest)
        if waiting is not None and instance in waiting.askers:
            waiting.askers[instance] = call
            return
        if why := self._why_busy(client):
            self._fail(asker, "busy", why)
            return
        self._charges[client] += 1
        if waiting is not None:
            waiting.askers[instance] = call
            waiting.charged.append(client)
            return
        until_ns = now_ns + self._settings.petition_ns
        self._waiting[digest] = _Waiting(petition, {instance: call}, [client], until_ns, until_ns)
        self._checking.add(digest, (check,))

    def _why_busy(self, client: bytes) -> str:
        if self._charges[client] >= self._settings.petitions_per_client_max:
            return "too many petitions of this client wait here: wait for some of them"
        if self._charges.total() >= self._settings.petitions_max:
            return "too many petitions wait: ask again later, or another node"
        return ""

    def _fail(self, asker: tuple[bytes, int], kind: str, why: str) -> None:
        self.effects.append(ToClient(asker[0], Failed(asker[1], kind, why)))

    def _check_of(self, petition: PassPetition) -> ConfigCheck | Reason:
        """The check that comes before it is passed on; or why it is refused without a look at its signature."""
        if len(petition.data) > self._settings.petition_bytes_max:
            return Reason.UNKNOWN_TYPE
        try:
            decoded = config.decode(petition.entry_type, petition.stage, petition.data)
        except Malformed:
            return Reason.UNKNOWN_TYPE
        signer = self._execution.state.clients.get(decoded.signer)
        if signer is None or signer.status != IdentityStatus.ACTIVE:
            return Reason.UNKNOWN_SIGNER
        return config.check_of(decoded, self._execution.cluster, signer.key)

    def passed(self, node: int, petition: PassPetition) -> None:
        """Another node thinks that we are master. Later stages are nobody's to ask for."""
        if self._master != self._settings.node or not is_opening(petition.entry_type, petition.stage):
            return
        digest = sha256(petition.data).digest()
        of_node = sum(one == node for one in self._passed.values())
        crowded = (
            len(self._passed) >= self._settings.petitions_max or of_node >= self._settings.petitions_per_client_max
        )
        if crowded or digest in self._passed:
            return
        check = self._check_of(petition)
        if isinstance(check, ConfigCheck):
            self._passed[digest] = node
            self._checking.add(_Passed(node, petition, digest), (check,))

    def drained(self) -> None:
        """Ask for the checks of everything that has come since the last time."""
        if self._checking.new:
            self.effects.append(self._checking.ask())

    def verified(self, now_ns: int, event: Verified) -> None:
        for thing, (holds,) in self._checking.answered(event):
            if isinstance(thing, _Passed):
                del self._passed[thing.digest]
                if holds and self._master == self._settings.node:
                    self._offer(thing.petition)
                continue
            waiting = self._waiting.get(thing)
            if waiting is None:
                continue  # given up, or decided because another node passed it on
            if holds:
                waiting.checked = True
                self._send(now_ns, waiting)
            else:
                refused = ConfigVerdict(waiting.petition.entry_type, Reason.SIGNATURE)
                self._answer(self._end(thing), refused)

    def _offer(self, petition: PassPetition) -> None:
        self.effects.append(ConfigOffered(petition.entry_type, petition.stage, petition.data))

    def _end(self, digest: bytes) -> _Waiting | None:
        """Forget it: no client waits for it any more."""
        waiting = self._waiting.pop(digest, None)
        if waiting is not None:
            self._charges.subtract(waiting.charged)
            self._charges += Counter()  # drops those that are at 0
        return waiting

    def _answer(self, waiting: _Waiting | None, verdict: ConfigVerdict) -> None:
        for instance, call in waiting.askers.items() if waiting is not None else ():
            self.effects.append(ToClient(instance, self._decided(call, verdict)))

    def role(self, now_ns: int, event: RoleChanged) -> None:
        """A new master has not heard of what waits."""
        if event.master != self._master:
            self._master = event.master
            for waiting in self._waiting.values():
                if waiting.checked:
                    self._send(now_ns, waiting)

    def woken(self, now_ns: int) -> None:
        for digest, waiting in list(self._waiting.items()):
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

    def executed(self, executed: AppliedMessage) -> None:
        """Answer those whose petition was decided."""
        for entry in executed.verdict.entries:
            if isinstance(entry, ConfigVerdict) and entry.request_digest in self._waiting:
                self._answer(self._end(entry.request_digest), entry)

    def left(self, instance: bytes) -> None:
        """The client has left. The petition goes on, and still counts against the bound of its bringer."""
        for waiting in self._waiting.values():
            waiting.askers.pop(instance, None)

    def _decided(self, call: int, verdict: ConfigVerdict) -> Decided:
        why, epoch = REASONS.get(verdict.reason, ""), self._execution.state.epochs.token
        return Decided(call, kind_of(verdict.reason), why, verdict.client_id, verdict.acl, verdict.last_id, epoch)
