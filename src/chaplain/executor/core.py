"""The executor of one node: passes agreed statements to databases, answers clients, and compares itself with other
executors.

Decides which messages each database gets, and when a query may be answered. Every agreed message is an input
(`AppliedMessage`); messages found on disk at the start are passed to `replay`. The host runs the databases; the core
reaches them through errands. The core does not know SQL.

Invariants: only agreed messages are applied, in order, each once; at most one `Apply` per database is in flight; a
stopped executor applies nothing and answers no query; a node without the executor role answers no query either.
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
from chaplain.executor.dry_runs import DryRuns
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
from chaplain.executor.snapshots import SnapshotTransfer
from chaplain.executor.status import fingerprints, of_queues
from chaplain.gossip.events import GossipParcel, MemberChanged
from chaplain.gossip.layer_api import LayerCore, LayerInput
from chaplain.journal.clients.subscriptions import whole_messages
from chaplain.journal.events import DryRun, DryRunDone
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.records import LogPosition
from chaplain.journal.model.results import AppliedMessage, ConfigVerdict
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.rights import NO_ROLE, NOT_EXECUTOR
from chaplain.segment.record import Kind, Record
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

DATABASES_MAX = 64
"""Streams with a database on one node; statements for further streams are not executed."""
READ_BYTES_MAX = 1024 * 1024
"""Bytes of the log read at a time."""
ANNOUNCE_NS = 1_000_000_000
"""Interval at which fingerprints are sent to other executors while messages are applied."""
PAUSE_NS = 1_000_000_000
"""Pause after a read of the log that brought no progress."""
NO_DATABASE = "this node has no databases: ask another"

ExecutorInput: TypeAlias = LayerInput | AppliedMessage | DryRun | ExecutorAnswer
ExecutorEffect: TypeAlias = Whisper | Settled | Report | Persist | DryRunDone | ExecutorErrand


class ExecutorCore(LayerCore):
    host_requests = get_args(ExecutorErrand)
    host_answers = get_args(ExecutorAnswer)
    follows_journal = True

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
        """A bare executor has no databases: it only reports the end of this node's log to the others.

        `stopped_bytes_max` bounds the log that is retained for stopped executors (`claims`); `given_up` is the content
        of the claims file.
        """
        self.bare = bare
        self.counts: Counter[str] = Counter()
        self._identifier = identifier
        self._node = node
        self._journal: JournalView | None = None
        self._sessions: dict[bytes, bytes] = {}
        """By key: the instance of the peer's session."""
        self._queues: dict[str, ApplyQueue] = {}
        self._owners: dict[int, bytes] = {}
        """The identity of each lane. Lanes end, but their messages may be applied later."""
        self._settled = 0
        self._queries = ReadQueries(node, self._queues, self._broadcast)
        self._dry_runs = DryRuns(node, self._queues, self.counts)
        self._transfer = SnapshotTransfer(self._send, self._peers)
        self._integrity = IntegrityChecks(self.counts)
        self._claims = Claims(self.counts, stopped_bytes_max, given_up, given_up_file)
        self._log_reads: dict[int, ApplyQueue] = {}
        """Log reads in flight, by token."""
        self._token = 0
        self._announced: dict[str, int] = {}
        self._announce_ns: int | None = None
        self._out: list[ExecutorEffect] = []

    def attach(self, journal: JournalView) -> None:
        """Start working: the journal has reported everything on its disk."""
        self._journal = journal
        for lane, acl in journal.base.owners.items():
            self._owners.setdefault(lane, acl)
        for stream, index in () if self.bare else journal.base.databases.items():
            queue = self._queues.get(stream) or self._add_queue(stream)
            queue.start_at(index)
            if journal.first_offset(stream):
                queue.start_at(1)  # the log's start is gone, perhaps with statements: a new database needs a copy

    def first_needed(self) -> int:
        """The first message that the log must retain, because no database copy on disk contains it."""
        return min((queue.first_needed() for queue in self._queues.values()), default=1 << 62)

    def _add_queue(self, stream: str) -> ApplyQueue:
        queue = self._queues[stream] = ApplyQueue(stream, self._executors, self._claims.given_up(stream))
        return queue

    def replay(self, executed: AppliedMessage) -> None:
        """The journal found this message on its disk. Called before `attach`, in the order of the messages."""
        assert self._journal is None, "a message that was applied after the start is an input of `step`"
        self._add_message(executed)

    def _add_message(self, executed: AppliedMessage) -> None:
        self._settled = executed.position.index
        if self.bare:
            return
        for entry in executed.verdict.entries:
            if isinstance(entry, ConfigVerdict) and entry.client_id:
                self._owners[entry.client_id] = entry.acl
        for stream, batches in _batches(executed.batches).items():
            queue = self._queues.get(stream)
            if queue is None and len(self._queues) < DATABASES_MAX:
                queue = self._add_queue(stream)
            if queue is not None:
                queue.add_message(executed.position.index)
                if self._journal is not None:
                    queue.offer(self._work(executed.position, batches))

    def _work(self, position: LogPosition, batches: list[Record]) -> Work:
        bodies = tuple((batch.first_offset, bytes(batch.body)) for batch in batches)
        lanes = dict.fromkeys(lane for _, body in bodies for lane in lanes_of(body))
        owners = tuple((lane, self._owners.get(lane, b"")) for lane in lanes)
        return Work(position.index, position.timestamp_ns, position.hash, bodies, owners)

    # The layer interface.

    def deadline(self) -> int | None:
        times: list[int | None] = [queue.pause_ns for queue in self._queues.values() if queue.pause_ns]
        times += [self._announce_ns, self._dry_runs.due_ns(), self._transfer.due_ns, self._claims.due_ns]
        return soonest(times)

    def step(self, now_ns: int, event: ExecutorInput, /) -> list[ExecutorEffect]:
        match event:
            case Drained():
                self._drained(now_ns)
            case AppliedMessage():
                self._add_message(event)
            case Requested():
                self._requested(event)
            case Withdrawn():
                self._queries.withdrawn(event.call)
            case DatabaseOpened():
                self._opened(event)
            case Applied():
                self._applied(now_ns, event)
            case Looked():
                stream = self._queries.on_result(event)
                if stream and event.kind == "stopped":
                    self._integrity.request_check(self._queues[stream])
            case BackRead():
                self._back_read(now_ns, event)
            case DryRun():
                self._dry_runs.on_request(now_ns, event)
            case Tried():
                self._queues[event.stream].release()
                self._dry_runs.tried(event)
                self._advance(now_ns, self._queues[event.stream])
            case DatabaseKept():
                self._transfer.on_kept(self._queues[event.stream], event)
                if event.damage:
                    self._integrity.request_check(self._queues[event.stream])
            case DatabaseChecked():
                self._integrity.checked(self._queues[event.stream], event)
            case KeptRead():
                self._transfer.on_read(event, self._queues)
            case CopyTaken():
                self._transfer.on_written(now_ns, event)
            case GossipParcel():
                self._on_parcel(now_ns, event)
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
        return self._take_effects()

    def _take_effects(self) -> list[ExecutorEffect]:
        for part in (self._queries, self._dry_runs, self._transfer, self._integrity, self._claims):
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
            self._queries.requested(self._journal, event)

    def _serves(self, journal: JournalView) -> bool:
        """True if this node has the executor role and has caught up; readers of the journal follow the same rule."""
        placed = journal.cluster_config.node(self._node)
        return placed is not None and placed.executor == Stage.LIVE

    def _drained(self, now_ns: int) -> None:
        if self._journal is None:
            return
        through = self._journal.keep_through
        for queue in self._queues.values():
            self._advance(now_ns, queue)
            if through:
                self._transfer.keep_copy(queue, through)
            if queue.is_stuck:
                self._claims.watch(now_ns)
        if not self.bare and not self._serves(self._journal):
            self._queries.refuse_all(NOT_EXECUTOR, NO_ROLE)
        self._queries.resolve(self._journal, self._settled)

    # Applying messages.

    def _advance(self, now_ns: int, queue: ApplyQueue) -> None:
        """Do the next step for a database: open, rebuild, copy, apply, dry-run, or read more of the log."""
        if queue.phase is ApplyPhase.CLOSED:
            queue.phase = ApplyPhase.OPENING
            self._out.append(OpenDatabase(queue.stream))
        self._integrity.rebuild_if_damaged(queue)
        if queue.phase is ApplyPhase.IDLE and queue.needs_copy:
            self._transfer.start(now_ns, queue)
            return
        works = queue.next_batch()
        if works:
            self._out.append(Apply(queue.stream, works))
        self._dry_runs.run_next(now_ns, queue)
        wanted = queue.next_needed()
        if wanted is None or queue.reading or not queue.is_open or not queue.has_room or now_ns < queue.pause_ns:
            return
        assert self._journal is not None
        if wanted < self._journal.first:
            self._transfer.start(now_ns, queue)
            return
        span = self._journal.locate(wanted, READ_BYTES_MAX)
        if span is not None:  # None: the message is agreed, but not yet on this node's disk
            self._token += 1
            queue.reading, queue.pause_ns = self._token, 0
            self._log_reads[queue.reading] = queue
            self._out.append(ReadBack(queue.reading, *span))

    def _back_read(self, now_ns: int, event: BackRead) -> None:
        queue = self._log_reads.pop(event.token)
        queue.reading = 0
        first = queue.next_needed()
        if first is None or not queue.is_open:
            return
        for body, records in whole_messages(event.records, first):
            batches = _batches(records).get(queue.stream)
            if batches is not None and body.index <= self._settled:
                position = LogPosition(body.index, body.regime, body.timestamp_ns, records[0].chain_hash)
                if queue.next_needed() != body.index or not queue.enqueue(self._work(position, batches)):
                    break
        if queue.next_needed() == first:
            queue.pause_ns = now_ns + PAUSE_NS
        self._advance(now_ns, queue)

    def _opened(self, event: DatabaseOpened) -> None:
        queue = self._queues[event.stream]
        if queue.phase is ApplyPhase.STOPPED:  # the executor stopped while a copy was installed
            return
        if event.failed:
            self._stop(queue, event.failed)
            return
        queue.opened(event.index, event.fingerprint, event.kept)
        self._transfer.opened(queue)
        self._integrity.opened(queue, event)
        self._queries.opened(event)

    def _applied(self, now_ns: int, event: Applied) -> None:
        queue = self._queues[event.stream]
        queue.release()
        if not queue.is_open:  # the executor stopped, or the database was found damaged, in the meantime
            return
        for step in event.steps:
            self.counts["requests"] += step.requests
            self.counts["failures"] += step.failures
            queue.record_applied(step)
            self._on_mismatch(queue, queue.divergence.record_own(step.index, step.fingerprint))
        self.counts["messages"] += len(event.steps)
        if event.failed:
            self._stop(queue, event.failed)
        if self._announce_ns is None:
            self._announce_ns = now_ns + ANNOUNCE_NS
        if queue.phase is ApplyPhase.IDLE:
            self._advance(now_ns, queue)
        self._prune()

    def _prune(self) -> None:
        """Forget the owners of ended lanes once all their messages are applied."""
        assert self._journal is not None
        if len(self._owners) > 2 * len(self._journal.lanes) + 1024 and not any(
            queue.behind for queue in self._queues.values()
        ):
            self._owners = {lane: acl for lane, acl in self._owners.items() if lane in self._journal.lanes}

    def _stop(self, queue: ApplyQueue, reason: str) -> None:
        queue.stop(reason)
        detail: dict[str, str | int] = {"stream": queue.stream, "reason": reason, "index": queue.applied}
        self._out.append(Report("executor stopped", detail=detail))
        self._integrity.request_check(queue)

    # Comparing fingerprints.

    def _on_mismatch(self, queue: ApplyQueue, finding: FingerprintMismatch | None) -> None:
        if finding is None:
            return
        nodes = ", ".join(map(str, finding.nodes))
        self._out.append(
            Report("executors differ", nodes, {"stream": queue.stream, "index": finding.index, "node": self._node})
        )
        if finding.diverged and queue.phase is not ApplyPhase.STOPPED:
            self._stop(queue, f"node {self._node} differs from node {nodes} after message {finding.index}")

    def _woken(self, now_ns: int) -> None:
        self._dry_runs.woken(now_ns)
        self._transfer.woken(now_ns)
        if self._journal is not None:
            self._claims.woken(now_ns, self._queues.values(), self._journal)
        if self._announce_ns is not None and now_ns >= self._announce_ns:
            self._announce_ns = None
            for queue in self._queues.values():
                if queue.applied > self._announced.get(queue.stream, 0) and queue.phase is not ApplyPhase.STOPPED:
                    self._announced[queue.stream] = queue.applied
                    self._broadcast(Print(queue.stream, queue.applied, queue.fingerprint))
        for queue in self._queues.values():
            if queue.pause_ns and now_ns >= queue.pause_ns:
                queue.pause_ns = 0
                self._advance(now_ns, queue)

    # Other executors.

    def _executors(self) -> tuple[int, ...]:
        """The nodes with the executor role, including this one."""
        assert self._journal is not None
        return tuple(placed.node for placed in self._journal.cluster_config.nodes if placed.executor == Stage.LIVE)

    def _node_of(self, key: bytes) -> int | None:
        assert self._journal is not None
        members = self._journal.cluster_config
        return next((one.node for one in members.nodes if one.key == key and members.is_member(one)), None)

    def _entered(self, event: Entered) -> None:
        key = event.peer.key
        self._sessions[key] = event.peer.instance
        for token in self._queries.open_rounds():
            self._send(key, AskReach(token))
        for were_read in self._queries.remembered():
            self._send(key, were_read)

    def _exited(self, event: Exited) -> None:
        if self._sessions.get(event.peer.key) == event.peer.instance:
            del self._sessions[event.peer.key]

    def _peers(self) -> list[bytes]:
        """Keys of the other executors that are connected."""
        assert self._journal is not None
        live = [one.key for one in self._journal.cluster_config.nodes if one.executor == Stage.LIVE]
        return [key for key in live if key in self._sessions]

    def _send(self, key: bytes, message: PeerMessage, payload: bytes = b"") -> None:
        if self._node_of(key) is not None and key in self._sessions:
            content = parcel.encode(Parcel(self._identifier, Layer.EXECUTOR, messages.encode(message), payload))
            self._out.append(Whisper(self._sessions[key], content))

    def _broadcast(self, message: PeerMessage) -> None:
        for key in sorted(self._sessions):
            self._send(key, message)

    def _on_parcel(self, now_ns: int, event: GossipParcel) -> None:
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
                    self._send(event.peer.key, Reach(message.token, reach))
            case Reach():
                self._queries.reached(self._journal, message.token, node, message.index)
            case Print():
                queue = self._queues.get(message.stream)
                if queue is not None and len(message.fingerprint) == 32:
                    self._on_mismatch(queue, queue.divergence.record_peer(node, message.index, message.fingerprint))
            case WereRead():
                self._queries.on_were_read(message)
            case AskCopy():
                self._transfer.on_request(event.peer.key, message, self._queues.get(message.stream))
            case CopyPiece():
                self._transfer.on_piece(now_ns, event.peer.key, message, event.parcel.payload)
            case _:
                assert_never(message)

    # Status page and metrics.

    def gauges(self) -> dict[str, float]:
        stopped = sum(queue.phase is ApplyPhase.STOPPED for queue in self._queues.values())
        return {} if self.bare else {"executor_stopped": stopped}

    def status(self) -> dict[str, object]:
        if self._journal is None:
            return {}
        found: dict[str, object] = {"databases": of_queues(self._queues)}
        prints = fingerprints(self._queues, self._journal.fingerprints()) if self._queues else None
        return found if prints is None else {**found, "fingerprints": prints}


def _batches(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records that contain statements, by stream."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.kind == Kind.BATCH and lanes_of(record.body):
            found.setdefault(record.stream, []).append(record)
    return found
