"""What clients write, from its arrival to its verdict: which packs are taken, and who still waits for an answer.

Decides which packs are worth ordering. This is a courtesy: it saves the cluster the work and the client the time, and
`execution` decides everything again. Whatever might be proof against its signer is taken, too.

Invariants: a pack that is taken waits until its ingest message has been executed, or it fails its check; the octets
that wait are within the bounds of `credit`; the packs of a lane are taken in order.
"""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.journal.events import PackWritten, Rehearsed
from chaplain.journal.execution.dedup import PackStatus, classify
from chaplain.journal.execution.local_roles import LocalRoles
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.flow_control import CreditBook
from chaplain.journal.messages.client import AlreadyWritten, GoBack, NodeMessage, NotWritten
from chaplain.journal.messages.ingest import AcceptedPack, IngestEntry
from chaplain.journal.messages.write_request import COLUMNS_AT, Heading, check_headers, read_heading, request_digest
from chaplain.journal.model.reason import REASONS, kind_of
from chaplain.journal.model.receipts import answer_of
from chaplain.journal.model.records import LaneState
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.pack import HEADERS

BUSY = "busy"
DISK_FULL = "disk_full"
NOT_YOURS = "not_yours"
NOT_INGEST = "not_ingest"
DATA = 0
"""The message type of what nobody executes."""
INVALID = "invalid"
"""Before a colon and the kind of failure that its execution would give."""
_NO_HEADING = Heading(0, 0, 0, 0, 0, b"", 0)


class _Queue:
    """The packs of one lane that have no verdict yet."""

    __slots__ = ("highest", "taken")

    def __init__(self) -> None:
        self.taken: dict[tuple[int, bytes], AcceptedPack] = {}
        self.highest = 0


class Admission:
    def __init__(self, settings: JournalSettings, execution: JournalExecution) -> None:
        self._settings = settings
        self._execution = execution
        self.credit = CreditBook(settings.window_bytes, settings.ingest_bytes_max)
        self._queues: dict[int, _Queue] = {}
        self.seat = LocalRoles(settings, execution)
        self.stopping = False
        self.full = False
        """The disk has no room for more."""

    def offer(self, event: PackWritten) -> AcceptedPack | NodeMessage | None:
        """The pack, taken; or what to answer at once; or nothing, if it waits already."""
        affordable = self.credit.spend(event.instance, len(event.raw))
        try:
            outcome = self._consider(event, read_heading(event.raw), affordable)
        except Malformed as wrong:
            outcome = _not_written(_NO_HEADING, kind_of(Reason.MALFORMED), str(wrong), 0)
        if not isinstance(outcome, AcceptedPack):
            self.credit.answer(event.instance, len(event.raw))
        return outcome

    def _consider(self, event: PackWritten, heading: Heading, affordable: bool) -> AcceptedPack | NodeMessage | None:
        lane = self._execution.state.lanes.get(heading.client_id)
        if lane is None:
            return refuse(heading, Reason.UNKNOWN_LANE)
        if lane.acl != event.acl:
            return _not_written(heading, NOT_YOURS, "the lane belongs to another client: lease one", 0)
        if not affordable or self.stopping:
            why = "too much is on its way, or this node is stopping: wait for credit, or go to another node"
            return _not_written(heading, BUSY, why, lane.last_id + 1)
        if heading.size_bytes > self._settings.pack_bytes_max:
            why = f"the pack has {heading.size_bytes} octets, and this cluster takes {self._settings.pack_bytes_max}"
            return _not_written(heading, kind_of(Reason.TOO_LARGE), f"{why}: make smaller ones", lane.last_id + 1)
        if event.raw[COLUMNS_AT] & HEADERS:
            try:
                check_headers(event.raw)
            except Malformed as wrong:
                return _not_written(heading, kind_of(Reason.MALFORMED), str(wrong), lane.last_id + 1)
        reason = self._execution.precheck(lane, event.stream, heading)
        if reason is not Reason.APPLIED:
            return refuse(heading, reason, lane)
        return self._place(event, heading, lane)

    def _place(self, event: PackWritten, heading: Heading, lane: LaneState) -> AcceptedPack | NodeMessage | None:
        """Where the pack stands on its lane, behind what was executed and what is on its way."""
        digest = request_digest(self._execution.cluster, event.stream, heading.digest)
        ruling = classify(lane, heading, digest)
        if ruling.status is PackStatus.SEEN and ruling.applied is not None:
            return answer_of(lane.client_id, ruling.applied)
        if ruling.status is PackStatus.OLD:
            return AlreadyWritten(lane.client_id, lane.last_id)
        if lane.fenced and ruling.status is not PackStatus.CONFLICT:
            return refuse(heading, Reason.FENCED, lane)
        if not self.seat.accepts_client(lane.acl):
            return _not_written(heading, NOT_INGEST, reserved_reason(self._settings), lane.last_id + 1)
        queue = self._queues.get(lane.client_id) or _Queue()
        if (heading.first_id, digest) in queue.taken:
            return None
        if self.full:
            return _not_written(heading, DISK_FULL, full_reason(self._settings.node), lane.last_id + 1)
        expected = max(lane.last_id, queue.highest) + 1
        if heading.first_id > expected:
            return GoBack(lane.client_id, expected)
        if not self.seat.takes_writes:
            return not_ingest(heading, expected)
        alone = ruling.status is PackStatus.NEXT and not queue.taken and heading.requests == 1
        check = event.check and self._settings.prevalidate and alone and heading.message_type != DATA
        taken = AcceptedPack(event.instance, heading, IngestEntry(event.stream, event.raw), digest, check)
        self._queues[lane.client_id] = queue
        queue.taken[heading.first_id, digest] = taken
        queue.highest = max(queue.highest, heading.last_id)
        return taken

    @property
    def idle(self) -> bool:
        return not self._queues

    def finish(self, taken: AcceptedPack) -> None:
        """The pack has its verdict, or failed its check, or would fail when executed."""
        self.credit.answer(taken.instance, taken.heading.size_bytes)
        queue = self._queues[taken.heading.client_id]
        del queue.taken[taken.heading.first_id, taken.digest]
        if not queue.taken:
            del self._queues[taken.heading.client_id]


def full_reason(node: int) -> str:
    return f"the disk of node {node} is full: make room there, or write through another node"


def reserved_reason(settings: JournalSettings) -> str:
    return f"node {settings.node} is reserved for {', '.join(settings.reserved)}: write through another node"


def invalid(taken: AcceptedPack, event: Rehearsed) -> NotWritten:
    """It would fail: its id is free as before."""
    heading = taken.heading
    return _not_written(heading, f"{INVALID}:{event.kind}", event.reason, heading.first_id)


def refuse(heading: Heading, reason: Reason, lane: LaneState | None = None) -> NotWritten:
    expected = lane.last_id + 1 if lane is not None else 0
    return _not_written(heading, kind_of(reason), REASONS[reason], expected)


def not_ingest(heading: Heading, expected_id: int) -> NotWritten:
    why = "this node is no ingest node, or not for long: go to another node"
    return _not_written(heading, NOT_INGEST, why, expected_id)


def _not_written(heading: Heading, kind: str, reason: str, expected_id: int) -> NotWritten:
    return NotWritten(heading.client_id, heading.first_id, heading.requests, kind, reason, expected_id)
