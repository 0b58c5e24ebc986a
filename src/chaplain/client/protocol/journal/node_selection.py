"""The sessions as the journal uses them: which one, whether it was opened, and how much may still be written on it.

Decides where everything about the journal is said. All of it goes through one session at a time: that of a node which
is reserved for us, else that of the master, else any; of a node that takes nothing of ours only if there is no other.
The others are opened as well, so that one can take over at once. Refuses to know what is said.

Invariants: nothing is said on a session before `Opened`, but `Open`; every question has a number that no other has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chaplain.client.protocol.journal.events import JournalEffect, SendToNode
from chaplain.core import Report
from chaplain.journal.messages.client import CALL_MAX, ClientMessage, Decided, Failed, NodeMessage, Open, Opened
from chaplain.journal.messages.config import ACL_BYTES, EPOCH_BYTES

OPEN_AGAIN_NS = 500_000_000
"""A node that does not open is asked again after this."""
PACK_BYTES_LEAST = 4096
"""Whoever says that it takes less is not believed."""

NAMES_MAX = 200
"""Characters of names in a message to a person."""

RETURN_NS = 10_000_000_000
"""Who left a node that is reserved for us goes back to it after so long, if it is well."""
SHUN_NS = 500_000_000
"""A session is left for another at most so often because its node has no room."""

Answer: TypeAlias = Callable[[int, NodeMessage, bytes], None]
"""Takes the time, what was answered, and its payload."""


class NodeOutlet:
    """One session."""

    __slots__ = (
        "barred",
        "call",
        "credit_bytes",
        "due_ns",
        "epoch",
        "instance",
        "leads",
        "ours",
        "ready",
        "used_bytes",
    )

    def __init__(self, instance: bytes) -> None:
        self.instance = instance
        self.ready = False
        self.leads = 0
        """The regime in which the node at the other end is master; 0 if it is not."""
        self.ours = False
        """Whether the node at the other end is reserved for us."""
        self.barred = ""
        """Why nothing of ours is taken there: it is reserved for others. Whatever else we want can be had."""
        self.epoch = b""
        """Token of the epoch that the node said last: configuration requests are signed with it."""
        self.credit_bytes = 0
        self.used_bytes = 0
        self.call = 0
        self.due_ns = 0

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """The highest is gone to."""
        return not self.barred, self.ours, self.leads

    def affords(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.credit_bytes


class Outlets:
    def __init__(self, effects: list[JournalEffect], cluster: str) -> None:
        self._effects = effects
        self.cluster = cluster
        """What is signed is good for this cluster alone, whatever a node says of itself."""
        self._outlets: dict[bytes, NodeOutlet] = {}
        self._closed: dict[bytes, NodeOutlet] = {}
        """Those that are not ready."""
        self._awake = False
        self._answers: dict[int, tuple[bytes, Answer]] = {}
        self._call = 0
        self.chosen: NodeOutlet | None = None
        self.barred: frozenset[bytes] = frozenset()
        """Sessions with nodes that are reserved for others."""
        self.moves = 0
        """Grows whenever another session is chosen."""
        self.acl = b""
        self.pack_bytes_max: int | None = None
        """Larger packs are refused by some node that we know."""
        self.full = ""
        """What a node said that has no room; empty once something went through."""
        self._shunned_ns = 0
        self._away_ns: int | None = None
        """Since when we know that our own node is well, and are not there."""
        self.trouble = "no node has opened its journal to us yet"
        """Why nothing can be said, for a message to a person."""

    @property
    def at_master(self) -> bool:
        return self.chosen is not None and self.chosen.leads > 0

    def wake(self, now_ns: int) -> None:
        """The journal is used: open every session."""
        if not self._awake:
            self._awake = True
            for outlet in self._outlets.values():
                self._open(now_ns, outlet)

    def up(self, now_ns: int, instance: bytes) -> None:
        outlet = self._outlets[instance] = self._closed[instance] = NodeOutlet(instance)
        if self._awake:
            self._open(now_ns, outlet)

    def down(self, instance: bytes, reason: str) -> None:
        self._outlets.pop(instance, None)
        self._closed.pop(instance, None)
        self.barred -= {instance}
        for call in [call for call, (asked, _) in self._answers.items() if asked == instance]:
            del self._answers[call]
        if self.chosen is not None and self.chosen.instance == instance:
            self.trouble = f"the session was lost ({reason})"
            self._choose(None)

    def rotate(self) -> bool:
        """Go to another session, if one is open: this one does not get us on, nor would one that is barred."""
        stuck = self.chosen is None or bool(self.chosen.barred)
        others = [outlet for outlet in self._ready() if outlet is not self.chosen and (stuck or not outlet.barred)]
        if others:
            self._choose(others[0])
        return bool(others)

    def _ready(self) -> list[NodeOutlet]:
        """Open sessions, the best first; among equals the latest master's: what it takes is ordered at once."""
        ready = [outlet for outlet in self._outlets.values() if outlet.ready]
        return sorted(ready, key=lambda one: one.rank, reverse=True)

    def leads(self, instance: bytes, regime: int) -> None:
        """A node says that it is master, or no more."""
        outlet = self._outlets.get(instance)
        if outlet is not None:
            outlet.leads = max(0, regime)
            self._prefer(outlet)

    def _prefer(self, outlet: NodeOutlet) -> None:
        """Go to this one if it is there to be gone to, and better than the one that we are at."""
        chosen = self.chosen
        if outlet.ready and (chosen is None or outlet.rank > chosen.rank):
            self._choose(outlet)

    def heard_receipts(self, now_ns: int, instance: bytes) -> None:
        """The node at the other end tells what was written, so it hears of the order."""
        outlet = self._outlets.get(instance)
        if outlet is None or not outlet.ours:
            return
        if self.chosen is not None and self.chosen.ours:
            self._away_ns = None
        elif self._away_ns is None:
            self._away_ns = now_ns
        elif now_ns - self._away_ns >= RETURN_NS:
            self._away_ns = None
            self._prefer(outlet)

    def shun(self, now_ns: int, full: str = "") -> None:
        """The node at the other end does not take this, for want of room if it says so: another may."""
        self.full = full or self.full
        if now_ns - self._shunned_ns >= SHUN_NS:
            self._shunned_ns = now_ns
            self.rotate()

    def _choose(self, outlet: NodeOutlet | None) -> None:
        self.chosen = outlet if outlet is not None else next(iter(self._ready()), None)
        self.moves += 1

    # Talking.

    def ask(self, message: Callable[[int], ClientMessage], answer: Answer, payload: bytes = b"") -> int:
        """Say something that is answered by its number; 0 if there is no session to say it on."""
        if self.chosen is None:
            return 0
        call = self._number(self.chosen.instance, answer)
        self._effects.append(SendToNode(self.chosen.instance, message(call), payload))
        return call

    def say(self, message: ClientMessage, payload: bytes = b"") -> None:
        assert self.chosen is not None
        self._effects.append(SendToNode(self.chosen.instance, message, payload))

    def forget(self, call: int) -> None:
        """The answer is not wanted any more."""
        self._answers.pop(call, None)

    def asked_here(self, call: int) -> bool:
        """Whether this question was asked on the session that is chosen, and is not forgotten."""
        asked = self._answers.get(call)
        return asked is not None and self.chosen is not None and asked[0] == self.chosen.instance

    def answered(self, now_ns: int, instance: bytes, call: int, message: NodeMessage, payload: bytes) -> None:
        asked = self._answers.get(call)
        if asked is not None and asked[0] == instance:
            if isinstance(message, Decided) and len(message.epoch) == EPOCH_BYTES:
                self._outlets[instance].epoch = message.epoch
            asked[1](now_ns, message, payload)

    def credit(self, instance: bytes, credit_bytes: int) -> None:
        outlet = self._outlets.get(instance)
        if outlet is not None:
            outlet.credit_bytes = max(outlet.credit_bytes, credit_bytes)

    def _number(self, instance: bytes, answer: Answer) -> int:
        while True:
            self._call = self._call % CALL_MAX + 1
            if self._call not in self._answers:
                self._answers[self._call] = (instance, answer)
                return self._call

    # Opening.

    def _open(self, now_ns: int, outlet: NodeOutlet) -> None:
        self.forget(outlet.call)
        outlet.due_ns = now_ns + OPEN_AGAIN_NS

        def answer(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._opened(outlet, message)

        outlet.call = self._number(outlet.instance, answer)
        self._effects.append(SendToNode(outlet.instance, Open(outlet.call)))

    def _opened(self, outlet: NodeOutlet, message: NodeMessage) -> None:
        if isinstance(message, Failed):
            self.trouble = message.reason
            return
        if not isinstance(message, Opened) or (len(message.acl), len(message.epoch)) != (ACL_BYTES, EPOCH_BYTES):
            self._effects.append(Report("an answer that was not asked for", "", {"message": type(message).__name__}))
            return
        if message.cluster != self.cluster:
            self.trouble = f"the node's journal is of cluster {message.cluster[:64]!r}, not {self.cluster!r}"
            return
        self.forget(outlet.call)
        outlet.ready = True
        self._closed.pop(outlet.instance, None)
        outlet.credit_bytes = max(outlet.credit_bytes, message.credit_bytes)
        self.acl, outlet.epoch = message.acl, message.epoch
        if message.pack_bytes_max >= PACK_BYTES_LEAST:
            self.pack_bytes_max = min(message.pack_bytes_max, self.pack_bytes_max or message.pack_bytes_max)
        outlet.leads = max(0, message.leads)
        outlet.ours = message.name in message.reserved
        if message.reserved and not outlet.ours:
            for_whom = ", ".join(filter(None, message.reserved))[:NAMES_MAX]
            self.barred |= {outlet.instance}
            why = f"is reserved for {for_whom}" if for_whom else "holds no data"
            outlet.barred = f"node {message.node} {why}: connect to another node, too"
        self._prefer(outlet)

    def woken(self, now_ns: int) -> None:
        for outlet in self._closed.values() if self._awake else ():
            if now_ns >= outlet.due_ns:
                self._open(now_ns, outlet)

    def due_ns(self) -> int | None:
        if not self._closed or not self._awake:
            return None
        return min(outlet.due_ns for outlet in self._closed.values())
