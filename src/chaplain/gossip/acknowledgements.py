"""Who has seen an event of ours that asked for an acknowledgement.

gossip.txt: an event says which action is expected of a receiver, "ex., ack to sender". ACKNOWLEDGE lives for one hop,
and in a large cluster most nodes have no session with the sender; so an event is acknowledged as a question is
answered, by an ANSWER without a value, which is signed and finds its way (docs/decisions/0130).

Invariants:
- each event waited for ends in exactly one `Acknowledged`: when all who are waited for have said so, or time is up;
- who is waited for is the one target, or the members of the moment: nobody waits for one who left.
"""

from __future__ import annotations

from chaplain.gossip.codec import Action, GossipMessage, MessageType
from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.events import ALL, Acknowledged, EventId
from chaplain.gossip.payloads import Response, put_response


class _Waiting:
    """An event of ours that not all have acknowledged."""

    __slots__ = ("call", "due_ns", "seen_by", "target")

    def __init__(self, call: int, target: int, due_ns: int) -> None:
        self.call = call
        self.target = target
        self.due_ns = due_ns
        self.seen_by: dict[int, None] = {}


class Acknowledgements:
    def __init__(self, voice: Dissemination) -> None:
        self._voice = voice
        self._waiting: dict[EventId, _Waiting] = {}

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= self._voice.settings.queries_max

    def expect(self, call: int, event: EventId, target: int, timeout_ns: int) -> None:
        due_ns = self._voice.now_ns + min(timeout_ns, self._voice.settings.query_timeout_max_ns)
        self._waiting[event] = _Waiting(call, target, due_ns)
        if target in (ALL, self._voice.identifier):
            self.take(self._voice.identifier, event)

    def take(self, responder: int, event: EventId) -> None:
        """Note that a node has seen the event; harmless if nobody waits for that, or not for this node."""
        waiting = self._waiting.get(event)
        if waiting is not None and (responder == waiting.target or self._voice.members.is_present(responder)):
            waiting.seen_by[responder] = None
            self._judge(event, waiting)

    def give(self, message: GossipMessage) -> None:
        """Acknowledge somebody's event, if that is expected."""
        if message.action == Action.ACKNOWLEDGE:
            content = put_response(Response(message.id, 1, True, b""))
            self._voice.fire(MessageType.ANSWER, content, target=message.id.origin, urgent=False)

    def tend(self) -> None:
        """Look again: the membership may have changed, or the time be up."""
        for event, waiting in list(self._waiting.items()):
            self._judge(event, waiting)

    def due_ns(self) -> int | None:
        return min((waiting.due_ns for waiting in self._waiting.values()), default=None)

    def _judge(self, event: EventId, waiting: _Waiting) -> None:
        expected = self._voice.members.present if waiting.target == ALL else (waiting.target,)
        missing = tuple(identifier for identifier in expected if identifier not in waiting.seen_by)
        if not missing or self._voice.now_ns >= waiting.due_ns:
            del self._waiting[event]
            seen = tuple(identifier for identifier in expected if identifier in waiting.seen_by)
            self._voice.out.append(Acknowledged(waiting.call, seen, missing))
