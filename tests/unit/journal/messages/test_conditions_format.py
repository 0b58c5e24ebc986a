"""The page about conditional writes shows octets and reasons; here they are made and read back."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from chaplain.journal.execution import conditions
from chaplain.journal.messages.conditions import (
    CONDITIONS_MAX,
    Fence,
    KeyUnchanged,
    NextOffset,
    TagUnchanged,
    encode,
)
from chaplain.journal.model.reason import CONDITIONAL as REASONS
from chaplain.segment.pack import Pack, encode_pack, first_headers, keys_from_the_end

PAGE = (Path(__file__).parents[4] / "docs" / "protocol" / "conditions.md").read_text()


def test_page_example_matches_the_encoder() -> None:
    (block,) = re.findall(r"```hex conditions\n(.*?)```", PAGE, re.DOTALL)
    shown = encode([NextOffset(7), KeyUnchanged(b"k", 3), Fence("leader", 2), TagUnchanged("red", 5)])
    assert bytes.fromhex(block) == shown


def test_page_names_every_reason_and_bound() -> None:
    for reason in REASONS:
        assert f"| {reason.value} {reason.name} |" in PAGE
    for bound in (conditions.STREAMS_MAX, conditions.KEYS_MAX, conditions.FENCES_MAX, CONDITIONS_MAX):
        assert f"{bound:,}" in PAGE


CELL = st.none() | st.binary(max_size=5)
MESSAGE = st.tuples(st.binary(max_size=5), CELL, CELL)


@given(st.lists(MESSAGE, min_size=1, max_size=9), st.booleans(), st.booleans(), st.booleans())
def test_keys_and_first_headers_of_a_pack_are_found_without_decoding_it(
    messages: list[tuple[bytes, bytes | None, bytes | None]], keyed: bool, headed: bool, together: bool
) -> None:
    values, keys, headers = zip(*messages, strict=True)
    counts = (len(values),) if together else None
    raw = encode_pack(Pack(1, 1, values, keys if keyed else None, headers if headed else None, counts))
    there = [(number, key) for number, key in enumerate(keys) if key is not None] if keyed else []
    assert [*keys_from_the_end(raw)] == there[::-1]
    assert first_headers(raw) == (headers[0] if headed else None)
