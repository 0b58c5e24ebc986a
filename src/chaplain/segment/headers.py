"""Headers of a message: names with values, as one cell of a pack's headers column.

    count 4 | (name size 4, value size 4) … | name, value, name, value …        little-endian, as in all of a pack

Names are UTF-8, not empty, unique, and in the order of their octets, so that equal headers have equal encodings. The
sizes come first, so that `split` can process the headers of a whole column with numpy. Ingest nodes refuse cells that
do not follow this format (`check`); logs of earlier versions may still contain them. Byte table:
docs/protocol/headers.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chaplain.errors import Malformed
from chaplain.segment.layout import Bytes, octets

HEADERS_MAX = 1024
NAME_BYTES_MAX = 1024
FEW = 8
"""Up to this many cells are decoded one by one: numpy's first operation takes longer."""
_WORD = 4
_ENTRY = 2 * _WORD
_FRONT = 8
_ASCII_END = 0x80

Ints = npt.NDArray[np.int64]


def encode_headers(headers: Mapping[str, bytes]) -> bytes:
    pairs = sorted((name.encode(), bytes(value)) for name, value in headers.items())
    if len(pairs) > HEADERS_MAX or any(not 0 < len(name) <= NAME_BYTES_MAX for name, _ in pairs):
        raise ValueError(f"at most {HEADERS_MAX} headers, with names of 1 to {NAME_BYTES_MAX} bytes")
    sizes = [len(part) for pair in pairs for part in pair]
    table = struct.pack(f"<{1 + len(sizes)}I", len(pairs), *sizes)
    return table + b"".join([part for pair in pairs for part in pair])


def decode_headers(raw: Bytes) -> dict[str, bytes]:
    data = bytes(raw)
    if len(data) < _WORD:
        raise Malformed("headers: shorter than their count")
    count = int.from_bytes(data[:_WORD], "little")
    at = _WORD + count * _ENTRY
    if count > HEADERS_MAX or at > len(data):
        raise Malformed(f"headers: {len(data)} octets cannot hold a table of {count}")
    sizes = struct.unpack_from(f"<{2 * count}I", data, _WORD)
    parts: list[bytes] = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    if at != len(data):
        raise Malformed(f"headers: parts of {at} octets announced, {len(data)} there")
    names = parts[::2]
    if any(not 0 < len(name) <= NAME_BYTES_MAX for name in names) or any(a >= b for a, b in pairwise(names)):
        raise Malformed("headers: names are not empty, unique, and in order")
    try:
        return {name.decode(): value for name, value in zip(names, parts[1::2], strict=True)}
    except UnicodeDecodeError:
        raise Malformed("headers: names are UTF-8") from None


def check(data: Bytes, starts: npt.ArrayLike, sizes: npt.ArrayLike) -> None:
    """Raise `Malformed` unless `decode_headers` accepts every cell: cell i is `sizes[i]` octets from `starts[i]` on.

    Many cells are checked with numpy. Names are compared one by one only if they are not ASCII, or if two names of one
    message begin with the same 8 octets.
    """
    begin, size = np.asarray(starts, np.int64), np.asarray(sizes, np.int64)
    view = octets(data)
    if len(begin) <= FEW:
        for start, count in zip(begin.tolist(), size.tolist(), strict=True):
            decode_headers(view[start : start + count].tobytes())
        return
    parts = split(view, begin, size)
    _check_names(view, parts)


def malformed(cells: Iterable[bytes | None]) -> dict[int, str]:
    """The rows of the cells that `decode_headers` refuses, with the reason."""
    found: dict[int, str] = {}
    for row, cell in enumerate(cells):
        try:
            if cell is not None:
                decode_headers(cell)
        except Malformed as wrong:
            found[row] = str(wrong)
    return found


class HeaderSplit(NamedTuple):
    """The positions of a column's names and values in its octets.

    All arrays but `counts` have one row for each header.
    """

    counts: Ints
    """Number of headers of each cell."""
    name_starts: Ints
    name_sizes: Ints
    value_starts: Ints
    value_sizes: Ints


def split(data: Bytes, starts: npt.ArrayLike, sizes: npt.ArrayLike) -> HeaderSplit:
    """Split many cells at once, without a loop: cell i is `sizes[i]` octets of `data` from `starts[i]` on.

    Checks that tables and parts fit their cells, but not the order of names.
    """
    view = octets(data)
    begin, size = np.asarray(starts, np.int64), np.asarray(sizes, np.int64)
    if len(begin) and (int(begin.min()) < 0 or int(size.min()) < _WORD or int((begin + size).max()) > len(view)):
        raise Malformed("headers: shorter than their count")
    counts = _words(view, begin)
    data_at = begin + _WORD + counts * _ENTRY
    if len(begin) and (int(counts.max()) > HEADERS_MAX or bool((data_at > begin + size).any())):
        raise Malformed("headers: a table runs past its cell")
    firsts = np.cumsum(counts) - counts
    entry = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(firsts, counts)
    at = np.repeat(begin + _WORD, counts) + entry * _ENTRY
    names, values = _words(view, at), _words(view, at + _WORD)
    pairs = names + values
    before = np.cumsum(pairs) - pairs
    ends = np.concatenate(([0], np.cumsum(pairs)))
    totals = ends[firsts + counts] - ends[firsts]
    if bool((data_at + totals != begin + size).any()):
        raise Malformed("headers: sizes do not add up")
    name_starts = before - np.repeat(ends[firsts], counts) + np.repeat(data_at, counts)
    return HeaderSplit(counts, name_starts, names, name_starts + names, values)


def _check_names(view: npt.NDArray[np.uint8], parts: HeaderSplit) -> None:
    starts, sizes = parts.name_starts, parts.name_sizes
    if not len(sizes):
        return
    if int(sizes.min()) < 1 or int(sizes.max()) > NAME_BYTES_MAX:
        raise Malformed(f"headers: names have 1 to {NAME_BYTES_MAX} octets")
    cells = np.repeat(np.arange(len(parts.counts)), parts.counts)
    follows = np.flatnonzero(cells[1:] == cells[:-1])
    fronts = _fronts(view, starts, sizes)
    before, after = fronts[follows], fronts[follows + 1]
    if bool((before > after).any()):
        raise Malformed("headers: names are not in order")
    for at in follows[before == after].tolist():
        if not _name(view, parts, at) < _name(view, parts, at + 1):
            raise Malformed("headers: names are not unique, or not in order")
    ends = np.cumsum(sizes)
    positions = np.arange(int(ends[-1])) + np.repeat(starts - (ends - sizes), sizes)
    if int(view[positions].max()) < _ASCII_END:
        return
    for at in range(len(sizes)):
        try:
            _name(view, parts, at).decode()
        except UnicodeDecodeError:
            raise Malformed("headers: names are UTF-8") from None


def _name(view: npt.NDArray[np.uint8], parts: HeaderSplit, at: int) -> bytes:
    start = int(parts.name_starts[at])
    return view[start : start + int(parts.name_sizes[at])].tobytes()


def _fronts(view: npt.NDArray[np.uint8], starts: Ints, sizes: Ints) -> npt.NDArray[np.uint64]:
    """The first 8 octets of each name, padded with zeros, as numbers with the same order."""
    within = np.arange(_FRONT) < sizes[:, None]
    positions = np.minimum(starts[:, None] + np.arange(_FRONT), len(view) - 1)
    fronts = np.where(within, view[positions], 0).astype(np.uint8)
    return np.ascontiguousarray(fronts).view(">u8").reshape(-1).astype(np.uint64)


def _words(view: npt.NDArray[np.uint8], at: Ints) -> Ints:
    """The 32-bit words at these positions, with any alignment."""
    gathered = np.ascontiguousarray(view[at[:, None] + np.arange(_WORD)])
    return gathered.view("<u4").reshape(-1).astype(np.int64)
