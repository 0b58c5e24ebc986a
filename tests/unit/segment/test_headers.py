"""Header cells: the check of a column and the check of one cell accept the same octets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.segment.headers import FEW, check, decode_headers, encode_headers, malformed

FINE = encode_headers({"a": b"1", "trace": b"\x00\xff"})


def words(*numbers: int) -> bytes:
    return np.array(numbers, "<u4").tobytes()


def raw(*pairs: tuple[bytes, bytes]) -> bytes:
    """Headers as they are given: in this order, with these names."""
    sizes = [len(part) for pair in pairs for part in pair]
    return words(len(pairs), *sizes) + b"".join(part for pair in pairs for part in pair)


BAD = {
    "no count": b"\xff",
    "nothing": b"",
    "table beyond the cell": words(2, 1, 1),
    "too many": words(1025) + bytes(8 * 1025),
    "parts beyond the cell": words(1, 5, 5) + b"abc",
    "something behind": FINE + b"x",
    "empty name": raw((b"", b"v")),
    "name too long": raw((b"n" * 1025, b"v")),
    "names out of order": raw((b"b", b""), (b"a", b"")),
    "names out of order behind 8 octets": raw((b"x-trace-b", b""), (b"x-trace-a", b"")),
    "a name twice": raw((b"same", b"1"), (b"same", b"2")),
    "a name that is not UTF-8": raw((b"\xff\xfe", b"v")),
    "a letter cut in two names": raw((b"\xc3", b""), (b"\xc3\xa9", b"")),
}


def joined(cells: list[bytes]) -> tuple[bytes, list[int], list[int]]:
    sizes = [len(cell) for cell in cells]
    return b"".join(cells), [sum(sizes[:at]) for at in range(len(sizes))], sizes


@pytest.mark.parametrize("beside", [0, FEW + 1])
@pytest.mark.parametrize("what", BAD)
def test_malformed_header_cell_is_refused_alone_and_among_others(what: str, beside: int) -> None:
    cells = [FINE] * beside + [BAD[what]]
    with pytest.raises(Malformed):
        check(*joined(cells))
    assert [*malformed([None, *cells])] == [beside + 1]
    if beside:
        check(*joined(cells[:-1]))


NAMES = st.one_of(st.binary(max_size=3), st.sampled_from([b"x-trace-1", b"x-trace-2", b"x-trace-", b"a\0", b"a"]))
CELLS = st.one_of(
    st.lists(st.tuples(NAMES, st.binary(max_size=2)), max_size=3).map(lambda pairs: raw(*pairs)),
    st.lists(st.tuples(NAMES, st.just(b"")), max_size=4).map(lambda pairs: raw(*sorted(dict(pairs).items()))),
    st.binary(max_size=20),
)


@given(st.lists(CELLS, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_header_column_is_refused_exactly_if_a_cell_is(cells: list[bytes]) -> None:
    wrong = False
    for cell in cells:
        try:
            decode_headers(cell)
        except Malformed:
            wrong = True
    try:
        check(*joined([FINE] * FEW + cells))
    except Malformed:
        assert wrong
    else:
        assert not wrong
