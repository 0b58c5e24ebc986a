"""Configuration requests on their way to the master, and back as decisions.

Decides where a petition goes and when it is sent again: any node takes them, only the master can order them, and
masters come and go. A petition that is ordered twice is decided twice alike, so sending it again costs nothing but a
line. Refuses to decide petitions: `configuration` does, when they are executed.

Bounds: `petitions_max` wait, each at most `petition_ns`.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias

import msgspec

from chaplain.core import soonest
from chaplain.errors import Malformed
from chaplain.journal import config_message
from chaplain.journal.client_messages import Decided, Failed
from chaplain.journal.decided import ConfigVerdict, Executed
from chaplain.journal.execution import JournalExecution
from chaplain.journal.facts import Status
from chaplain.journal.intake import DISK_FULL, full_reason
from chaplain.journal.journal_events import ToClient, ToPeer
from chaplain.journal.journal_settings import JournalSettings
from chaplain.journal.node_message import OPENING, is_opening
from chaplain.journal.order_events import ConfigOffered, RoleChanged
from chaplain.journal.peer_messages import PassPetition
from chaplain.journal.receipts import REASONS, kind_of
from chaplain.journal.seat import Seat
from chaplain.journal.verdict import Reason

NOT_CONFIG = "not_config"
PetitionEffect: TypeAlias = ConfigOffered | ToPeer | ToClient


class _Waiting(msgspec.Struct):
    petition: PassPetition
    askers: list[tuple[bytes, int]]
    until_ns: int
    due_ns: int


class Petitions:
    def __init__(self, settings: JournalSettings, execution: JournalExecution) -> None:
        self._settings = settings
        self._execution = execution
        self._master = 0
        self._seat = Seat(settings, execution)
        self.full = False
        """The disk has no room for what would be decided."""
        self._waiting: dict[bytes, _Waiting] = {}
        self.effects: list[PetitionEffect] = []

    @property
    def master(self) -> int:
        """Who orders, as far as we know; 0 if nobody does."""
        return self._master

    @property
    def due_ns(self) -> int | None:
        return soonest([waiting.due_ns for waiting in self._waiting.values()]) if self._waiting else None

    def submit(self, now_ns: int, asker: tuple[bytes, int], petition: PassPetition) -> None:
        """A client asks; what cannot be granted is refused at once."""
        if petition.entry_type in OPENING and not self._seat.takes_config:
            why = "this node takes no requests about nodes: ask one with the role config"
            self.effects.append(ToClient(asker[0], Failed(asker[1], NOT_CONFIG, why)))
            return
        reason = self._courtesy(petition)
        if reason is not Reason.APPLIED:
            self.effects.append(ToClient(asker[0], _decided(asker[1], ConfigVerdict(petition.entry_type, reason))))
            return
        if self.full:
            failed = Failed(asker[1], DISK_FULL, full_reason(self._settings.node))
            self.effects.append(ToClient(asker[0], failed))
            return
        digest = sha256(petition.data).digest()
        waiting = self._waiting.get(digest)
        if waiting is not None:
            if asker not in waiting.askers:
                waiting.askers.append(asker)
            return
        if len(self._waiting) >= self._settings.petitions_max:
            failed = Failed(asker[1], "busy", "too many petitions wait: ask again later, or another node")
            self.effects.append(ToClient(asker[0], failed))
            return
        self._waiting[digest] = _Waiting(petition, [asker], now_ns + self._settings.petition_ns, 0)
        self._send(now_ns, self._waiting[digest])

    def _courtesy(self, petition: PassPetition) -> Reason:
        if len(petition.data) > self._settings.petition_bytes_max:
            return Reason.UNKNOWN_TYPE
        try:
            decoded = config_message.decode(petition.entry_type, petition.stage, petition.data)
        except Malformed:
            return Reason.UNKNOWN_TYPE
        signer = self._execution.state.clients.get(decoded.signer)
        if signer is None or signer.status != Status.ACTIVE:
            return Reason.UNKNOWN_SIGNER
        if not config_message.signature_holds(decoded, self._execution.cluster, signer.key):
            return Reason.SIGNATURE
        return Reason.APPLIED

    def passed(self, petition: PassPetition) -> None:
        """Another node thinks that we are master. Later stages are nobody's to ask for."""
        small = len(petition.data) <= self._settings.petition_bytes_max
        if self._master == self._settings.node and small and is_opening(petition.entry_type, petition.stage):
            self.effects.append(ConfigOffered(petition.entry_type, petition.stage, petition.data))

    def role(self, now_ns: int, event: RoleChanged) -> None:
        """A new master has not heard of what waits."""
        if event.master != self._master:
            self._master = event.master
            for waiting in self._waiting.values():
                self._send(now_ns, waiting)

    def woken(self, now_ns: int) -> None:
        for digest, waiting in list(self._waiting.items()):
            if now_ns >= waiting.until_ns:
                self._give_up(self._waiting.pop(digest))
            elif now_ns >= waiting.due_ns:
                self._send(now_ns, waiting)

    def _give_up(self, waiting: _Waiting) -> None:
        why = "no decision in time: it may still be granted; ask again with the same nonce"
        self.effects += [ToClient(instance, Failed(call, "unknown", why)) for instance, call in waiting.askers]

    def _send(self, now_ns: int, waiting: _Waiting) -> None:
        waiting.due_ns = now_ns + self._settings.petition_retry_ns
        petition = waiting.petition
        if self._master == self._settings.node:
            self.effects.append(ConfigOffered(petition.entry_type, petition.stage, petition.data))
        elif self._master:
            self.effects.append(ToPeer(self._master, petition))

    def executed(self, executed: Executed) -> None:
        """Answer those whose petition was decided."""
        for entry in executed.verdict.entries:
            if not isinstance(entry, ConfigVerdict):
                continue
            waiting = self._waiting.pop(entry.petition, None)
            for instance, call in waiting.askers if waiting is not None else ():
                self.effects.append(ToClient(instance, _decided(call, entry)))

    def left(self, instance: bytes) -> None:
        """Nobody is there to be answered; the petition goes on."""
        for waiting in self._waiting.values():
            waiting.askers = [asker for asker in waiting.askers if asker[0] != instance]


def _decided(call: int, verdict: ConfigVerdict) -> Decided:
    why = REASONS.get(verdict.reason, "")
    return Decided(call, kind_of(verdict.reason), why, verdict.client_id, verdict.acl, verdict.last_id)
