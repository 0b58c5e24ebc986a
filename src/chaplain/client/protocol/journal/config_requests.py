"""Petitions of this client: signed once, and sent verbatim until they are decided.

Decides when a petition is sent again. The same octets are decided alike however often they are ordered, so a petition
follows the session. Refuses to know what a decision means: it goes to whoever asked.

A petition is signed in an epoch of the agreed order and expires with it. One that is refused as expired is signed again
in the epoch that the answer names, with the same nonce, if it cannot be applied twice by that: if it is of a kind that
changes nothing when it is repeated, or if the only copy that was ever sent is the one that was refused. Of any other an
earlier copy may have been granted so long ago that nobody remembers it; whoever asked has to look.

Bounds: `PETITIONS_MAX` at a time for users; lanes add a handful.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import msgspec

from chaplain.client.protocol.journal.error_kinds import FULL
from chaplain.client.protocol.journal.node_selection import Outlets
from chaplain.journal.messages.client import Decided, Failed, NodeMessage, SubmitPetition
from chaplain.journal.messages.config import (
    NO_ACL,
    NONCE_BYTES,
    AddIdentity,
    ConfigMessage,
    FenceLane,
    LeaseLane,
    MakeCheckpoint,
    ReleaseLane,
    RemoveIdentity,
    RetireLane,
    entry_type_of,
    sign,
    stage_of,
)
from chaplain.journal.messages.write_request import REQUEST_ID_MAX
from chaplain.link.auth.identity import Identity

PETITIONS_MAX = 1024
AGAIN_NS = 1_000_000_000
PAUSE_NS = 100_000_000
OTHERS_NS = 3_000_000_000
"""How long another session is waited for, when the node at the only open one is not the one to ask."""
APPLIED = "applied"
EXPIRED = "expired"
SIGNATURES_AT_ONCE = 2
"""A petition that expires more often is signed again after a pause."""
REPEATABLE = (AddIdentity, LeaseLane, RemoveIdentity, ReleaseLane, RetireLane, FenceLane, MakeCheckpoint)
"""Kinds that change nothing more when they are granted twice, however long ago the first time was."""
TRANSIENT = ("busy", "unknown", FULL)
"""Kinds of failure after which the same petition may be sent again."""

Verdict: TypeAlias = Callable[[int, Decided], None]


class PendingConfigRequest:
    __slots__ = ("call", "data", "due_ns", "message", "nonce", "refused_ns", "sends", "signatures", "verdict")

    def __init__(self, message: ConfigMessage, nonce: bytes, verdict: Verdict) -> None:
        self.message = message
        self.nonce = nonce
        self.verdict = verdict
        self.data = b""
        self.signatures = 0
        """How often it was signed."""
        self.sends = 0
        """How many copies of what was signed last may be under way."""
        self.call = 0
        self.due_ns = 0
        self.refused_ns = 0
        """When a node said first that it is not the one to ask, and no other was there."""


class ConfigRequestClient:
    def __init__(self, outlets: Outlets, identity: Identity, chance: Random) -> None:
        self._outlets = outlets
        self._identity = identity
        self._chance = chance
        self._waiting: dict[int, PendingConfigRequest] = {}
        self._last = 0

    def submit(self, now_ns: int, message: ConfigMessage, verdict: Verdict, nonce: bytes | None = None) -> int:
        """Ask for something; gives the number to withdraw it by."""
        petition = PendingConfigRequest(message, nonce or self.new_nonce(), verdict)
        self._last += 1
        self._waiting[self._last] = petition
        self._send(now_ns, petition)
        return self._last

    @property
    def full(self) -> bool:
        """No more should be asked for by users; what the lanes need is not many and always goes."""
        return len(self._waiting) >= PETITIONS_MAX

    def new_nonce(self) -> bytes:
        return self._chance.randbytes(NONCE_BYTES)

    def withdraw(self, number: int) -> None:
        """Nobody waits for the decision."""
        petition = self._waiting.pop(number, None)
        if petition is not None:
            self._outlets.forget(petition.call)

    def moved(self, now_ns: int) -> None:
        """Another session: what waits has not been asked there."""
        for petition in self._waiting.values():
            self._send(now_ns, petition)

    def woken(self, now_ns: int) -> None:
        for petition in self._waiting.values():
            if now_ns >= petition.due_ns:
                self._send(now_ns, petition)

    def due_ns(self) -> int | None:
        if not self._waiting or self._outlets.chosen is None:
            return None
        return min((petition.due_ns for petition in self._waiting.values()), default=None)

    def _send(self, now_ns: int, petition: PendingConfigRequest) -> None:
        outlets = self._outlets
        outlets.forget(petition.call)
        petition.due_ns = now_ns + AGAIN_NS
        if outlets.chosen is None:
            return
        if not petition.data:
            acl, epoch = outlets.acl or NO_ACL, outlets.chosen.epoch
            petition.data = sign(petition.message, outlets.cluster, acl, petition.nonce, self._identity, epoch=epoch)
            petition.signatures += 1
            petition.sends = 0
        petition.sends += 1
        entry_type, stage = entry_type_of(petition.message), stage_of(petition.message)

        def answer(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._answered(now_ns, petition, message)

        petition.call = outlets.ask(lambda call: SubmitPetition(call, entry_type, stage), answer, petition.data)

    def _answered(self, now_ns: int, petition: PendingConfigRequest, message: NodeMessage) -> None:
        if isinstance(message, Failed):
            if message.kind == "not_config" and self._outlets.rotate():
                return  # asked again because we moved
            if message.kind in TRANSIENT or (message.kind == "not_config" and _may_move(now_ns, petition)):
                petition.due_ns = min(petition.due_ns, now_ns + PAUSE_NS)
                if message.kind == FULL:
                    self._outlets.shun(now_ns, message.reason)
                return
            message = Decided(message.call, message.kind, message.reason, 0, NO_ACL, 0)
        if isinstance(message, Decided) and message.kind == EXPIRED:
            if isinstance(petition.message, REPEATABLE) or petition.sends == 1:
                self._sign_again(now_ns, petition)
                return
            why = "it expired, and an earlier copy of it may have been granted: look before asking again"
            message = msgspec.structs.replace(message, reason=why)
        if isinstance(message, Decided) and _sound(message):
            self._outlets.forget(petition.call)
            for number in [number for number, one in self._waiting.items() if one is petition]:
                del self._waiting[number]
            self._outlets.full = ""
            petition.verdict(now_ns, message)

    def _sign_again(self, now_ns: int, petition: PendingConfigRequest) -> None:
        """No copy of what was signed can be granted any more."""
        petition.data = b""
        if petition.signatures < SIGNATURES_AT_ONCE:
            self._send(now_ns, petition)
        else:
            petition.due_ns = min(petition.due_ns, now_ns + PAUSE_NS)


def _may_move(now_ns: int, petition: PendingConfigRequest) -> bool:
    """Whether another session may open yet: a client has one before it has two."""
    petition.refused_ns = petition.refused_ns or now_ns
    return now_ns - petition.refused_ns < OTHERS_NS


def _sound(decided: Decided) -> bool:
    """Whether the numbers are such as a lane can have; an answer that is not is no answer."""
    lane = decided.client_id if decided.kind == APPLIED else 0
    return 0 <= lane <= REQUEST_ID_MAX and 0 <= decided.last_id <= REQUEST_ID_MAX
