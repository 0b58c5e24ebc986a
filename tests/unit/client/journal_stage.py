"""A client's journal over real journal cores in memory. A test may lose, delay or double anything between them."""

from __future__ import annotations

from collections import deque
from random import Random

from chaplain.client.protocol.call_events import Cancelled, Failure, Raised, Returned
from chaplain.client.protocol.journal.core import ClientJournal
from chaplain.client.protocol.journal.events import (
    Batch,
    NodeSpoke,
    ReadChunk,
    ReadCommand,
    ResolveCommand,
    RetryCommand,
    SendToNode,
    SessionDown,
    SessionHurt,
    SessionUp,
    TakenCommand,
    WriteCommand,
    WritesAcknowledged,
)
from chaplain.client.protocol.journal.unpacking import messages_of
from chaplain.client.types.journal import Message
from chaplain.core import Drained, Report, Woken
from chaplain.journal.events import JournalParcel
from chaplain.journal.messages import client
from chaplain.journal.messages.client import Write
from chaplain.journal.messages.write_request import REQUEST_ID_MAX, read_heading
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited
from chaplain.wire.parcel import Layer, Parcel
from tests.support import journal_cluster as journal_stage
from tests.support.execution_stage import ADMIN, CLUSTER
from tests.support.journal_cluster import Cluster

SECOND_NS = 10**9


class Session:
    """The client as one node sees it."""

    def __init__(self, node: int, peer: Peer) -> None:
        self.node = node
        self.peer = peer
        self.inbox: deque = deque()


class Bench:
    """One client."""

    made = 0

    def __init__(
        self,
        cluster: Cluster,
        *nodes: int,
        identity: Identity = ADMIN,
        name: str = "default",
        ids: int = REQUEST_ID_MAX,
    ) -> None:
        Bench.made += 1
        self.number = Bench.made
        self.cluster = cluster
        self.identity = identity
        self.name = name
        self.journal = ClientJournal(identity, CLUSTER, Random(self.number), ids)
        self.sessions: dict[bytes, Session] = {}
        self.outcomes: dict[int, list] = {}
        self.reports: list[Report] = []
        self.packs: dict[tuple[int, int], bytes] = {}
        self.writes = 0
        self.deaf = False
        """Nothing that nodes say arrives, for now."""
        self.spoil = None
        """Called with (client to node?, message); how many copies arrive."""
        self._call = 0
        self._made = 0
        for node in nodes:
            self.connect(node)

    # Sessions.

    def connect(self, node: int) -> bytes:
        self._made += 1
        instance = b"bench %4d %5d" % (self.number, self._made)
        session = Session(node, Peer(instance, self.identity.identifier, self.identity.key, client=self.name))
        self.sessions[instance] = session
        self.cluster.clients[instance] = session
        self.cluster.nodes[node].inbox.append(Entered(session.peer, {}))
        self.give(SessionUp(instance))
        return instance

    def disconnect(self, instance: bytes, reason: str = "reset") -> None:
        session = self.sessions.pop(instance)
        del self.cluster.clients[instance]
        if session.node in self.cluster.nodes:
            self.cluster.nodes[session.node].inbox.append(Exited(session.peer, "done"))
        self.give(SessionDown(instance, reason))

    def kill(self, node: int) -> None:
        """The node dies, and the sessions with it."""
        self.cluster.kill(node)
        for instance in [instance for instance, session in self.sessions.items() if session.node == node]:
            self.disconnect(instance)

    # Wishes.

    def write(
        self, *values: bytes, stream: str = "orders", transaction: bool = False, group: int = 0, wait_s: float = 60
    ) -> int:
        self._call += 1
        batch = Batch(stream, values, None, None, transaction, sum(map(len, values)))
        self.give(WriteCommand(self._call, batch, int(wait_s * SECOND_NS), group))
        return self._call

    def read(
        self, start: int = 0, stop: int | None = None, follow: bool = False, stream: str = "orders", wait_s: float = 60
    ) -> int:
        self._call += 1
        self.give(ReadCommand(self._call, stream, start, stop, follow, int(wait_s * SECOND_NS)))
        return self._call

    def resolve(self, client_id: int, request: int, wait_s: float = 60) -> int:
        self._call += 1
        self.give(ResolveCommand(self._call, client_id, request, int(wait_s * SECOND_NS)))
        return self._call

    def retry(
        self,
        request: tuple[int, int],
        *values: bytes,
        stream: str = "orders",
        transaction: bool = False,
        wait_s: float = 60,
    ) -> int:
        self._call += 1
        batch = Batch(stream, values, None, None, transaction, sum(map(len, values)))
        self.give(RetryCommand(self._call, batch, *request, int(wait_s * SECOND_NS)))
        return self._call

    def wish(self, make) -> int:
        self._call += 1
        self.give(make(self._call))
        return self._call

    def take(self, call: int, size_bytes: int) -> None:
        self.give(TakenCommand(call, size_bytes))

    def cancel(self, call: int) -> None:
        self.give(Cancelled(call))

    # Running.

    def give(self, event) -> None:
        for effect in self.journal.step(self.cluster.now_ns, event):
            match effect:
                case SendToNode():
                    self._utter(effect)
                case Report():
                    self.reports.append(effect)
                case _:
                    self.outcomes.setdefault(effect.call, []).append(effect)

    def _utter(self, effect: SendToNode) -> None:
        session = self.sessions.get(effect.instance)
        assert session is not None, "said on a session that is gone"
        if isinstance(effect.message, Write):
            heading = read_heading(effect.payload)
            before = self.packs.setdefault((heading.client_id, heading.first_id), effect.payload)
            assert before == effect.payload, "two strings for one id"
            self.writes += 1
        said = Parcel(self.identity.identifier, Layer.JOURNAL, client.encode(effect.message), effect.payload)
        copies = 1 if self.spoil is None else self.spoil(True, effect.message)
        node = self.cluster.nodes.get(session.node)
        if node is not None:
            node.inbox.extend([JournalParcel(session.peer, said)] * copies)

    def work(self) -> bool:
        """Take in whatever came, then one tick."""
        events = []
        if not self.deaf:
            for instance, session in list(self.sessions.items()):
                while session.inbox:
                    message, payload = session.inbox.popleft()
                    copies = 1 if self.spoil is None else self.spoil(False, message)
                    events += [NodeSpoke(instance, message, payload)] * copies
        for event in events:
            self.give(event)
        self.give(Drained())
        return bool(events)

    def settle(self) -> None:
        """Until nobody has anything to do at this moment."""
        for _ in range(10_000):
            self.cluster.settle()
            if not self.work() and not any(node.inbox for node in self.cluster.nodes.values()):
                return
        raise AssertionError("never came to rest")

    def until(self, condition, limit_s: float = 120) -> None:
        """Let time pass until the condition holds."""
        end_ns = self.cluster.now_ns + int(limit_s * SECOND_NS)
        self.settle()
        while not condition():
            assert self.cluster.now_ns < end_ns, "the condition never held"
            cores = [self.journal, *(node.core for node in self.cluster.nodes.values())]
            due = [when for core in cores if (when := core.deadline()) is not None]
            assert due, "nobody wants to do anything"
            self.cluster.now_ns = max(self.cluster.now_ns + 1, min(due))
            self.wake()
            self.settle()

    def wake(self) -> None:
        for node in self.cluster.nodes.values():
            when = node.core.deadline()
            if when is not None and when <= self.cluster.now_ns:
                node.take(Woken())
                node.take(Drained())
        when = self.journal.deadline()
        if when is not None and when <= self.cluster.now_ns:
            self.give(Woken())
            self.give(Drained())
            after = self.journal.deadline()
            assert after is None or after > self.cluster.now_ns, "asks to be woken for nothing"

    def rest(self, seconds: float) -> None:
        end_ns = self.cluster.now_ns + int(seconds * SECOND_NS)
        self.until(lambda: self.cluster.now_ns >= end_ns, seconds + 60)

    # What came of it.

    def ended(self, call: int) -> bool:
        return any(
            isinstance(outcome, WritesAcknowledged | Returned | Raised) for outcome in self.outcomes.get(call, ())
        )

    def end(self, call: int):
        """How the call ended, once it has."""
        self.until(lambda: self.ended(call))
        *before, last = self.outcomes[call]
        assert all(isinstance(outcome, ReadChunk) for outcome in before), "a call ends once"
        return last

    def messages(self, stream: str = "orders") -> list[Message]:
        """Everything in the stream, as this client reads it."""
        call = self.read(stream=stream)
        taken = 0
        while not self.ended(call):
            self.until(lambda taken=taken: self.ended(call) or len(self._portions(call)) > taken)
            for portion in self._portions(call)[taken:]:
                self.take(call, len(portion.packs))
                taken += 1
        end = self.end(call)
        if isinstance(end, Raised) and end.failure is Failure.MISSING:
            return []
        assert isinstance(end, Returned), end
        return [message for portion in self._portions(call) for message in messages_of(stream, portion)]

    def _portions(self, call: int) -> list[ReadChunk]:
        return [outcome for outcome in self.outcomes.get(call, []) if isinstance(outcome, ReadChunk)]

    def hurt(self) -> None:
        for instance in list(self.sessions):
            self.give(SessionHurt(instance))


def large_cluster() -> Cluster:
    """Three nodes whose segments have room for large packs."""
    before, journal_stage.SEGMENT_BYTES = journal_stage.SEGMENT_BYTES, 8 << 20
    try:
        made = Cluster(3)
        made.elect()
        return made
    finally:
        journal_stage.SEGMENT_BYTES = before


__all__ = ["ADMIN", "CLUSTER", "Bench", "Cluster", "large_cluster"]


def values(bench: Bench, stream: str = "orders") -> list[bytes]:
    return [message.value for message in bench.messages(stream)]
