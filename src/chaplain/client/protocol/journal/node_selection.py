"""Select the session that the journal uses, and track the credit of each session.

All messages of the journal go through one session at a time: the session with a node that is reserved for this client,
otherwise with the master, otherwise with any node. A node that accepts none of our writes is used only if there is no
other. The other sessions are opened as well, so that one can take over at once. See docs/decisions/client-routing.md.
Does not know the contents of messages.

Invariants: before `Opened`, only `Open` is sent on a session; pending requests have distinct numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chaplain.client.protocol.journal.events import JournalEffect, SendToNode
from chaplain.core import Report
from chaplain.journal.messages.client import CALL_MAX, ClientMessage, Decided, Failed, NodeMessage, Open, Opened
from chaplain.journal.messages.config import ACL_BYTES, EPOCH_BYTES

OPEN_AGAIN_NS = 500_000_000
"""A node that does not answer `Open` is asked again after this time."""
PACK_BYTES_LEAST = 4096
"""A node that reports a smaller limit for packs is not believed."""

NAMES_MAX = 200
"""Characters of client names in an error message."""

RETURN_NS = 10_000_000_000
"""The client returns to a node that is reserved for it after the node has been healthy for this long."""
AVOID_INTERVAL_NS = 500_000_000
"""Minimum time between two switches away from nodes that do not accept a write."""

ReplyHandler: TypeAlias = Callable[[int, NodeMessage, bytes], None]
"""Takes the time, the reply and its payload."""


class NodeSession:
    """The journal's view of one session."""

    __slots__ = (
        "call",
        "credit_bytes",
        "due_ns",
        "epoch",
        "instance",
        "master_regime",
        "ready",
        "reserved_for_us",
        "unusable_reason",
        "used_bytes",
    )

    def __init__(self, instance: bytes) -> None:
        self.instance = instance
        self.ready = False
        """True once the node has answered `Open`."""
        self.master_regime = 0
        """The regime in which the node is master; 0 if it is not."""
        self.reserved_for_us = False
        """True if the node is reserved for this client."""
        self.unusable_reason = ""
        """Why the node accepts none of our writes: it is reserved for others or holds no data. It answers everything
        else.
        """
        self.epoch = b""
        """The epoch token that the node sent last; configuration requests are signed with it."""
        self.credit_bytes = 0
        """Bytes that may be written on this session in total (flow control)."""
        self.used_bytes = 0
        """Bytes that were written on this session."""
        self.call = 0
        """Number of the pending `Open`."""
        self.due_ns = 0

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """The session with the highest rank is preferred."""
        return not self.unusable_reason, self.reserved_for_us, self.master_regime

    def has_credit_for(self, size_bytes: int) -> bool:
        """True if this many bytes may be written now."""
        return self.used_bytes + size_bytes <= self.credit_bytes


class NodeSelector:
    """The sessions of the journal, and the one that is in use."""

    def __init__(self, effects: list[JournalEffect], cluster: str) -> None:
        self._effects = effects
        self.cluster = cluster
        """Signatures are valid for this cluster only. It is configured, and not taken from a node's messages."""
        self._sessions: dict[bytes, NodeSession] = {}
        self.unopened: dict[bytes, NodeSession] = {}
        """Sessions that are not ready."""
        self._in_use = False
        """True once the program has used the journal."""
        self._handlers: dict[int, tuple[bytes, ReplyHandler]] = {}
        """Handlers of pending requests: the session they were sent on, and the callback."""
        self._call = 0
        self.chosen: NodeSession | None = None
        """The session that the journal uses."""
        self.unusable: frozenset[bytes] = frozenset()
        """Sessions whose nodes accept none of our writes."""
        self.switches = 0
        """How often another session was chosen."""
        self.acl = b""
        """ACL id of this client."""
        self.pack_bytes_max: int | None = None
        """Smallest pack limit of all nodes that we know; None before the first is known."""
        self.disk_full_reason = ""
        """The report of a node with a full disk; empty once a request has succeeded."""
        self._avoided_ns = 0
        """When the client last switched away from a node that did not accept a write."""
        self._reserved_ready_ns: int | None = None
        """Since when the node reserved for this client is known to be healthy while another is used."""
        self.unavailable_reason = "no node has opened its journal to us yet"
        """Error text: why no session can be used."""

    @property
    def at_master(self) -> bool:
        """True if the chosen node is the master."""
        return self.chosen is not None and self.chosen.master_regime > 0

    def open_all(self, now_ns: int) -> None:
        """Open every session, now that the program uses the journal."""
        if not self._in_use:
            self._in_use = True
            for session in self._sessions.values():
                self._send_open(now_ns, session)

    def on_session_up(self, now_ns: int, instance: bytes) -> None:
        """A session is up."""
        session = self._sessions[instance] = self.unopened[instance] = NodeSession(instance)
        if self._in_use:
            self._send_open(now_ns, session)

    def on_session_down(self, instance: bytes, reason: str) -> None:
        """A session has ended: forget its requests, and choose another if it was in use."""
        self._sessions.pop(instance, None)
        self.unopened.pop(instance, None)
        self.unusable -= {instance}
        for call in [call for call, (pending, _) in self._handlers.items() if pending == instance]:
            del self._handlers[call]
        if self.chosen is not None and self.chosen.instance == instance:
            self.unavailable_reason = f"the session was lost ({reason})"
            self._switch(None)

    def rotate(self) -> bool:
        """Switch to another open session, because the present one makes no progress. Returns False if there is none.

        Unusable nodes are considered only if the present one is unusable, too.
        """
        chosen_unusable = self.chosen is None or bool(self.chosen.unusable_reason)
        others = [
            session
            for session in self._ready()
            if session is not self.chosen and (chosen_unusable or not session.unusable_reason)
        ]
        if others:
            self._switch(others[0])
        return bool(others)

    def _ready(self) -> list[NodeSession]:
        """Open sessions, best first. The latest master's is preferred: it orders requests without a further hop."""
        ready = [session for session in self._sessions.values() if session.ready]
        return sorted(ready, key=lambda one: one.rank, reverse=True)

    def on_master_change(self, instance: bytes, regime: int) -> None:
        """A node reports that it is master in this regime, or no longer master (0)."""
        session = self._sessions.get(instance)
        if session is not None:
            session.master_regime = max(0, regime)
            self._switch_if_better(session)

    def _switch_if_better(self, session: NodeSession) -> None:
        """Switch to this session if it is open and ranks higher than the present one."""
        chosen = self.chosen
        if session.ready and (chosen is None or session.rank > chosen.rank):
            self._switch(session)

    def on_receipts(self, now_ns: int, instance: bytes) -> None:
        """A node sent receipts, so it receives the agreed order.

        If the node is reserved for this client, the client returns to it after `RETURN_NS`.
        """
        session = self._sessions.get(instance)
        if session is None or not session.reserved_for_us:
            return
        if self.chosen is not None and self.chosen.reserved_for_us:
            self._reserved_ready_ns = None
        elif self._reserved_ready_ns is None:
            self._reserved_ready_ns = now_ns
        elif now_ns - self._reserved_ready_ns >= RETURN_NS:
            self._reserved_ready_ns = None
            self._switch_if_better(session)

    def avoid_chosen(self, now_ns: int, disk_full_reason: str = "") -> None:
        """Switch to another node, because the chosen one did not accept a request.

        `disk_full_reason` is the node's report of a full disk, if that was the cause.
        """
        self.disk_full_reason = disk_full_reason or self.disk_full_reason
        if now_ns - self._avoided_ns >= AVOID_INTERVAL_NS:
            self._avoided_ns = now_ns
            self.rotate()

    def _switch(self, session: NodeSession | None) -> None:
        """Use this session; None chooses the best one."""
        self.chosen = session if session is not None else next(iter(self._ready()), None)
        self.switches += 1

    # Requests and replies.

    def request(self, message: Callable[[int], ClientMessage], handler: ReplyHandler, payload: bytes = b"") -> int:
        """Send a message whose reply carries its number. Returns 0 if no session is open."""
        if self.chosen is None:
            return 0
        call = self._register(self.chosen.instance, handler)
        self._effects.append(SendToNode(self.chosen.instance, message(call), payload))
        return call

    def send(self, message: ClientMessage, payload: bytes = b"") -> None:
        """Send a message without a reply of its own."""
        assert self.chosen is not None
        self._effects.append(SendToNode(self.chosen.instance, message, payload))

    def forget(self, call: int) -> None:
        """The reply is no longer wanted."""
        self._handlers.pop(call, None)

    def is_pending_on_chosen(self, call: int) -> bool:
        """True if this request was sent on the chosen session and is not forgotten."""
        pending = self._handlers.get(call)
        return pending is not None and self.chosen is not None and pending[0] == self.chosen.instance

    def on_reply(self, now_ns: int, instance: bytes, call: int, message: NodeMessage, payload: bytes) -> None:
        """Pass a reply to its handler."""
        pending = self._handlers.get(call)
        if pending is not None and pending[0] == instance:
            if isinstance(message, Decided) and len(message.epoch) == EPOCH_BYTES:
                self._sessions[instance].epoch = message.epoch
            pending[1](now_ns, message, payload)

    def on_credit(self, instance: bytes, credit_bytes: int) -> None:
        """A node grants more credit."""
        session = self._sessions.get(instance)
        if session is not None:
            session.credit_bytes = max(session.credit_bytes, credit_bytes)

    def _register(self, instance: bytes, handler: ReplyHandler) -> int:
        """Number a request. Numbers wrap, and a read may outlive a wrap."""
        while True:
            self._call = self._call % CALL_MAX + 1
            if self._call not in self._handlers:
                self._handlers[self._call] = (instance, handler)
                return self._call

    # Opening.

    def _send_open(self, now_ns: int, session: NodeSession) -> None:
        """Ask a node to open its journal to us."""
        self.forget(session.call)
        session.due_ns = now_ns + OPEN_AGAIN_NS

        def handler(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._on_opened(session, message)

        session.call = self._register(session.instance, handler)
        self._effects.append(SendToNode(session.instance, Open(session.call)))

    def _on_opened(self, session: NodeSession, message: NodeMessage) -> None:
        """Process the answer to `Open`."""
        if isinstance(message, Failed):
            self.unavailable_reason = message.reason
            return
        if not isinstance(message, Opened) or (len(message.acl), len(message.epoch)) != (ACL_BYTES, EPOCH_BYTES):
            self._effects.append(Report("unexpected answer to Open", "", {"message": type(message).__name__}))
            return
        if message.cluster != self.cluster:
            found = message.cluster[:64]
            self.unavailable_reason = f"the node's journal belongs to cluster {found!r}, not {self.cluster!r}"
            return
        self.forget(session.call)
        session.ready = True
        self.unopened.pop(session.instance, None)
        session.credit_bytes = max(session.credit_bytes, message.credit_bytes)
        self.acl, session.epoch = message.acl, message.epoch
        if message.pack_bytes_max >= PACK_BYTES_LEAST:
            self.pack_bytes_max = min(message.pack_bytes_max, self.pack_bytes_max or message.pack_bytes_max)
        session.master_regime = max(0, message.leads)
        session.reserved_for_us = message.name in message.reserved
        if message.reserved and not session.reserved_for_us:
            for_whom = ", ".join(filter(None, message.reserved))[:NAMES_MAX]
            self.unusable |= {session.instance}
            why = f"is reserved for {for_whom}" if for_whom else "holds no data"
            session.unusable_reason = f"node {message.node} {why}: connect to another node, too"
        self._switch_if_better(session)

    def on_timer(self, now_ns: int) -> None:
        """Repeat `Open` where it is due."""
        for session in self.unopened.values() if self._in_use else ():
            if now_ns >= session.due_ns:
                self._send_open(now_ns, session)

    def due_ns(self) -> int | None:
        """The next time at which `on_timer` must be called."""
        if not self.unopened or not self._in_use:
            return None
        return min(session.due_ns for session in self.unopened.values())
