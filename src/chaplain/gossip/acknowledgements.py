"""Acknowledgements of events: tracks which nodes have seen an event of ours.

gossip.txt: an event says which action a receiver is expected to take, "ex., ack to sender". The ACKNOWLEDGE body lives
for one hop, and in a large cluster most nodes have no session with the sender. So an event is acknowledged like a
question: by an ANSWER without a value, which is signed and routed to its target (decisions/cluster-queries-and-events).

Invariants:
- each tracked event ends in exactly one `Acknowledged`: when all expected nodes have acknowledged, or at the time-out;
- the expected nodes are the one target, or the current members: a member that left is not waited for.
"""

from __future__ import annotations

from chaplain.gossip.codec import Action, GossipMessage, MessageType
from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.events import ALL, Acknowledged, EventId
from chaplain.gossip.payloads import Response, put_response


class _Waiting:
    """An event of ours that not all expected nodes have acknowledged."""

    __slots__ = ("call", "due_ns", "seen_by", "target")

    def __init__(self, call: int, target: int, due_ns: int) -> None:
        self.call = call
        self.target = target
        self.due_ns = due_ns
        self.seen_by: dict[int, None] = {}


class Acknowledgements:
    def __init__(self, dissemination: Dissemination) -> None:
        self._dissemination = dissemination
        self._waiting: dict[EventId, _Waiting] = {}

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._dissemination.settings.queries_max

    def expect(self, call: int, event: EventId, target: int, timeout_ns: int) -> None:
        due_ns = self._dissemination.now_ns + min(timeout_ns, self._dissemination.settings.query_timeout_max_ns)
        self._waiting[event] = _Waiting(call, target, due_ns)
        if target in (ALL, self._dissemination.identifier):
            self.on_acknowledged(self._dissemination.identifier, event)

    def on_acknowledged(self, responder: int, event: EventId) -> None:
        """Record that a node has seen the event. Ignored if the event is not tracked, or the node is not expected."""
        waiting = self._waiting.get(event)
        if waiting is not None and (responder == waiting.target or self._dissemination.members.is_present(responder)):
            waiting.seen_by[responder] = None
            self._finish_if_complete(event, waiting)

    def acknowledge(self, message: GossipMessage) -> None:
        """Acknowledge an event of another node, if the event asks for an acknowledgement."""
        if message.action == Action.ACKNOWLEDGE:
            content = put_response(Response(message.id, 1, True, b""))
            self._dissemination.fire(MessageType.ANSWER, content, target=message.id.origin, urgent=False)

    def on_tick(self) -> None:
        """Check every tracked event again, because the membership may have changed or its time may be over."""
        for event, waiting in list(self._waiting.items()):
            self._finish_if_complete(event, waiting)

    def due_ns(self) -> int | None:
        return min((waiting.due_ns for waiting in self._waiting.values()), default=None)

    def _finish_if_complete(self, event: EventId, waiting: _Waiting) -> None:
        expected = self._dissemination.members.present if waiting.target == ALL else (waiting.target,)
        missing = tuple(identifier for identifier in expected if identifier not in waiting.seen_by)
        if not missing or self._dissemination.now_ns >= waiting.due_ns:
            del self._waiting[event]
            seen = tuple(identifier for identifier in expected if identifier in waiting.seen_by)
            self._dissemination.out.append(Acknowledged(waiting.call, seen, missing))
