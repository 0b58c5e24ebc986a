"""What clients ask an executor: results of their requests, and queries. Each waits for the position it is about.

A fresh query is answered after everything that was agreed when it came: a quorum of the serializers is asked how far
they hold the order; whatever was agreed is held by one of them. Decides who may ask what, and when it may be answered.

Invariants: every call is settled once, or withdrawn; nobody sees another's results, or a stream it may not read; what
waits is bounded.
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
"""Questions that wait for a position."""
LOOKING_MAX = 256
"""Questions that databases are given at a time."""


class JournalView(Protocol):
    """What the executor sees of its node's journal."""

    @property
    def clients(self) -> Mapping[bytes, ClientIdentity]: ...

    @property
    def lanes(self) -> Mapping[int, object]: ...

    @property
    def assembly(self) -> ClusterConfig: ...

    @property
    def reach(self) -> int | None:
        """The furthest message held here; None if that is in doubt."""
        ...

    def fingerprints(self) -> Mapping[int, bytes]:
        """Of the journal's own state, at some positions."""
        ...

    def locate(self, index: int, bytes_max: int, /) -> tuple[int, int] | None: ...

    @property
    def first(self) -> int:
        """The first message that is in the log."""
        ...

    def first_offset(self, stream: str, /) -> int:
        """The first of a stream that is in the log."""
        ...

    @property
    def keep_through(self) -> int:
        """Messages up to this one will be dropped, once databases are kept that have them; 0: none will."""
        ...

    def held_bytes(self, now_ns: int, index: int, /) -> int:
        """Octets of segments that could go if no executor needed the messages from this one on."""
        ...

    @property
    def base(self) -> CheckpointBase:
        """What this node began from."""
        ...


class Wait(Frozen, frozen=True):
    """A client's question, until this executor has reached a message."""

    call: int
    client: ClientIdentity
    message: AskResults | Query
    payload: bytes
    index: int
    quorum: Quorum | None = None
    """Who was asked how far the order might be."""


class _Round(msgspec.Struct):
    """A fresh question, until a majority has said how far the order might be."""

    wait: Wait
    reaches: dict[int, int]


QuestionEffect: TypeAlias = Settled | RunQuery | StopQuery | TakeResults | ClearResults


class ReadQueries:
    def __init__(self, node: int, feeds: Mapping[str, ApplyQueue], tell_all: Callable[[PeerMessage], None]) -> None:
        self._node = node
        self._feeds = feeds
        self._tell_all = tell_all
        self._waits: dict[int, Wait] = {}
        self._rounds: dict[int, _Round] = {}
        self._looking: dict[int, tuple[int, str]] = {}
        """Questions that a database is answering: the call, and the stream if it is a query."""
        self._token = 0
        self._read: dict[tuple[str, bytes, int], int] = {}
        """By stream, identity and lane: results up to this id were read, here or elsewhere. Databases remember it."""
        self.effects: list[QuestionEffect] = []

    # Asking.

    def requested(self, journal: JournalView, event: Requested) -> None:
        client = next((one for one in journal.clients.values() if _is(one, event.client)), None)
        try:
            message = messages.decode_client(event.body)
            if client is None:
                self._refuse(event.call, NO_RIGHT, f"{event.client} is no client of this journal")
            elif isinstance(message, ReadThrough):
                self._read_through(event.call, client, message)
            else:
                self._ask(journal, Wait(event.call, client, message, event.payload, message.index))
        except Malformed as wrong:
            self._refuse(event.call, "invalid", str(wrong))

    def _ask(self, journal: JournalView, wait: Wait) -> None:
        message = wait.message
        if len(self._waits) + len(self._rounds) >= WAITING_MAX:
            self._refuse(wait.call, "busy", f"{WAITING_MAX} questions wait already: ask again later")
        elif isinstance(message, Query) and not may_read(wait.client, message.stream):
            self._refuse(wait.call, NO_RIGHT, refusal(RequiredRight(Right.READ, message.stream)))
        elif isinstance(message, Query) and message.fresh:
            self._begin_round(journal, wait)
        else:
            self._waits[wait.call] = wait

    def _begin_round(self, journal: JournalView, wait: Wait) -> None:
        self._token += 1
        self._rounds[self._token] = _Round(wait, {})
        self._tell_all(AskReach(self._token))
        if journal.reach is not None:
            self.reached(journal, self._token, self._node, journal.reach)

    def reached(self, journal: JournalView, token: int, node: int, index: int) -> None:
        """A node holds the order up to there."""
        asked = self._rounds.get(token)
        if asked is None:
            return
        asked.reaches[node] = index
        quorum = journal.assembly.quorum
        if quorum.reached(asked.reaches):
            del self._rounds[token]
            index = max(asked.wait.index, *asked.reaches.values())
            self._waits[asked.wait.call] = msgspec.structs.replace(asked.wait, index=index, quorum=quorum)

    def open_rounds(self) -> list[int]:
        """Tokens of what is still asked; whoever comes is asked, too."""
        return list(self._rounds)

    def withdrawn(self, call: int) -> None:
        self._waits.pop(call, None)
        for token in [token for token, asked in self._rounds.items() if asked.wait.call == call]:
            del self._rounds[token]
        for token in [token for token, (waiting, _) in self._looking.items() if waiting == call]:
            _, stream = self._looking.pop(token)
            if stream:
                self.effects.append(StopQuery(token, stream))

    def dismiss(self, kind: str, reason: str) -> None:
        """Nothing more is answered here: whoever waits is told so, rather than kept for what may never come."""
        for call in [*self._waits, *(asked.wait.call for asked in self._rounds.values())]:
            self._refuse(call, kind, reason)
        self._waits.clear()
        self._rounds.clear()

    # Answering.

    def resolve(self, journal: JournalView, settled: int) -> None:
        """Answer what can be answered now that so much is agreed and applied here."""
        for wait in list(self._waits.values()):
            feed = self._feeds.get(wait.message.stream)
            if feed is not None and feed.phase is ApplyPhase.STOPPED:
                del self._waits[wait.call]
                reason = f"the executor of node {self._node} has stopped: {feed.trouble}; ask another node"
                self._refuse(wait.call, "stopped", reason)
            elif len(self._looking) >= LOOKING_MAX:
                return
            elif settled >= wait.index and (feed is None or (feed.is_open and feed.has_reached(wait.index))):
                del self._waits[wait.call]
                if wait.quorum in (None, journal.assembly.quorum):
                    self._look(wait, feed)
                else:
                    self._begin_round(journal, wait)  # others decide by now: those asked may not know the latest

    def _look(self, wait: Wait, feed: ApplyQueue | None) -> None:
        message = wait.message
        if feed is None:
            reason = f"stream {message.stream!r} has no database: no statement was executed on it"
            self._refuse(wait.call, "missing", reason)
            return
        self._token += 1
        self._looking[self._token] = (wait.call, message.stream if isinstance(message, Query) else "")
        match message:
            case Query():
                self._look_with_statement(wait, message)
            case AskResults():
                ids = (message.client_id, message.first_id, message.last_id)
                # The clearing of what was read may still wait for its turn, or have come before the results did.
                read = () if message.client_id else self._read_of(message.stream, wait.client.acl)
                self.effects.append(TakeResults(self._token, message.stream, wait.client.acl, *ids, read))
            case _:
                assert_never(message)

    def _look_with_statement(self, wait: Wait, message: Query) -> None:
        try:
            statement = decode_statement(wait.payload)
        except Malformed as wrong:
            del self._looking[self._token]
            self._refuse(wait.call, "invalid", str(wrong))
            return
        self.effects.append(RunQuery(self._token, message.stream, statement.sql, statement.parameters))

    def looked(self, event: Looked) -> str:
        """Gives the stream, if it was a query."""
        call, stream = self._looking.pop(event.token, (None, ""))
        if call is not None:
            self.effects.append(Settled(call, event.payload, event.kind, event.reason))
        return stream

    def _refuse(self, call: int, kind: str, reason: str) -> None:
        self.effects.append(Settled(call, b"", kind, reason))

    # Results that were read.

    def _read_through(self, call: int, client: ClientIdentity, message: ReadThrough) -> None:
        were = WereRead(message.stream, client.acl, message.through)
        self.clear(were)
        self._tell_all(were)
        self.effects.append(Settled(call))

    def clear(self, were: WereRead) -> None:
        """Here or at another executor, a client has read its results."""
        self._remember(were)
        feed = self._feeds.get(were.stream)
        if feed is not None and feed.is_open:
            self.effects.append(ClearResults(were.stream, were.acl, were.through))

    def heard(self, were: WereRead) -> None:
        """Another executor tells all that it remembers whenever we meet: most of it is known."""
        known, of = self._read, (were.stream, were.acl)
        news = tuple((lane, last) for lane, last in were.through if last > known.get((*of, lane), 0))
        if news:
            self.clear(msgspec.structs.replace(were, through=news))

    def opened(self, event: DatabaseOpened) -> None:
        """What was read before this node started is told; what was heard before the database was open is kept in it."""
        for were in self._remembered(event.stream):
            self.effects.append(ClearResults(were.stream, were.acl, were.through))
        for acl, lane, last in event.read:
            self._remember(WereRead(event.stream, acl, ((lane, last),)))
        for were in self._remembered(event.stream) if event.read else ():
            self._tell_all(were)

    def _remember(self, were: WereRead) -> None:
        for lane, last_id in were.through:
            key = (were.stream, were.acl, lane)
            self._read[key] = max(last_id, self._read.pop(key, 0))
        while len(self._read) > READ_MAX:
            del self._read[next(iter(self._read))]

    def _read_of(self, stream: str, acl: bytes) -> tuple[tuple[int, int], ...]:
        return tuple((lane, last) for (name, owner, lane), last in self._read.items() if (name, owner) == (stream, acl))

    def remembered(self) -> list[WereRead]:
        """For an executor that was away."""
        whose = dict.fromkeys((stream, acl) for stream, acl, _ in self._read)
        return [WereRead(stream, acl, self._read_of(stream, acl)) for stream, acl in whose]

    def _remembered(self, stream: str) -> list[WereRead]:
        return [were for were in self.remembered() if were.stream == stream]


def _is(client: ClientIdentity, name: str) -> bool:
    return client.name == name and client.status == IdentityStatus.ACTIVE
