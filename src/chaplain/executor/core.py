"""The executor of one node: gives agreed statements to databases, answers clients, and compares with other executors.

Decides which database gets which message and when a question may be answered. The journal tells it of every message
that was agreed (`executed`); databases are the host's, reached by errands. Refuses to know SQL.

Invariants: only agreed messages are applied, in order, each once; one `Apply` at a time is under way for a database; an
executor that has stopped applies nothing more and answers no question; who has not the role answers none either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias, assert_never, get_args

from chaplain.core import (
    Drained,
    Persist,
    Persisted,
    PersistFailed,
    Report,
    Requested,
    Settled,
    Stopping,
    Withdrawn,
    Woken,
    soonest,
)
from chaplain.errors import Malformed
from chaplain.executor import claims, messages
from chaplain.executor.apply_queue import ApplyPhase, ApplyQueue, lanes_of
from chaplain.executor.claims import Claims
from chaplain.executor.divergence import FingerprintMismatch
from chaplain.executor.dry_runs import Rehearsals
from chaplain.executor.events import (
    Applied,
    Apply,
    BackRead,
    Cleared,
    CopyTaken,
    DatabaseChecked,
    DatabaseKept,
    DatabaseOpened,
    ExecutorAnswer,
    ExecutorErrand,
    KeptRead,
    Looked,
    OpenDatabase,
    ReadBack,
    Tried,
    Work,
)
from chaplain.executor.integrity import IntegrityChecks
from chaplain.executor.messages import AskCopy, AskReach, CopyPiece, PeerMessage, Print, Reach, WereRead
from chaplain.executor.queries import JournalView, ReadQueries
from chaplain.executor.snapshots import Copying
from chaplain.executor.status import fingerprints, of_feeds
from chaplain.gossip.events import GossipParcel, MemberChanged
from chaplain.gossip.layer_api import UpperInput
from chaplain.journal.clients.subscriptions import whole_messages
from chaplain.journal.events import Rehearse, Rehearsed
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.records import LogPosition
from chaplain.journal.model.results import AppliedMessage, ConfigVerdict
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.rights import NO_ROLE, NOT_EXECUTOR
from chaplain.segment.record import Kind, Record
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

DATABASES_MAX = 64
READ_BYTES_MAX = 1024 * 1024
"""Octets of the log read at a time."""
ANNOUNCE_NS = 1_000_000_000
"""How often fingerprints are compared while messages are applied."""
PAUSE_NS = 1_000_000_000
NO_DATABASE = "this node has no databases: ask another"

ExecutorInput: TypeAlias = UpperInput | Rehearse | ExecutorAnswer
ExecutorEffect: TypeAlias = Whisper | Settled | Report | Persist | Rehearsed | ExecutorErrand


class ExecutorCore:
    errands = get_args(ExecutorErrand)
    """What its host does for it beside what hosts do for every layer."""
    follows_journal = True
    answers = get_args(ExecutorAnswer)

    def __init__(
        self,
        identifier: int,
        node: int,
        *,
        bare: bool = False,
        stopped_bytes_max: int = 0,
        given_up: bytes | None = None,
        given_up_file: str = claims.FILE,
    ) -> None:
        """A bare executor has no databases: it only reports to the others how far the order is.

        `stopped_bytes_max` bounds the log that is kept for stopped executors (`claims`); `given_up` is what its file
        contains.
        """
        self.bare = bare
        self.counts: Counter[str] = Counter()
        self._identifier = identifier
        self._node = node
        self._journal: JournalView | None = None
        self._sessions: dict[bytes, bytes] = {}
        """The instance that each key is reached by."""
        self._feeds: dict[str, ApplyQueue] = {}
        self._owners: dict[int, bytes] = {}
        """The identity of each lane. Lanes come and go; what they wrote may be applied later."""
        self._settled = 0
        self._questions = ReadQueries(node, self._feeds, self._tell_all)
        self._rehearsals = Rehearsals(node, self._feeds, self.counts)
        self._copying = Copying(self._tell, self._peers)
        self._checking = IntegrityChecks(self.counts)
        self._claims = Claims(self.counts, stopped_bytes_max, given_up, given_up_file)
        self._backs: dict[int, ApplyQueue] = {}
        """Reads of the log that are under way, by token."""
        self._token = 0
        self._announced: dict[str, int] = {}
        self._announce_ns: int | None = None
        self._out: list[ExecutorEffect] = []

    def attach(self, journal: JournalView) -> None:
        """From now on, work: the journal has told everything that its disk holds."""
        self._journal = journal
        for lane, acl in journal.base.owners.items():
            self._owners.setdefault(lane, acl)
        for stream, index in () if self.bare else journal.base.databases.items():
            feed = self._feeds.get(stream) or self._add_feed(stream)
            feed.begin(index)
            if journal.first_offset(stream):
                feed.begin(1)  # some of it went from the log, perhaps statements: what it has is not to be begun with

    def first_needed(self) -> int:
        """The first message that the log must keep: it is in no copy of its database on disk."""
        return min((feed.first_needed() for feed in self._feeds.values()), default=1 << 62)

    def _add_feed(self, stream: str) -> ApplyQueue:
        feed = self._feeds[stream] = ApplyQueue(stream, self._executors, self._claims.given_up(stream))
        return feed

    # From the journal, whenever it has carried out a message; before `attach`, those of its disk.

    def executed(self, executed: AppliedMessage) -> None:
        self._settled = executed.position.index
        if self.bare:
            return
        for entry in executed.verdict.entries:
            if isinstance(entry, ConfigVerdict) and entry.client_id:
                self._owners[entry.client_id] = entry.acl
        for stream, batches in _batches(executed.batches).items():
            feed = self._feeds.get(stream)
            if feed is None and len(self._feeds) < DATABASES_MAX:
                feed = self._add_feed(stream)
            if feed is not None:
                feed.touch(executed.position.index)
                if self._journal is not None:
                    feed.offer(self._work(executed.position, batches))

    def _work(self, moment: LogPosition, batches: list[Record]) -> Work:
        bodies = tuple((batch.first_offset, bytes(batch.body)) for batch in batches)
        lanes = dict.fromkeys(lane for _, body in bodies for lane in lanes_of(body))
        owners = tuple((lane, self._owners.get(lane, b"")) for lane in lanes)
        return Work(moment.index, moment.timestamp_ns, moment.hash, bodies, owners)

    # As a layer of a node.

    def deadline(self) -> int | None:
        times: list[int | None] = [feed.pause_ns for feed in self._feeds.values() if feed.pause_ns]
        times += [self._announce_ns, self._rehearsals.due_ns(), self._copying.due_ns, self._claims.due_ns]
        return soonest(times)

    def step(self, now_ns: int, event: ExecutorInput) -> list[ExecutorEffect]:
        match event:
            case Drained():
                self._drained(now_ns)
            case Requested():
                self._requested(event)
            case Withdrawn():
                self._questions.withdrawn(event.call)
            case DatabaseOpened():
                self._opened(event)
            case Applied():
                self._applied(now_ns, event)
            case Looked():
                stream = self._questions.looked(event)
                if stream and event.kind == "stopped":
                    self._checking.doubt(self._feeds[stream])
            case BackRead():
                self._back_read(now_ns, event)
            case Rehearse():
                self._rehearsals.wanted(now_ns, event)
            case Tried():
                self._feeds[event.stream].give_back()
                self._rehearsals.tried(event)
                self._pump(now_ns, self._feeds[event.stream])
            case DatabaseKept():
                self._copying.kept(self._feeds[event.stream], event)
                if event.damage:
                    self._checking.doubt(self._feeds[event.stream])
            case DatabaseChecked():
                self._checking.checked(self._feeds[event.stream], event)
            case KeptRead():
                self._copying.read(event, self._feeds)
            case CopyTaken():
                self._copying.taken(now_ns, event)
            case GossipParcel():
                self._told(now_ns, event)
            case Entered():
                self._entered(event)
            case Exited():
                self._exited(event)
            case Woken():
                self._woken(now_ns)
            case Persisted():
                self._claims.written(event.ticket)
            case Cleared() | MemberChanged() | PersistFailed() | Stopping():
                pass
            case _:
                assert_never(event)
        for part in (self._questions, self._rehearsals, self._copying, self._checking, self._claims):
            self._out += part.effects
            part.effects.clear()
        effects, self._out = self._out, []
        return effects

    def _requested(self, event: Requested) -> None:
        assert self._journal is not None
        if self.bare or not self._serves(self._journal):
            reason = NO_DATABASE if self.bare else NO_ROLE
            self._out.append(Settled(event.call, b"", NOT_EXECUTOR, reason))
        else:
            self._questions.requested(self._journal, event)

    def _serves(self, journal: JournalView) -> bool:
        """Whether this node has the role, and has caught up: as for those who read the journal here."""
        placed = journal.assembly.node(self._node)
        return placed is not None and placed.executor == Stage.LIVE

    def _drained(self, now_ns: int) -> None:
        if self._journal is None:
            return
        through = self._journal.keep_through
        for feed in self._feeds.values():
            self._pump(now_ns, feed)
            if through:
                self._copying.keep(feed, through)
            if feed.is_stuck:
                self._claims.watch(now_ns)
        if not self.bare and not self._serves(self._journal):
            self._questions.dismiss(NOT_EXECUTOR, NO_ROLE)
        self._questions.resolve(self._journal, self._settled)

    # Feeding databases.

    def _pump(self, now_ns: int, feed: ApplyQueue) -> None:
        if feed.phase is ApplyPhase.CLOSED:
            feed.phase = ApplyPhase.OPENING
            self._out.append(OpenDatabase(feed.stream))
        self._checking.pump(feed)
        if feed.phase is ApplyPhase.IDLE and feed.needs_copy:
            self._copying.want(now_ns, feed)
            return
        works = feed.hand_over()
        if works:
            self._out.append(Apply(feed.stream, works))
        self._rehearsals.pump(now_ns, feed)
        wanted = feed.wanted()
        if wanted is None or feed.reading or not feed.is_open or not feed.has_room or now_ns < feed.pause_ns:
            return
        assert self._journal is not None
        if wanted < self._journal.first:
            self._copying.want(now_ns, feed)
            return
        span = self._journal.locate(wanted, READ_BYTES_MAX)
        if span is not None:  # else agreed, but not yet on this disk
            self._token += 1
            feed.reading, feed.pause_ns = self._token, 0
            self._backs[feed.reading] = feed
            self._out.append(ReadBack(feed.reading, *span))

    def _back_read(self, now_ns: int, event: BackRead) -> None:
        feed = self._backs.pop(event.token)
        feed.reading = 0
        first = feed.wanted()
        if first is None or not feed.is_open:
            return
        for body, records in whole_messages(event.records, first):
            batches = _batches(records).get(feed.stream)
            if batches is not None and body.index <= self._settled:
                moment = LogPosition(body.index, body.regime, body.timestamp_ns, records[0].chain_hash)
                if feed.wanted() != body.index or not feed.take(self._work(moment, batches)):
                    break
        if feed.wanted() == first:
            feed.pause_ns = now_ns + PAUSE_NS
        self._pump(now_ns, feed)

    def _opened(self, event: DatabaseOpened) -> None:
        feed = self._feeds[event.stream]
        if feed.phase is ApplyPhase.STOPPED:  # while a copy was put in place
            return
        if event.failed:
            self._stop(feed, event.failed)
            return
        feed.opened(event.index, event.fingerprint, event.kept)
        self._copying.opened(feed)
        self._checking.opened(feed, event)
        self._questions.opened(event)

    def _applied(self, now_ns: int, event: Applied) -> None:
        feed = self._feeds[event.stream]
        feed.give_back()
        if not feed.is_open:  # it was stopped, or found to be damaged, meanwhile
            return
        for step in event.steps:
            self.counts["requests"] += step.requests
            self.counts["failures"] += step.failures
            feed.did(step)
            self._found(feed, feed.comparison.reached(step.index, step.fingerprint))
        self.counts["messages"] += len(event.steps)
        if event.failed:
            self._stop(feed, event.failed)
        if self._announce_ns is None:
            self._announce_ns = now_ns + ANNOUNCE_NS
        if feed.phase is ApplyPhase.IDLE:
            self._pump(now_ns, feed)
        self._prune()

    def _prune(self) -> None:
        """Lanes that are over, once what they wrote is applied."""
        assert self._journal is not None
        if len(self._owners) > 2 * len(self._journal.lanes) + 1024 and not any(
            feed.behind for feed in self._feeds.values()
        ):
            self._owners = {lane: acl for lane, acl in self._owners.items() if lane in self._journal.lanes}

    def _stop(self, feed: ApplyQueue, reason: str) -> None:
        feed.stop(reason)
        detail: dict[str, str | int] = {"stream": feed.stream, "reason": reason, "index": feed.applied}
        self._out.append(Report("executor stopped", detail=detail))
        self._checking.doubt(feed)

    # Comparing.

    def _found(self, feed: ApplyQueue, finding: FingerprintMismatch | None) -> None:
        if finding is None:
            return
        nodes = ", ".join(map(str, finding.nodes))
        self._out.append(
            Report("executors differ", nodes, {"stream": feed.stream, "index": finding.index, "node": self._node})
        )
        if finding.diverged and feed.phase is not ApplyPhase.STOPPED:
            self._stop(feed, f"node {self._node} differs from node {nodes} after message {finding.index}")

    def _woken(self, now_ns: int) -> None:
        self._rehearsals.woken(now_ns)
        self._copying.woken(now_ns)
        if self._journal is not None:
            self._claims.woken(now_ns, self._feeds.values(), self._journal)
        if self._announce_ns is not None and now_ns >= self._announce_ns:
            self._announce_ns = None
            for feed in self._feeds.values():
                if feed.applied > self._announced.get(feed.stream, 0) and feed.phase is not ApplyPhase.STOPPED:
                    self._announced[feed.stream] = feed.applied
                    self._tell_all(Print(feed.stream, feed.applied, feed.fingerprint))
        for feed in self._feeds.values():
            if feed.pause_ns and now_ns >= feed.pause_ns:
                feed.pause_ns = 0
                self._pump(now_ns, feed)

    # Other executors.

    def _executors(self) -> tuple[int, ...]:
        """The nodes that have the role, this one among them."""
        assert self._journal is not None
        return tuple(placed.node for placed in self._journal.assembly.nodes if placed.executor == Stage.LIVE)

    def _node_of(self, key: bytes) -> int | None:
        assert self._journal is not None
        members = self._journal.assembly
        return next((one.node for one in members.nodes if one.key == key and members.is_member(one)), None)

    def _entered(self, event: Entered) -> None:
        key = event.peer.key
        self._sessions[key] = event.peer.instance
        for token in self._questions.open_rounds():
            self._tell(key, AskReach(token))
        for were in self._questions.remembered():
            self._tell(key, were)

    def _exited(self, event: Exited) -> None:
        if self._sessions.get(event.peer.key) == event.peer.instance:
            del self._sessions[event.peer.key]

    def _peers(self) -> list[bytes]:
        """Other executors that are connected."""
        assert self._journal is not None
        live = [one.key for one in self._journal.assembly.nodes if one.executor == Stage.LIVE]
        return [key for key in live if key in self._sessions]

    def _tell(self, key: bytes, message: PeerMessage, payload: bytes = b"") -> None:
        if self._node_of(key) is not None and key in self._sessions:
            content = parcel.encode(Parcel(self._identifier, Layer.EXECUTOR, messages.encode(message), payload))
            self._out.append(Whisper(self._sessions[key], content))

    def _tell_all(self, message: PeerMessage) -> None:
        for key in sorted(self._sessions):
            self._tell(key, message)

    def _told(self, now_ns: int, event: GossipParcel) -> None:
        assert self._journal is not None
        node = self._node_of(event.peer.key)
        if node is None:
            return
        try:
            message = messages.decode_peer(event.parcel.body)
        except Malformed as wrong:
            self._out.append(Report("malformed executor parcel", str(node), {"reason": str(wrong)}))
            return
        match message:
            case AskReach():
                reach = self._journal.reach
                if reach is not None:
                    self._tell(event.peer.key, Reach(message.token, reach))
            case Reach():
                self._questions.reached(self._journal, message.token, node, message.index)
            case Print():
                feed = self._feeds.get(message.stream)
                if feed is not None and len(message.fingerprint) == 32:
                    self._found(feed, feed.comparison.heard(node, message.index, message.fingerprint))
            case WereRead():
                self._questions.heard(message)
            case AskCopy():
                self._copying.asked(event.peer.key, message, self._feeds.get(message.stream))
            case CopyPiece():
                self._copying.came(now_ns, event.peer.key, message, event.parcel.payload)
            case _:
                assert_never(message)

    # For people.

    def gauges(self) -> dict[str, float]:
        stopped = sum(feed.phase is ApplyPhase.STOPPED for feed in self._feeds.values())
        return {} if self.bare else {"executor_stopped": stopped}

    def status(self) -> dict[str, object]:
        if self._journal is None:
            return {}
        found: dict[str, object] = {"databases": of_feeds(self._feeds)}
        prints = fingerprints(self._feeds, self._journal.fingerprints()) if self._feeds else None
        return found if prints is None else {**found, "fingerprints": prints}


def _batches(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Those with statements, by stream."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.kind == Kind.BATCH and lanes_of(record.body):
            found.setdefault(record.stream, []).append(record)
    return found
