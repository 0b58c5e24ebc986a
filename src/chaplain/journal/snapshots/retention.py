"""Decides which segments of the log can be dropped: a checkpoint covers them, no rule retains them, and no component
needs them.

    covered    a quorum has the checkpoint on disk, and so has every member that is connected, or that lags behind and
               is expected back (`lagging_members`)
    rules      `keep_bytes` of the log and messages younger than `keep_ns` are retained; without either rule,
               everything is retained that no admin has released
    needed     by a reader, by a database, or by a staged or committed pack without offsets

Computes only with its arguments. Does not know the connected members and the readers (`checkpointer`).

Invariant: a message is dropped only if the checkpoint covers it and it is before the first needed one. The last segment
is never dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chaplain.journal.execution.staged_packs import StagedPacks
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.settings import RetentionRules
from chaplain.journal.storage.segment_index import SegmentIndex, SegmentSpan

NOT_NEEDED = (1 << 63) - 1
"""Stands for the first needed message if no message is needed."""


def droppable(segment_index: SegmentIndex, rules: RetentionRules, now_ns: int, *, limit: int, released: int) -> int:
    """Number of segments that can be dropped from the front, if no message after `limit` may be dropped."""
    going = 0
    left_bytes = sum(segment.size_bytes for segment in segment_index.segments)
    for segment in segment_index.droppable(limit):
        left_bytes -= segment.size_bytes
        if not _spared(segment, rules, now_ns, left_bytes, max(released, segment_index.first - 1)):
            break
        going += 1
    return going


def _spared(segment: SegmentSpan, rules: RetentionRules, now_ns: int, left_bytes: int, released: int) -> bool:
    """True if the rules allow the segment to be dropped. `left_bytes` is the size of the log after it."""
    if segment.last <= released:
        return True
    too_large = 0 < rules.keep_bytes <= left_bytes
    too_old = bool(rules.keep_ns) and segment.newest_ns < now_ns - rules.keep_ns
    return too_large or too_old


def keeps(segment_index: SegmentIndex, rules: RetentionRules, now_ns: int, timestamp_ns: int) -> bool:
    """True if the rules would retain a message of this time. Backfill does not fetch messages that they would drop at
    once.
    """
    full = 0 < rules.keep_bytes <= sum(segment.size_bytes for segment in segment_index.segments)
    too_old = bool(rules.keep_ns) and timestamp_ns < now_ns - rules.keep_ns
    return not full and not too_old


def retains(execution: JournalExecution, rules: RetentionRules) -> Callable[[SegmentIndex, int, int, int], bool]:
    """A function of the log's segments, the time, an index and a timestamp: True if this node would retain a message
    that only other nodes have.
    """

    def would_retain(segment_index: SegmentIndex, now_ns: int, index: int, timestamp_ns: int) -> bool:
        return index > execution.state.released and keeps(segment_index, rules, now_ns, timestamp_ns)

    return would_retain


def first_needed(staged_packs: StagedPacks, others: Iterable[int]) -> int:
    """The first message that a pack or another component still needs."""
    staged = next(iter(staged_packs.staged.values()), None)
    owed = min((one.index for one in staged_packs.committed), default=NOT_NEEDED)
    return min(owed, staged.index if staged is not None else NOT_NEEDED, *others)
