from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.link.zmq.fragments import PIECE_BYTES_MAX, Reassembler, carried_bytes, cut
from chaplain.wire.limits import FRAME_BYTES_MAX

PAGE = Path(__file__).parents[4] / "docs/protocol/fragments.md"


def reassembler(bytes_max: int = 64 << 20) -> Reassembler:
    return Reassembler(Counter(), bytes_max)


def test_fragment_example_matches_the_code():
    block = re.search(r"```\n([0-9a-f\n]+)```", PAGE.read_text())
    assert block is not None
    messages = [bytes.fromhex(line) for line in block[1].split()]
    taken = reassembler()
    assert [taken.take(1, message) for message in messages] == [None, None, bytes.fromhex("0102030405")]


@given(st.sampled_from([0, 1, 100, 65535, 65536, 65537, 131070, 131071, 200_000]), st.binary(max_size=4))
@settings(deadline=None)
def test_fragments_join_to_the_original_frame(size, start):
    frame = (b"\x01" + start + bytes(size))[:size]
    messages = cut(frame)
    assert all(len(message) <= PIECE_BYTES_MAX for message in messages)
    assert sum(map(carried_bytes, messages)) == len(frame)
    for made in (bytes, memoryview):
        taken = reassembler()
        assert [taken.take(b"route", made(message)) for message in messages][-1] == frame
        assert taken.waiting_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=6).map(lambda b: b + bytes(b and b[0] * 50)))))
@settings(deadline=None)
def test_hostile_fragments_raise_nothing_and_stay_within_the_bound(messages):
    counts: Counter[str] = Counter()
    taken = Reassembler(counts, 10_000)
    for channel, message in messages:
        for mark in (b"", b"\xf1", b"\xf2", b"\xf3"):
            taken.take(channel, mark + message)
            assert taken.waiting_bytes <= 10_000


def test_frame_above_the_limit_is_dropped():
    counts: Counter[str] = Counter()
    taken = Reassembler(counts, 64 << 20)
    taken.take(1, b"\xf1")
    for _ in range(FRAME_BYTES_MAX // 65_535 + 2):
        taken.take(1, b"\xf2" + bytes(65_535))
    assert counts["link_frames_too_long"] == 1
    assert taken.take(1, b"\xf3") is None
    assert counts["link_pieces_stray"] >= 1
    assert taken.waiting_bytes == 0


def test_longest_waiting_incomplete_frame_is_dropped_first():
    counts: Counter[str] = Counter()
    taken = Reassembler(counts, 1000)
    taken.take(1, b"\xf1" + bytes(400))
    taken.take(2, b"\xf1" + bytes(400))
    taken.take(2, b"\xf2" + bytes(400))
    assert counts["link_frames_crowded_out"] == 1
    assert taken.take(1, b"\xf3") is None
    assert taken.take(2, b"\xf3") == bytes(800)


def test_largest_frame_is_sent_and_a_larger_one_raises():
    largest = b"\x01" * FRAME_BYTES_MAX
    taken = reassembler()
    assert [taken.take(1, message) for message in cut(largest)][-1] == largest
    with pytest.raises(ValueError, match="at most"):
        cut(largest + b"x")
    with pytest.raises(ValueError, match="marks a piece"):
        cut(b"\xf1")
