"""Which segments of the log go: those that a checkpoint covers, that the rules do not keep, and that nobody needs.

    covered    a quorum has the checkpoint's state on disk, and so has every member that is connected with us, or came
               too late and is on its way back (`returning`)
    rules      `keep_bytes` of the log, and what is younger than `keep_seconds`, stay; without either, everything does,
               but what an admin has released
    needed     by a reader, a database, or a pack that is staged or committed and has no offsets yet

Decides by numbers that it is given. Refuses to know who is connected and who reads (`archive`).

Invariant: nothing behind the checkpoint goes, nothing from the needed message on, and never the last segment.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.journal.execution.staged_packs import StagedPacks
from chaplain.journal.settings import RetentionRules
from chaplain.journal.storage.segment_index import SegmentIndex, SegmentSpan

NOBODY = (1 << 63) - 1
"""In place of the first message that somebody needs."""


def droppable(segment_index: SegmentIndex, rules: RetentionRules, now_ns: int, *, limit: int, released: int) -> int:
    """How many segments go from the front, if nothing behind `limit` may."""
    going = 0
    left_bytes = sum(segment.size_bytes for segment in segment_index.segments)
    for segment in segment_index.droppable(limit):
        left_bytes -= segment.size_bytes
        if not _spared(segment, rules, now_ns, left_bytes, max(released, segment_index.first - 1)):
            break
        going += 1
    return going


def _spared(segment: SegmentSpan, rules: RetentionRules, now_ns: int, left_bytes: int, released: int) -> bool:
    """Whether the rules can do without a segment, of which nothing would be left but so many octets behind it."""
    if segment.last <= released:
        return True
    too_large = 0 < rules.keep_bytes <= left_bytes
    too_old = bool(rules.keep_ns) and segment.newest_ns < now_ns - rules.keep_ns
    return too_large or too_old


def keeps(segment_index: SegmentIndex, rules: RetentionRules, now_ns: int, timestamp_ns: int) -> bool:
    """Whether the rules would let a message of this time stay: what would go at once is not fetched."""
    full = 0 < rules.keep_bytes <= sum(segment.size_bytes for segment in segment_index.segments)
    too_old = bool(rules.keep_ns) and timestamp_ns < now_ns - rules.keep_ns
    return not full and not too_old


def first_needed(staged_packs: StagedPacks, others: Iterable[int]) -> int:
    """The first message that somebody still needs."""
    staged = next(iter(staged_packs.staged.values()), None)
    owed = min((one.index for one in staged_packs.committed), default=NOBODY)
    return min(owed, staged.index if staged is not None else NOBODY, *others)
