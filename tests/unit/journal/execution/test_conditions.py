"""Conditional writes at execution: which are written, which are refused, and what is remembered to decide it."""

from __future__ import annotations

import random

import pytest

from chaplain.errors import Malformed
from chaplain.journal.execution import conditions, two_phase
from chaplain.journal.execution.state import load
from chaplain.journal.messages.conditions import (
    CONDITIONS_MAX,
    HEADER,
    TAGS_HEADER,
    Condition,
    Fence,
    KeyUnchanged,
    NextOffset,
    TagUnchanged,
    decode,
    decode_tags,
    encode,
    encode_tags,
)
from chaplain.journal.messages.config import FenceLane
from chaplain.journal.messages.consumer import CONSUMER
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.write_request import STATEMENTS
from chaplain.journal.model.results import PackVerdict
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.headers import encode_headers
from tests.support.execution_stage import SECOND, Stage, pack, petition

STREAM = "orders"
DAY_NS = 24 * 3600 * SECOND


class ConditionStage(Stage):
    """A stage with a lane. Every write uses the next request id, also a refused one."""

    def __init__(self) -> None:
        super().__init__()
        self.id = 1
        self.lane_id = self.lane(1)

    def make(
        self,
        *asked: Condition,
        keys: tuple[bytes | None, ...] = (None,),
        stream: str = STREAM,
        tags: tuple[str, ...] = (),
    ) -> IngestEntry:
        values = [b"value"] * len(keys)
        if not asked and not tags:
            return pack(self.lane_id, self.id, values, keys=keys, counts=(len(keys),), stream=stream)
        first = {HEADER: encode(asked)} | ({TAGS_HEADER: encode_tags(tags)} if tags else {})
        headers = (encode_headers(first), *[None] * (len(keys) - 1))
        more = {"keys": keys, "headers": headers, "counts": (len(keys),), "stream": stream}
        return pack(self.lane_id, self.id, values, conditional=True, **more)  # type: ignore[arg-type]

    def verdict(self, entry: IngestEntry, after_ns: int = 1) -> PackVerdict:
        (verdict,) = self.write(entry, time_ns=self.prefix.messages[-1].body.timestamp_ns + after_ns)
        self.id = max(self.id, verdict.expected_id)
        return verdict

    def __call__(
        self,
        *asked: Condition,
        keys: tuple[bytes | None, ...] = (None,),
        stream: str = STREAM,
        after_ns: int = 1,
        tags: tuple[str, ...] = (),
    ) -> tuple[Reason, int]:
        verdict = self.verdict(self.make(*asked, keys=keys, stream=stream, tags=tags), after_ns)
        return verdict.reason, verdict.base_offset


@pytest.fixture
def write() -> ConditionStage:
    return ConditionStage()


def test_write_with_the_next_offset_is_applied_and_any_other_is_a_conflict(write: ConditionStage) -> None:
    assert write(NextOffset(0)) == (Reason.APPLIED, 0)
    assert write(NextOffset(0)) == (Reason.CONFLICT, 1)
    assert write(NextOffset(2)) == (Reason.CONFLICT, 1)
    assert write(NextOffset(1), keys=(None, None)) == (Reason.APPLIED, 1)
    assert write() == (Reason.APPLIED, 3)


def test_refused_write_is_never_written_and_every_copy_gets_the_same_answer(write: ConditionStage) -> None:
    early = write.make(NextOffset(1))
    refused = write.verdict(early)
    assert (refused.reason, refused.base_offset) == (Reason.CONFLICT, 0)
    assert write() == (Reason.APPLIED, 0)  # the condition of the copy would hold now
    copy = write.verdict(early)
    assert copy.reason is Reason.DUPLICATE
    assert copy.original is not None
    assert (copy.original.refusal, copy.original.base_offset, copy.original.messages) == (Reason.CONFLICT, 0, 0)
    assert write.execution.state.streams[STREAM].next_offset == 1


def test_refused_write_creates_no_stream(write: ConditionStage) -> None:
    assert write(NextOffset(5)) == (Reason.CONFLICT, 0)
    assert STREAM not in write.execution.state.streams


def test_conditions_of_one_message_see_the_writes_before_them_in_it(write: ConditionStage) -> None:
    first = write.make(NextOffset(0))
    write.id += 1
    second = write.make(NextOffset(0))
    reasons = [verdict.reason for verdict in write.write(first, second)]
    assert reasons == [Reason.APPLIED, Reason.CONFLICT]


def test_key_version_is_the_last_offset_of_the_key(write: ConditionStage) -> None:
    assert write(KeyUnchanged(b"a", 0), keys=(b"a",)) == (Reason.APPLIED, 0)
    assert write(KeyUnchanged(b"a", 0), keys=(b"a",)) == (Reason.CONFLICT, 0)
    assert write(keys=(b"b",)) == (Reason.APPLIED, 1)
    assert write(KeyUnchanged(b"a", 1), keys=(b"a",)) == (Reason.APPLIED, 2)
    assert write(KeyUnchanged(b"a", 1), KeyUnchanged(b"b", 2), keys=(b"a", b"b")) == (Reason.CONFLICT, 2)
    assert write(KeyUnchanged(b"a", 3), KeyUnchanged(b"b", 2), keys=(b"a", b"b")) == (Reason.APPLIED, 3)
    assert write(KeyUnchanged(b"b", 9), keys=(b"b",)) == (Reason.CONFLICT, 5), "a version that nobody can have read"


def test_key_condition_is_decided_from_the_first_one_on_a_stream_on(write: ConditionStage) -> None:
    for _ in range(3):
        write(keys=(b"a",))
    assert write(KeyUnchanged(b"a", 3)) == (Reason.APPLIED, 3), "read up to the head: nothing can have been written"
    assert write(KeyUnchanged(b"a", 2)) == (Reason.OUTSIDE_WINDOW, 3), "2 is right, but nobody remembers"
    assert write(KeyUnchanged(b"a", 4), keys=(b"a",)) == (Reason.APPLIED, 4)
    assert write(KeyUnchanged(b"a", 4)) == (Reason.CONFLICT, 4)
    assert write(KeyUnchanged(b"new", 0)) == (Reason.OUTSIDE_WINDOW, 3)


def test_tag_is_unchanged_until_a_request_with_it_is_written(write: ConditionStage) -> None:
    assert write(TagUnchanged("red", 0), tags=("red", "blue"), keys=(b"red", b"k")) == (Reason.APPLIED, 0)
    assert write(TagUnchanged("red", 1)) == (Reason.CONFLICT, 1), "it has the offset of its last message"
    assert write(TagUnchanged("red", 2), TagUnchanged("blue", 2)) == (Reason.APPLIED, 2)
    assert write(tags=("blue",)) == (Reason.APPLIED, 3)
    assert write(TagUnchanged("red", 2), TagUnchanged("blue", 2), tags=("red",)) == (Reason.CONFLICT, 3)
    assert write(KeyUnchanged(b"red", 1)) == (Reason.APPLIED, 4), "a key is no tag"
    assert write(TagUnchanged("red", 2)) == (Reason.APPLIED, 5), "a refused write tags nothing"


def test_refusal_begins_the_tracking_of_a_stream(write: ConditionStage) -> None:
    write(keys=(b"a",))
    assert write(KeyUnchanged(b"a", 0)) == (Reason.OUTSIDE_WINDOW, 1)
    assert write(keys=(b"a",)) == (Reason.APPLIED, 1)
    assert write(KeyUnchanged(b"a", 2), keys=(b"a",)) == (Reason.APPLIED, 2)


def test_key_that_was_forgotten_is_outside_of_the_window(
    write: ConditionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "KEYS_MAX", 2)
    write(KeyUnchanged(b"a", 0), keys=(b"a", b"b"))
    write(keys=(b"a",))
    write(keys=(b"c",))  # forgets b, whose offset is the lowest
    assert write(KeyUnchanged(b"b", 1)) == (Reason.OUTSIDE_WINDOW, 2)
    assert write(KeyUnchanged(b"a", 2)) == (Reason.CONFLICT, 2)
    assert write(KeyUnchanged(b"b", 2)) == (Reason.APPLIED, 4)


def test_large_pack_leaves_what_its_messages_one_by_one_would_leave(
    write: ConditionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "KEYS_MAX", 3)
    rng = random.Random(5)
    left = []
    for size in (7, 1):
        one = ConditionStage()
        one(KeyUnchanged(b"a", 0), keys=(b"a",))
        rng.seed(5)
        for _ in range(20):
            keys = tuple(rng.choice((b"a", b"b", b"c", b"d", b"e", None)) for _ in range(7))
            for first in range(0, 7, size):
                one(keys=keys[first : first + size])
        (tracked,) = one.execution.state.conditions.streams.values()
        left.append((tracked.floor, [*tracked.keys.items()]))
    assert left[0] == left[1]


def test_tracked_streams_are_bounded_and_an_idle_one_is_replaced(
    write: ConditionStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "STREAMS_MAX", 1)
    write(KeyUnchanged(b"a", 0), keys=(b"a",))
    assert write(KeyUnchanged(b"a", 0), stream="other") == (Reason.CONDITIONS_FULL, 0)
    assert write(KeyUnchanged(b"a", 0), stream="other", after_ns=DAY_NS) == (Reason.APPLIED, 0)
    assert [*write.execution.state.conditions.streams] == ["other"]


def test_lower_token_is_refused_after_a_higher_one_was_seen(write: ConditionStage) -> None:
    assert write(Fence("leader", 5)) == (Reason.APPLIED, 0)
    assert write(Fence("leader", 5)) == (Reason.APPLIED, 1)
    assert write(Fence("leader", 4)) == (Reason.STALE_TOKEN, 2)
    assert write(Fence("leader", 4), stream="other") == (Reason.APPLIED, 0)
    assert write(NextOffset(9), Fence("leader", 7)) == (Reason.CONFLICT, 2)
    assert write(Fence("leader", 6)) == (Reason.STALE_TOKEN, 2), "a token is seen also in a refused write"


def test_fences_are_bounded_and_an_idle_one_is_replaced(write: ConditionStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "FENCES_MAX", 1)
    write(Fence("leader", 5))
    assert write(Fence("other", 1)) == (Reason.CONDITIONS_FULL, 1)
    write(after_ns=31 * DAY_NS)  # the lane has expired, too
    write.lane_id, write.id = write.lane(2), 1
    assert write(Fence("other", 1)) == (Reason.APPLIED, 1)
    assert write(Fence("leader", 5)) == (Reason.CONDITIONS_FULL, 2)


def test_snapshot_and_fingerprint_contain_what_conditions_need(write: ConditionStage) -> None:
    seen = [write.execution.fingerprint()]
    for asked in (KeyUnchanged(b"a", 0), KeyUnchanged(b"a", 0), Fence("leader", 5), Fence("leader", 6)):
        write(asked, keys=(b"a",))
        seen.append(write.execution.fingerprint())
    assert len(set(seen)) == len(seen)
    state = write.execution.state
    restored = load(state.bootstrap, state.export())
    assert restored.fingerprint() == state.fingerprint()
    assert restored.conditions.export() == state.conditions.export()


def test_fenced_lane_refuses_a_conditional_write_as_any_other(write: ConditionStage) -> None:
    write.config(petition(FenceLane(write.lane_id), nonce=b"f" * 16))
    assert write(NextOffset(0))[0] is Reason.FENCED


@pytest.mark.parametrize("headers", [None, encode_headers({"other": b""}), encode_headers({HEADER: b"\1\1\x09"})])
def test_pack_without_readable_conditions_is_refused_and_uses_no_id(
    write: ConditionStage, headers: bytes | None
) -> None:
    entry = pack(write.lane_id, 1, conditional=True, headers=None if headers is None else (headers,))
    assert write.verdict(entry).reason is Reason.BAD_COMMAND
    assert write(NextOffset(0)) == (Reason.APPLIED, 0)


def test_conditional_pack_of_several_requests_is_refused(write: ConditionStage) -> None:
    cell = encode_headers({HEADER: encode([NextOffset(0)])})
    entry = pack(write.lane_id, 1, [b"a", b"b"], conditional=True, headers=(cell, None))
    assert write.verdict(entry).reason is Reason.BAD_COMMAND


@pytest.mark.parametrize("kind", [two_phase.STAGED, CONSUMER])
def test_pack_that_writes_nothing_by_itself_has_no_conditions(write: ConditionStage, kind: int) -> None:
    cell = encode_headers({HEADER: encode([NextOffset(0)])})
    entry = pack(write.lane_id, 1, message_type=kind, headers=(cell,), conditional=True)
    assert write.verdict(entry).reason is Reason.BAD_COMMAND


@pytest.mark.parametrize("kind", [STATEMENTS, 7])
def test_messages_of_every_type_may_have_conditions(write: ConditionStage, kind: int) -> None:
    cell = encode_headers({HEADER: encode([NextOffset(0)])})
    entries = [pack(write.lane_id, number, message_type=kind, headers=(cell,), conditional=True) for number in (1, 2)]
    assert [write.verdict(entry).reason for entry in entries] == [Reason.APPLIED, Reason.CONFLICT]


def test_header_of_conditions_means_nothing_in_an_ordinary_pack(write: ConditionStage) -> None:
    cell = encode_headers({HEADER: encode([NextOffset(5)])})
    assert write.verdict(pack(write.lane_id, 1, headers=(cell,))).reason is Reason.APPLIED, "copied from another stream"


def test_malformed_conditions_are_refused() -> None:
    whole = encode([NextOffset(7), KeyUnchanged(b"key", 3), Fence("leader", 2), TagUnchanged("red", 4)])
    assert encode(decode(whole)) == whole
    for wrong in (b"", whole[:-1], whole + b"\0", b"\2" + whole[1:], b"\1", b"\1\1\5" + bytes(8)):
        with pytest.raises(Malformed):
            decode(wrong)
    assert decode_tags(encode_tags(("red", "blue"))) == ("red", "blue")
    for tags in (b"", b"red,", b"red,red", b"r d", b"\xff", b"x" * 65, b",".join(b"%d" % n for n in range(17))):
        with pytest.raises(Malformed):
            decode_tags(tags)
    with pytest.raises(ValueError, match=str(CONDITIONS_MAX)):
        encode([NextOffset(0)] * (CONDITIONS_MAX + 1))
