"""Admission control: accepts packs of clients for ordering, and records which of them still wait for a verdict.

Decides which packs are worth ordering. This is only a first check, which saves the cluster work and the client time:
execution decides everything again. A pack that may prove its signer's misbehaviour (two packs with one id) is admitted,
so that the evidence gets into the log.

Invariants: an admitted pack waits until its ingest message has been executed, or its signature check or dry run failed.
The bytes that wait are within the bounds of `flow_control`. The packs of a lane are admitted in order.
"""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.journal.events import DryRunDone, PackWritten
from chaplain.journal.execution.dedup import PackStatus, classify
from chaplain.journal.execution.local_roles import LocalRoles
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.flow_control import CreditBook
from chaplain.journal.messages.client import AlreadyWritten, GoBack, NodeMessage, NotWritten
from chaplain.journal.messages.ingest import AcceptedPack, IngestEntry
from chaplain.journal.messages.write_request import (
    COLUMNS_AT,
    STATEMENTS,
    Heading,
    check_headers,
    read_heading,
    request_digest,
)
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
DATABASES_FULL = "databases_full"
DATA = 0
"""The message type of plain data, which no executor executes."""
INVALID = "invalid"
"""Prefix of the kind of an error that a dry run found. A colon and the kind of failure follow."""
_NO_HEADING = Heading(0, 0, 0, 0, 0, b"", 0)


class _LaneQueue:
    """Admitted packs of one lane that have no verdict yet."""

    __slots__ = ("highest", "taken")

    def __init__(self) -> None:
        self.taken: dict[tuple[int, bytes], AcceptedPack] = {}
        """By first id and digest."""
        self.highest = 0
        """The highest request id of the admitted packs."""


class Admission:
    """Admitted packs by lane."""

    def __init__(self, settings: JournalSettings, execution: JournalExecution, credit: CreditBook) -> None:
        self._settings = settings
        self._pack_bytes_max = settings.pack_bytes_max
        self._execution = execution
        self._credit = credit
        self._queues: dict[int, _LaneQueue] = {}
        self.roles = LocalRoles(settings, execution)
        self.stopping = False
        self.disk_full = False
        """The disk has less than `room_bytes_min` free."""

    def offer(self, event: PackWritten) -> AcceptedPack | NodeMessage | None:
        """Return the admitted pack; or an answer to send at once; or None if the same pack waits already."""
        affordable = self._credit.spend(event.instance, len(event.raw))
        try:
            outcome = self._check(event, read_heading(event.raw), affordable)
        except Malformed as wrong:
            outcome = _not_written(_NO_HEADING, kind_of(Reason.MALFORMED), str(wrong), 0)
        if not isinstance(outcome, AcceptedPack):
            self._credit.release(event.instance, len(event.raw))
        return outcome

    def _check(self, event: PackWritten, heading: Heading, affordable: bool) -> AcceptedPack | NodeMessage | None:
        """Check the lane, the credit, the size, the headers and the client's rights, in this order."""
        lane = self._execution.state.lanes.get(heading.client_id)
        if lane is None:
            return refuse(heading, Reason.UNKNOWN_LANE)
        if lane.acl != event.acl:
            return _not_written(heading, NOT_YOURS, "the lane belongs to another client: lease one", 0)
        if not affordable or self.stopping:
            why = "too many bytes wait, or this node is stopping: wait for credit, or use another node"
            return _not_written(heading, BUSY, why, lane.last_id + 1)
        if heading.size_bytes > self._pack_bytes_max:
            why = f"the pack has {heading.size_bytes} octets, and this cluster takes {self._pack_bytes_max}"
            return _not_written(heading, kind_of(Reason.TOO_LARGE), f"{why}: make smaller ones", lane.last_id + 1)
        if event.raw[COLUMNS_AT] & HEADERS:
            try:
                check_headers(event.raw)
            except Malformed as wrong:
                return _not_written(heading, kind_of(Reason.MALFORMED), str(wrong), lane.last_id + 1)
        reason = self._execution.precheck(lane, event.stream, heading)
        if reason is not Reason.APPLIED:
            return refuse(heading, reason, lane)
        return self._check_lane(event, heading, lane)

    def _check_lane(self, event: PackWritten, heading: Heading, lane: LaneState) -> AcceptedPack | NodeMessage | None:
        """Compare the pack's id with the executed and the waiting packs of its lane."""
        digest = request_digest(self._execution.cluster, event.stream, heading.digest)
        ruling = classify(lane, heading, digest)
        if ruling.status is PackStatus.SEEN and ruling.applied is not None:
            return answer_of(lane.client_id, ruling.applied)
        if ruling.status is PackStatus.OLD:
            return AlreadyWritten(lane.client_id, lane.last_id)
        # A pack that conflicts with an executed one is evidence against its signer, so even a fenced lane admits it.
        if lane.fenced and ruling.status is not PackStatus.CONFLICT:
            return refuse(heading, Reason.FENCED, lane)
        if not self.roles.accepts_client(lane.acl):
            return _not_written(heading, NOT_INGEST, reserved_reason(self._settings), lane.last_id + 1)
        queue = self._queues.get(lane.client_id) or _LaneQueue()
        if (heading.first_id, digest) in queue.taken:
            return None
        if heading.message_type == STATEMENTS and not self._execution.may_have_database(event.stream):
            # Execution would log the statements and execute none of them. That still happens to statements for several
            # new databases that are under way together: then the client learns that its stream has no database.
            why = "the cluster has as many databases as it may have: execute the statements on a stream that has one"
            return _not_written(heading, DATABASES_FULL, why, lane.last_id + 1)
        if self.disk_full:
            return _not_written(heading, DISK_FULL, full_reason(self._settings.node), lane.last_id + 1)
        expected = max(lane.last_id, queue.highest) + 1
        if heading.first_id > expected:
            return GoBack(lane.client_id, expected)
        if not self.roles.takes_writes:
            return not_ingest(heading, expected)
        # A dry run needs the state right before the request. So the request must be the next one of its lane, alone in
        # its pack, and no other pack of the lane may wait. A conflicting pack gets no dry run: it is evidence.
        is_next = ruling.status is PackStatus.NEXT and not queue.taken and heading.requests == 1
        check = event.check and self._settings.prevalidate and is_next and heading.message_type != DATA
        taken = AcceptedPack(event.instance, heading, IngestEntry(event.stream, event.raw), digest, check)
        self._queues[lane.client_id] = queue
        queue.taken[heading.first_id, digest] = taken
        queue.highest = max(queue.highest, heading.last_id)
        return taken

    @property
    def idle(self) -> bool:
        """True if no admitted pack waits."""
        return not self._queues

    def release(self, taken: AcceptedPack) -> None:
        """Remove a pack that has its verdict, or failed its signature check or dry run."""
        self._credit.release(taken.instance, taken.heading.size_bytes)
        queue = self._queues[taken.heading.client_id]
        del queue.taken[taken.heading.first_id, taken.digest]
        if not queue.taken:
            del self._queues[taken.heading.client_id]


def full_reason(node: int) -> str:
    return f"the disk of node {node} is full: make room there, or write through another node"


def reserved_reason(settings: JournalSettings) -> str:
    return f"node {settings.node} is reserved for {', '.join(settings.reserved)}: write through another node"


def invalid(taken: AcceptedPack, event: DryRunDone) -> NotWritten:
    """The answer to a pack whose dry run failed. Its id was not used."""
    heading = taken.heading
    return _not_written(heading, f"{INVALID}:{event.kind}", event.reason, heading.first_id)


def refuse(heading: Heading, reason: Reason, lane: LaneState | None = None) -> NotWritten:
    expected = lane.last_id + 1 if lane is not None else 0
    return _not_written(heading, kind_of(reason), REASONS[reason], expected)


def not_ingest(heading: Heading, expected_id: int) -> NotWritten:
    why = "this node is no ingest node, or is losing that role: use another node"
    return _not_written(heading, NOT_INGEST, why, expected_id)


def _not_written(heading: Heading, kind: str, reason: str, expected_id: int) -> NotWritten:
    return NotWritten(heading.client_id, heading.first_id, heading.requests, kind, reason, expected_id)
