"""Packs: messages of one client, stored by column so that readers need not process single messages.

A BATCH body consists of packs one after the other, unchanged. This module splits bodies and checks sizes. It computes
digests, but checks neither digests nor signatures: the journal does. A pack's digest covers the root of a small Merkle
tree over its messages (`chaplain.proofs.groups`), so that one message can be proven without the rest of the pack.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.proofs.groups import PackGroups, pack_digest, small_root
from chaplain.segment.layout import HASH_BYTES, Bytes, octets, padded, padding, view_of

PROTOCOL = 2
NOTHING = 0xFFFFFFFF
"""The size of a key or header cell that is absent."""
_HEAD = struct.Struct("<IIIIIBBBBHHI32s")
PACK_HEAD_BYTES = _HEAD.size
assert PACK_HEAD_BYTES == 64
_unpack_head: Callable[[Any, int], tuple[Any, ...]] = _HEAD.unpack_from
_DIGEST_AT = 32
_SLOT_FIELD = 9
"""The field of the head that contains the size of the signature."""
_SIZE = struct.Struct("<I")
PACK_BYTES_MAX = 1 << 30
ISOLATED_MAX = 8192
"""Messages in an isolated pack. Each of them is a leaf of its own, so a pack of a million empty messages would take
every node seconds to check.
"""
Cells = Sequence[bytes | None]
Words = npt.NDArray[np.uint32]


KEYS = 1
HEADERS = 2
REQUESTS = 4
ISOLATED = 8
"""KEYS, HEADERS, REQUESTS and ISOLATED are bits of a pack's columns. They are plain integers, because `&` of an
enumeration would cost more than everything else about a pack. In an isolated pack every message is a group of its own,
so that the proof of one message shows no other."""
_ALL_COLUMNS = KEYS | HEADERS | REQUESTS | ISOLATED
_COLUMN_COUNTS = tuple(1 + (columns & KEYS) + (columns >> 1 & 1) for columns in range(_ALL_COLUMNS + 1))


class Pack(Frozen, frozen=True):
    client_id: int
    first_id: int
    values: tuple[bytes, ...]
    keys: tuple[bytes | None, ...] | None = None
    headers: tuple[bytes | None, ...] | None = None
    request_counts: tuple[int, ...] | None = None
    """Number of messages in each request; None means one each."""
    message_type: int = 0
    signature_type: int = 0
    signature: bytes = b""
    isolated: bool = False


class PackHead(Frozen, frozen=True):
    """Positions inside a pack, in octets from the start of the body that contains it."""

    start: int
    end: int
    count: int
    client_id: int
    first_id: int
    requests: int
    message_type: int
    signature_type: int
    signature_bytes: int
    columns: int
    tables_at: int
    data_at: int
    digest: bytes
    """The digest that the pack states."""

    @property
    def digest_at(self) -> int:
        return self.start + _DIGEST_AT

    @property
    def tabled_requests(self) -> int:
        return self.requests if self.columns & REQUESTS else 0


def encode_pack(pack: Pack) -> bytes:
    """The octets of the pack, including its digest."""
    _check(pack)
    count, tabled = len(pack.values), len(pack.request_counts or ())
    table, data = _table_and_data(pack)
    table_padding, data_padding = padding(len(table)), padding(len(data))
    signature = pack.signature + padding(len(pack.signature))
    size = PACK_HEAD_BYTES + len(signature) + len(table) + len(table_padding) + len(data) + len(data_padding)
    if size > PACK_BYTES_MAX:
        raise ValueError(f"a pack has at most {PACK_BYTES_MAX} octets, not {size}")
    head = _HEAD.pack(
        size,
        count,
        pack.client_id,
        pack.first_id,
        tabled or count,
        PROTOCOL,
        pack.message_type,
        pack.signature_type,
        _flags(pack),
        len(pack.signature),
        0,
        0,
        bytes(HASH_BYTES),
    )[:_DIGEST_AT]
    digest = pack_digest(head, table[: 4 * tabled], _root_of(table[4 * tabled :], data, count, _flags(pack)))
    return b"".join((head, digest, signature, table, table_padding, data, data_padding))


def _root_of(sizes: bytes | memoryview, data: bytes | memoryview, count: int, columns: int) -> bytes:
    """The root over the groups of a pack. Raises `Malformed` if the sizes do not fit the data."""
    if count == 1 and not columns & (KEYS | HEADERS):
        size = _SIZE.unpack_from(sizes)[0]
        if size <= len(data):
            return small_root(size, data[:size])
    return PackGroups(sizes, data, count, _COLUMN_COUNTS[columns], bool(columns & ISOLATED)).root()


def _table_and_data(pack: Pack) -> tuple[bytes, bytes]:
    if len(pack.values) == 1 and pack.keys is None and pack.headers is None and pack.request_counts is None:
        [value] = pack.values
        return _SIZE.pack(len(value)), value
    tables = [np.array(pack.request_counts, "<u4").tobytes()] if pack.request_counts else []
    tables.append(np.fromiter(map(len, pack.values), "<u4", len(pack.values)).tobytes())
    columns: list[Cells] = [cells for cells in (pack.keys, pack.headers) if cells is not None]
    tables += [_sizes(cells) for cells in columns]
    return b"".join(tables), b"".join((*pack.values, *(cell for cells in columns for cell in cells if cell)))


def _check(pack: Pack) -> None:
    count = len(pack.values)
    for cells in (pack.keys, pack.headers):
        if cells is not None and len(cells) != count:
            raise ValueError(f"{count} values, but {len(cells)} keys or headers")
    if not count:
        raise ValueError("a pack holds at least one message")
    if pack.request_counts is not None and (min(pack.request_counts) < 1 or sum(pack.request_counts) != count):
        raise ValueError(f"requests of {pack.request_counts} messages do not make {count}")


def _flags(pack: Pack) -> int:
    return (
        (KEYS if pack.keys is not None else 0)
        | (HEADERS if pack.headers is not None else 0)
        | (REQUESTS if pack.request_counts else 0)
        | (ISOLATED if pack.isolated else 0)
    )


def _sizes(cells: Cells) -> bytes:
    return np.array([NOTHING if cell is None else len(cell) for cell in cells], "<u4").tobytes()


def with_signature(raw: bytes, signature: bytes) -> bytes:
    """The same pack with its signature slot filled. The signer signs the digest of a pack encoded with zeros."""
    slot_bytes = _HEAD.unpack_from(raw)[_SLOT_FIELD]
    if len(signature) != slot_bytes:
        raise ValueError(f"the slot has {slot_bytes} octets, the signature {len(signature)}")
    view = memoryview(raw)  # a pack may be large: copy it once
    return b"".join((view[:PACK_HEAD_BYTES], signature, view[PACK_HEAD_BYTES + len(signature) :]))


def digest_of(raw: Bytes, head: PackHead | None = None) -> bytes:
    """Compute the digest of this pack. A caller that has its head passes it, to avoid decoding it again. Raises
    `Malformed` if the sizes in its tables do not fit the pack. It does not cover padding, which has to be zero.
    """
    head = head or read_head(raw, 0)
    view = view_of(raw)
    requests_at, sizes_at = head.tables_at, head.tables_at
    if head.columns & REQUESTS:
        sizes_at += 4 * head.requests
    sizes = view[sizes_at : sizes_at + 4 * head.count * _COLUMN_COUNTS[head.columns]]
    root = _root_of(sizes, view[head.data_at : head.end], head.count, head.columns)
    return pack_digest(bytes(view[:_DIGEST_AT]), view[requests_at:sizes_at], root)


def groups_of(raw: Bytes) -> PackGroups:
    """The groups of one whole pack."""
    head, view = read_head(raw, 0), view_of(raw)
    sizes_at = head.tables_at + 4 * head.tabled_requests
    sizes = view[sizes_at : sizes_at + 4 * head.count * _COLUMN_COUNTS[head.columns]]
    columns = _COLUMN_COUNTS[head.columns]
    return PackGroups(sizes, view[head.data_at : head.end], head.count, columns, bool(head.columns & ISOLATED))


def stated_digest(raw: Bytes) -> bytes:
    return bytes(raw[_DIGEST_AT : _DIGEST_AT + HASH_BYTES])


def read_head(body: Bytes, start: int) -> PackHead:
    """The head of the pack at `start`. None of its sizes reaches outside of the pack or the body."""
    left = len(body) - start
    if left < PACK_HEAD_BYTES:
        raise Malformed(f"pack: a head has {PACK_HEAD_BYTES} octets, {left} left")
    (
        size,
        count,
        client_id,
        first_id,
        requests,
        protocol,
        message_type,
        signature_type,
        columns,
        signature_bytes,
        reserved_short,
        reserved_long,
        digest,
    ) = _unpack_head(body, start)
    if protocol != PROTOCOL or reserved_short or reserved_long or columns & ~_ALL_COLUMNS:
        raise Malformed(f"pack: protocol {protocol}, columns {columns:#x} are not known")
    if size % 8 or size > left:
        raise Malformed(f"pack: size {size}, {left} octets left")
    tabled = requests if columns & REQUESTS else 0
    if not 1 <= requests <= count or (not tabled and requests != count):
        raise Malformed(f"pack: {requests} requests of {count} messages")
    tables_at = start + PACK_HEAD_BYTES + (signature_bytes + 7 & -8)
    data_at = tables_at + (4 * (tabled + count * _COLUMN_COUNTS[columns]) + 7 & -8)
    end = start + size
    if data_at > end:
        raise Malformed("pack: tables run past its end")
    sizes = (start, end, count, client_id, first_id, requests)
    return PackHead(*sizes, message_type, signature_type, signature_bytes, columns, tables_at, data_at, digest)


def column_count(columns: int) -> int:
    """The number of size tables: for values always, for keys and headers if flagged."""
    return _COLUMN_COUNTS[columns]


def heads_of(body: Bytes) -> list[PackHead]:
    """The heads of all packs in a BATCH body."""
    size = len(body)
    heads = []
    start = 0
    while start < size:
        heads.append(read_head(body, start))
        start = heads[-1].end
    return heads


def decode_pack(raw: Bytes) -> Pack:
    """One whole pack, message by message: for people and tests. Readers of many packs use `arrow`."""
    view = octets(raw)
    head = read_head(view, 0)
    if head.end != len(view):
        raise Malformed(f"pack: {len(view) - head.end} octets too many")
    words: Words = view[head.tables_at : head.data_at].view("<u4")
    requests = tuple(words[: head.tabled_requests].tolist()) or None
    if requests is not None and (min(requests) < 1 or sum(requests) != head.count):
        raise Malformed("pack: the request table does not add up")
    sizes = words[head.tabled_requests :]
    cells: list[tuple[bytes | None, ...]] = []
    position = head.data_at
    for column in range(column_count(head.columns)):
        column_sizes = sizes[column * head.count : (column + 1) * head.count].tolist()
        column_cells, position = _cells(view, column_sizes, position)
        cells.append(column_cells)
    if padded(position) != head.end:
        raise Malformed("pack: sizes do not add up")
    return Pack(
        client_id=head.client_id,
        first_id=head.first_id,
        values=_require_values(cells[0]),
        keys=cells[1] if head.columns & KEYS else None,
        headers=cells[-1] if head.columns & HEADERS else None,
        request_counts=requests,
        message_type=head.message_type,
        signature_type=head.signature_type,
        signature=view[PACK_HEAD_BYTES : PACK_HEAD_BYTES + head.signature_bytes].tobytes(),
        isolated=bool(head.columns & ISOLATED),
    )


def _cells(view: npt.NDArray[np.uint8], sizes: list[int], position: int) -> tuple[tuple[bytes | None, ...], int]:
    cells: list[bytes | None] = []
    octets = view.tobytes()  # slicing many small pieces from bytes is much faster than from an array
    if NOTHING not in sizes and position + sum(sizes) <= len(octets):
        ends = list(accumulate(sizes, initial=position))
        return tuple([octets[start:end] for start, end in pairwise(ends)]), ends[-1]
    for size in sizes:
        if size == NOTHING:
            cells.append(None)
            continue
        if position + size > len(octets):
            raise Malformed("pack: a message runs past the end")
        cells.append(octets[position : position + size])
        position += size
    return tuple(cells), position


def _require_values(cells: tuple[bytes | None, ...]) -> tuple[bytes, ...]:
    if None in cells:
        raise Malformed("pack: a value must be there")
    return cast("tuple[bytes, ...]", cells)
