"""Client queries at an executor: results of requests, and SQL queries. Each waits until the executor reaches a
position.

A fresh query sees everything that was agreed when it arrived (linearizable read). The executor asks a quorum of the
serializers how far their logs reach; at least one of them has every agreed message. This module decides which client
may send which query, and when the query may be answered.

Invariants: every call is settled exactly once or withdrawn; a client cannot read the results of another client, or a
stream without the right to read it; waiting queries are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, assert_never

import msgspec

from chaplain.core import Frozen, Requested, Settled
from chaplain.errors import Malformed
from chaplain.executor import messages
from chaplain.executor.apply_queue import ApplyPhase, ApplyQueue
from chaplain.executor.events import (
    READ_MAX,
    ClearResults,
    DatabaseOpened,
    Looked,
    RunQuery,
    StopQuery,
    TakeResults,
)
from chaplain.executor.messages import AskReach, AskResults, PeerMessage, Query, ReadThrough, WereRead
from chaplain.executor.statement import decode_statement
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.quorum import Quorum
from chaplain.journal.model.records import ClientIdentity, IdentityStatus
from chaplain.journal.snapshots.checkpoint import CheckpointBase
from chaplain.rights import NO_RIGHT, RequiredRight, Right, may_read, refusal

WAITING_MAX = 4096
"""Queries that wait for a position; further ones are refused as busy."""
RUNNING_MAX = 256
"""Queries that databases run at a time."""


class JournalView(Protocol):
    """The part of its node's journal that the executor uses."""

    @property
    def clients(self) -> Mapping[bytes, ClientIdentity]: ...

    @property
    def lanes(self) -> Mapping[int, object]: ...

    @property
    def cluster_config(self) -> ClusterConfig: ...

    @property
    def reach(self) -> int | None:
        """The last message in this node's log; None if that is uncertain."""
        ...

    def fingerprints(self) -> Mapping[int, bytes]:
        """Fingerprints of the journal's own state, by position."""
        ...

    def locate(self, index: int, bytes_max: int, /) -> tuple[int, int] | None: ...

    @property
    def first(self) -> int:
        """The first message in the log."""
        ...

    def first_offset(self, stream: str, /) -> int:
        """The first offset of the stream in the log."""
        ...

    @property
    def keep_through(self) -> int:
        """Messages up to this one are dropped once copies of the databases contain them; 0: none are."""
        ...

    def held_bytes(self, now_ns: int, index: int, /) -> int:
        """Bytes of segments that could be dropped if no executor needed the messages from this one on."""
        ...

    @property
    def base(self) -> CheckpointBase:
        """The checkpoint that this node started from."""
        ...


class WaitingQuery(Frozen, frozen=True):
    """A client's query that waits until this executor has applied message `index`."""

    call: int
    client: ClientIdentity
    message: AskResults | Query
    payload: bytes
    index: int
    quorum: Quorum | None = None
    """The quorum that was asked how far the log reaches."""


class _Round(msgspec.Struct):
    """A fresh query that waits for a quorum to report how far the log reaches."""

    wait: WaitingQuery
    reaches: dict[int, int]


QueryEffect: TypeAlias = Settled | RunQuery | StopQuery | TakeResults | ClearResults


class ReadQueries:
    def __init__(self, node: int, queues: Mapping[str, ApplyQueue], broadcast: Callable[[PeerMessage], None]) -> None:
        self._node = node
        self._queues = queues
        self._broadcast = broadcast
        self._waiting: dict[int, WaitingQuery] = {}
        self._rounds: dict[int, _Round] = {}
        self._running: dict[int, tuple[int, str]] = {}
        """Queries in progress at a database: the call, and the stream if it is an SQL query."""
        self._token = 0
        self._read: dict[tuple[str, bytes, int], int] = {}
        """By stream, identity and lane: results up to this id were read, at any executor. Databases store it, too."""
        self.effects: list[QueryEffect] = []

    # Admission.

    def requested(self, journal: JournalView, event: Requested) -> None:
        client = next((one for one in journal.clients.values() if _is(one, event.client)), None)
        try:
            message = messages.decode_client(event.body)
            if client is None:
                self._refuse(event.call, NO_RIGHT, f"{event.client} is no client of this journal")
            elif isinstance(message, ReadThrough):
                self._read_through(event.call, client, message)
            else:
                self._admit(journal, WaitingQuery(event.call, client, message, event.payload, message.index))
        except Malformed as wrong:
            self._refuse(event.call, "invalid", str(wrong))

    def _admit(self, journal: JournalView, wait: WaitingQuery) -> None:
        message = wait.message
        if len(self._waiting) + len(self._rounds) >= WAITING_MAX:
            self._refuse(wait.call, "busy", f"{WAITING_MAX} questions wait already: ask again later")
        elif isinstance(message, Query) and not may_read(wait.client, message.stream):
            self._refuse(wait.call, NO_RIGHT, refusal(RequiredRight(Right.READ, message.stream)))
        elif isinstance(message, Query) and message.fresh:
            self._begin_round(journal, wait)
        else:
            self._waiting[wait.call] = wait

    def _begin_round(self, journal: JournalView, wait: WaitingQuery) -> None:
        self._token += 1
        self._rounds[self._token] = _Round(wait, {})
        self._broadcast(AskReach(self._token))
        if journal.reach is not None:
            self.reached(journal, self._token, self._node, journal.reach)

    def reached(self, journal: JournalView, token: int, node: int, index: int) -> None:
        """A node reports that its log reaches this message."""
        asked = self._rounds.get(token)
        if asked is None:
            return
        asked.reaches[node] = index
        quorum = journal.cluster_config.quorum
        if quorum.reached(asked.reaches):
            del self._rounds[token]
            index = max(asked.wait.index, *asked.reaches.values())
            self._waiting[asked.wait.call] = msgspec.structs.replace(asked.wait, index=index, quorum=quorum)

    def open_rounds(self) -> list[int]:
        """Tokens of unfinished rounds; peers that connect later are asked, too."""
        return list(self._rounds)

    def withdrawn(self, call: int) -> None:
        self._waiting.pop(call, None)
        for token in [token for token, asked in self._rounds.items() if asked.wait.call == call]:
            del self._rounds[token]
        for token in [token for token, (waiting, _) in self._running.items() if waiting == call]:
            _, stream = self._running.pop(token)
            if stream:
                self.effects.append(StopQuery(token, stream))

    def refuse_all(self, kind: str, reason: str) -> None:
        """Refuse all waiting queries: this node answers no more, and they might wait for ever."""
        for call in [*self._waiting, *(asked.wait.call for asked in self._rounds.values())]:
            self._refuse(call, kind, reason)
        self._waiting.clear()
        self._rounds.clear()

    # Answers.

    def resolve(self, journal: JournalView, settled: int) -> None:
        """Run the queries whose position is agreed and applied here."""
        for wait in list(self._waiting.values()):
            queue = self._queues.get(wait.message.stream)
            if queue is not None and queue.phase is ApplyPhase.STOPPED:
                del self._waiting[wait.call]
                reason = f"the executor of node {self._node} has stopped: {queue.trouble}; ask another node"
                self._refuse(wait.call, "stopped", reason)
            elif len(self._running) >= RUNNING_MAX:
                return
            elif settled >= wait.index and (queue is None or (queue.is_open and queue.has_reached(wait.index))):
                del self._waiting[wait.call]
                if wait.quorum in (None, journal.cluster_config.quorum):
                    self._run(wait, queue)
                else:
                    # The quorum has changed since: the nodes that were asked may not hold the latest message.
                    self._begin_round(journal, wait)

    def _run(self, wait: WaitingQuery, queue: ApplyQueue | None) -> None:
        message = wait.message
        if queue is None:
            reason = f"stream {message.stream!r} has no database: no statement was executed on it"
            self._refuse(wait.call, "missing", reason)
            return
        self._token += 1
        self._running[self._token] = (wait.call, message.stream if isinstance(message, Query) else "")
        match message:
            case Query():
                self._run_query(wait, message)
            case AskResults():
                ids = (message.client_id, message.first_id, message.last_id)
                # The deletion of read results may still be queued, or may have run before the results were written.
                read = () if message.client_id else self._read_of(message.stream, wait.client.acl)
                self.effects.append(TakeResults(self._token, message.stream, wait.client.acl, *ids, read))
            case _:
                assert_never(message)

    def _run_query(self, wait: WaitingQuery, message: Query) -> None:
        try:
            statement = decode_statement(wait.payload)
        except Malformed as wrong:
            del self._running[self._token]
            self._refuse(wait.call, "invalid", str(wrong))
            return
        self.effects.append(RunQuery(self._token, message.stream, statement.sql, statement.parameters))

    def on_result(self, event: Looked) -> str:
        """Settle the call. Return the stream if it was an SQL query."""
        call, stream = self._running.pop(event.token, (None, ""))
        if call is not None:
            self.effects.append(Settled(call, event.payload, event.kind, event.reason))
        return stream

    def _refuse(self, call: int, kind: str, reason: str) -> None:
        self.effects.append(Settled(call, b"", kind, reason))

    # Results that clients have read.

    def _read_through(self, call: int, client: ClientIdentity, message: ReadThrough) -> None:
        were_read = WereRead(message.stream, client.acl, message.through)
        self.clear(were_read)
        self._broadcast(were_read)
        self.effects.append(Settled(call))

    def clear(self, were_read: WereRead) -> None:
        """A client has read results, here or at another executor: delete them."""
        self._remember(were_read)
        queue = self._queues.get(were_read.stream)
        if queue is not None and queue.is_open:
            self.effects.append(ClearResults(were_read.stream, were_read.acl, were_read.through))

    def on_were_read(self, were_read: WereRead) -> None:
        """Another executor reports all read positions it remembers whenever it connects; most of them are
        known here.
        """
        known, of = self._read, (were_read.stream, were_read.acl)
        news = tuple((lane, last) for lane, last in were_read.through if last > known.get((*of, lane), 0))
        if news:
            self.clear(msgspec.structs.replace(were_read, through=news))

    def opened(self, event: DatabaseOpened) -> None:
        """Merge the read positions stored in the database with those received before it was open, and send them to the
        others.
        """
        for were_read in self._remembered(event.stream):
            self.effects.append(ClearResults(were_read.stream, were_read.acl, were_read.through))
        for acl, lane, last in event.read:
            self._remember(WereRead(event.stream, acl, ((lane, last),)))
        for were_read in self._remembered(event.stream) if event.read else ():
            self._broadcast(were_read)

    def _remember(self, were_read: WereRead) -> None:
        for lane, last_id in were_read.through:
            key = (were_read.stream, were_read.acl, lane)
            self._read[key] = max(last_id, self._read.pop(key, 0))
        while len(self._read) > READ_MAX:
            del self._read[next(iter(self._read))]

    def _read_of(self, stream: str, acl: bytes) -> tuple[tuple[int, int], ...]:
        return tuple((lane, last) for (name, owner, lane), last in self._read.items() if (name, owner) == (stream, acl))

    def remembered(self) -> list[WereRead]:
        """All known read positions, for an executor that was away."""
        whose = dict.fromkeys((stream, acl) for stream, acl, _ in self._read)
        return [WereRead(stream, acl, self._read_of(stream, acl)) for stream, acl in whose]

    def _remembered(self, stream: str) -> list[WereRead]:
        return [were_read for were_read in self.remembered() if were_read.stream == stream]


def _is(client: ClientIdentity, name: str) -> bool:
    return client.name == name and client.status == IdentityStatus.ACTIVE
