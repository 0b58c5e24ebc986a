"""The Merkle tree inside a pack: its leaves are groups of consecutive messages.

A proof of one message shows the octets of its group, so a group is small: the longest run of at most 16 messages and 1
KiB of values, keys and headers. A message that is larger is a group by itself. In a pack that is marked as isolated,
every message is a group of its own.

The octets of a group are the position of its first message and its count, then the parts of the pack for these
messages: their sizes from each table, then their values, keys and headers. Because the octets contain the position, a
group cannot be presented as another one. The pack's digest covers the head, the table of requests and the root over the
groups.

Invariants: the groups follow from the sizes and the isolation mark alone. The digest covers all octets of a pack except
itself, the signature, and the padding, which is zero.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.proofs.merkle import inclusion_proof, nodes_of, root_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

GROUP_MESSAGES = 16
GROUP_BYTES = 1024
ABSENT = 0xFFFFFFFF
"""The size of a key or header that a message does not have."""
HEAD_BYTES = 32
"""The octets of a pack's head before its digest."""
COLUMNS_MAX = 3
BOUNDS_AT_ONCE = 1 << 14
"""Messages whose sizes are added up at once, which bounds memory: a hostile pack may have millions of them."""
PYTHON_SIZES_MAX = 64
"""Up to this many sizes are added up in Python: that is faster than numpy's first call."""
_PACK_LABEL = b"chaplain pack 2\0"
_LEAF_START = struct.Struct("<BII")
"""The octet 0 that RFC 6962 puts before a leaf, and the start of a group."""
_START = struct.Struct("<II")
_SIZE = struct.Struct("<I")


def pack_digest(head: bytes, requests: bytes | memoryview, root: bytes) -> bytes:
    """Return the digest of a pack: over the first 32 octets of its head, its table of requests if there is one, and the
    root over its groups.
    """
    if len(requests):
        return pack_digest_from(head, sha256(requests).digest(), root)
    return sha256(b"".join((_PACK_LABEL, head, root))).digest()


def pack_digest_from(head: bytes, requests_digest: bytes, root: bytes) -> bytes:
    """The same from the SHA-256 of the table of requests; it is empty if the pack has no such table."""
    assert len(head) == HEAD_BYTES
    return sha256(b"".join((_PACK_LABEL, head, requests_digest, root))).digest()


def group_bounds(lengths: list[int] | npt.NDArray[np.int64], isolated: bool = False) -> list[int]:
    """Return where groups begin, and the number of messages at the end. `lengths` are the octets of each message: of
    its value, key and headers.
    """
    count = len(lengths)
    if isolated or not count:
        return list(range(count + 1))
    if isinstance(lengths, list):
        longest, shortest = max(lengths), min(lengths)
    else:
        longest, shortest = int(lengths.max()), int(lengths.min())
    if longest * GROUP_MESSAGES <= GROUP_BYTES or longest == shortest:
        step = min(GROUP_MESSAGES, max(1, GROUP_BYTES // longest)) if longest else GROUP_MESSAGES
        return [*range(0, count, step), count]
    bounds = [0]
    while bounds[-1] < count:
        some = lengths[bounds[-1] : bounds[-1] + BOUNDS_AT_ONCE]
        _add_bounds(bounds, some if isinstance(some, list) else some.tolist(), count)
    return bounds


def _add_bounds(bounds: list[int], lengths: list[int], count: int) -> None:
    """Append the bounds of those groups that are whole within these messages, which begin at the last bound."""
    base, here = bounds[-1], len(lengths)
    ends = list(accumulate(lengths))
    start = before = 0
    while start + GROUP_MESSAGES <= here or (start < here and base + here == count):
        end = bisect_right(ends, before + GROUP_BYTES, start, min(start + GROUP_MESSAGES, here))
        start = end if end > start else start + 1
        before = ends[start - 1]
        bounds.append(base + start)


def small_root(size: int, value: bytes | memoryview) -> bytes:
    """Return the root of a pack with one message and without key and headers. Most packs of interactive writers are of
    this kind.
    """
    return sha256(b"".join((_LEAF_START.pack(0, 0, 1), _SIZE.pack(size), value))).digest()


class PackGroups:
    """The groups of one pack.

    `sizes` are the size tables of the pack, one after the other; `data` is what follows them, and may end in padding.
    """

    __slots__ = ("_columns", "_count", "_data", "_sizes", "_starts", "bounds")

    def __init__(
        self, sizes: bytes | memoryview, data: bytes | memoryview, count: int, columns: int, isolated: bool = False
    ) -> None:
        if not 1 <= columns <= COLUMNS_MAX or count < 1 or len(sizes) != 4 * count * columns:
            raise Malformed(f"pack: {len(sizes)} octets of sizes are not {columns} columns of {count} messages")
        # _starts: positions in the data at which each group's part of each column begins.
        if count * columns <= PYTHON_SIZES_MAX:
            positions, totals = _positions(sizes, count, columns)
            _check_end(positions[-1], data)
            self.bounds = group_bounds(totals, isolated)
            self._starts = [[positions[column * count + at] for at in self.bounds] for column in range(columns)]
        else:
            many, lengths = _positions_of_many(sizes, count, columns)
            _check_end(int(many[-1]), data)
            self.bounds = group_bounds(lengths, isolated)
            self._starts = [many[[column * count + at for at in self.bounds]].tolist() for column in range(columns)]
        self._sizes = memoryview(sizes)
        self._data = memoryview(data)
        self._columns = columns
        self._count = count

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def hashes(self) -> list[bytes]:
        """Return the leaf hashes of all groups."""
        sizes, data, start_of = self._sizes, self._data, _LEAF_START.pack
        if self._columns == 1:
            [starts] = self._starts
            return [
                sha256(
                    b"".join((start_of(0, first, end - first), sizes[4 * first : 4 * end], data[begin:stop]))
                ).digest()
                for (first, end), (begin, stop) in zip(pairwise(self.bounds), pairwise(starts), strict=True)
            ]
        return [sha256(b"\x00" + self.octets(group)).digest() for group in range(len(self))]

    def root(self) -> bytes:
        return root_of(self.hashes())

    def group_of(self, message: int) -> int:
        """Return the group of the message at this position in the pack."""
        if not 0 <= message < self._count:
            raise ValueError(f"a pack of {self._count} messages has no message {message}")
        return bisect_right(self.bounds, message) - 1

    def octets(self, group: int) -> bytes:
        """Return the octets whose hash is the leaf of this group."""
        first, end = self.bounds[group], self.bounds[group + 1]
        tables = [
            self._sizes[4 * (column * self._count + first) :][: 4 * (end - first)] for column in range(self._columns)
        ]
        parts = [self._data[starts[group] : starts[group + 1]] for starts in self._starts]
        return b"".join((_START.pack(first, end - first), *tables, *parts))

    def path(self, group: int) -> list[bytes]:
        """Return the inclusion proof of this group in the root."""
        hashes = self.hashes()
        return inclusion_proof(group, len(hashes), nodes_of(hashes))


def _positions(sizes: bytes | memoryview, count: int, columns: int) -> tuple[list[int], list[int]]:
    """Return where each cell begins in the data, column by column, and the octets of each message."""
    cells = list(struct.unpack(f"<{count * columns}I", sizes))
    if columns == 1:
        return list(accumulate(cells, initial=0)), cells
    cells[count:] = [0 if size == ABSENT else size for size in cells[count:]]
    return list(accumulate(cells, initial=0)), [sum(cells[message::count]) for message in range(count)]


def _positions_of_many(
    sizes: bytes | memoryview, count: int, columns: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    import numpy as np  # noqa: PLC0415  checking a proof needs no numpy

    cells = np.frombuffer(sizes, "<u4").astype(np.int64)
    if columns > 1:
        later = cells[count:]
        later[later == ABSENT] = 0
    totals = cells.reshape(columns, count).sum(axis=0) if columns > 1 else cells
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(cells))), totals


def _check_end(end: int, data: bytes | memoryview) -> None:
    if end > len(data):
        raise Malformed(f"pack: its sizes add up to {end} octets, {len(data)} left")


class MessageGroup(Frozen, frozen=True):
    """The messages of a group, decoded."""

    first: int
    """Position of the first message in the pack."""
    values: tuple[bytes, ...]
    keys: tuple[bytes | None, ...] | None
    headers: tuple[bytes | None, ...] | None


def decode_group(octets: bytes, has_keys: bool, has_headers: bool) -> MessageGroup:
    """Return the messages in the octets of a group. The columns follow from the pack's head."""
    if len(octets) < _START.size:
        raise Malformed(f"group: at least {_START.size} octets wanted, not {len(octets)}")
    first, count = _START.unpack_from(octets)
    columns = 1 + has_keys + has_headers
    at = _START.size + 4 * columns * count
    if not 1 <= count <= GROUP_MESSAGES or at > len(octets):
        raise Malformed(f"group: {count} messages in {len(octets)} octets are not possible")
    sizes = struct.unpack_from(f"<{columns * count}I", octets, _START.size)
    cells: list[bytes | None] = []
    for size in sizes:
        if size == ABSENT and len(cells) >= count:
            cells.append(None)
            continue
        cells.append(octets[at : at + size])
        at += size
    if at != len(octets):
        raise Malformed(f"group: its sizes add up to {at} octets, not {len(octets)}")
    if count > 1 and at - _START.size - 4 * columns * count > GROUP_BYTES:
        raise Malformed(f"group: {count} messages have more than {GROUP_BYTES} octets")
    values = tuple(cell for cell in cells[:count] if cell is not None)
    keys = tuple(cells[count : 2 * count]) if has_keys else None
    headers = tuple(cells[-count:]) if has_headers else None
    return MessageGroup(first, values, keys, headers)
