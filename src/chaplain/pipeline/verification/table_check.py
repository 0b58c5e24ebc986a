"""Verifies the rows of one file of a landed table: offsets, order, and the digests of packs.

Each row contains the digest of the pack in which it was written. This module rebuilds every pack from its rows,
octet by octet, and compares the digests. It does not know where rows come from. It loops over packs, and over rows
only for headers.

Invariant: the packs at both ends of a file are passed on, so that a pack that is split over two files is verified as
one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chaplain.journal.messages.signing import SLOT_BYTES
from chaplain.pipeline.source.rows import MALFORMED_NAME
from chaplain.proofs.groups import PackGroups, pack_digest
from chaplain.segment.headers import encode_headers
from chaplain.segment.layout import HASH_BYTES, padded
from chaplain.segment.pack import CONDITIONAL, HEADERS, ISOLATED, KEYS, NOTHING, PACK_HEAD_BYTES, PROTOCOL, REQUESTS
from chaplain.verification.violations import Break

COLUMNS = (
    "key",
    "value",
    "topic",
    "offset",
    "timestamp",
    "headers",
    "kind",
    "client_id",
    "client_message_id",
    "message_no",
    "regime",
    "message_index",
    "pack_digest",
)
_FRONT = struct.Struct("<IIIIIBBBBHHI")
_SLOTS = [*SLOT_BYTES.items(), (0, 0)]


class MessageRows(msgspec.Struct, array_like=True):
    """Consecutive rows of one cluster message."""

    index: int
    first_offset: int
    count: int
    digests: bytes


class FileProof(msgspec.Struct):
    """The result of one file: its breaks, and the values at its ends, which the neighbouring files must continue."""

    rows: int = 0
    first_offset: int = -1
    next_offset: int = -1
    head: bytes = b""
    """The rows of the first pack, as an Arrow stream. The pack may begin in the file before."""
    tail: bytes = b""
    """The rows of the last pack, if it is not the first. The pack may continue in the next file."""
    first: tuple[int, int, int] = (0, 0, 0)
    """Message index, regime and time in microseconds of the first row; `last` has those of the last row."""
    last: tuple[int, int, int] = (0, 0, 0)
    breaks: list[Break] = []
    messages: list[MessageRows] = []


def check_rows(stream: str, batches: Iterable[Any], chains: bool = False) -> FileProof:
    """Verify the rows of one file. With `chains`, also collect what the stream's hash chain is computed from."""
    proof = FileProof()
    carried: Any = None
    for table in batches:
        if not table.num_rows:
            continue
        _check_order(proof, stream, table, chains)
        whole = table if carried is None else pa.concat_tables([carried, table])
        packs = list(_packs(whole))
        for number, (start, end) in enumerate(packs[:-1]):
            rows = whole.slice(start, end - start)
            if not proof.head and not number:
                proof.head = _to_bytes(rows)
            else:
                proof.breaks += check_pack(stream, rows)
        carried = whole.slice(packs[-1][0])
    if carried is not None:
        if proof.head:
            proof.tail = _to_bytes(carried)
        else:
            proof.head = _to_bytes(carried)
    return proof


def _check_order(proof: FileProof, stream: str, table: Any, chains: bool) -> None:
    """Check that offsets have no gap, and that message indexes, regimes and times do not decrease."""
    offsets = _numbers(table, "offset")
    facts = [_numbers(table, "message_index"), _numbers(table, "regime"), _times(table)]
    if proof.first_offset < 0:
        proof.first_offset = int(offsets[0])
        proof.first = (int(facts[0][0]), int(facts[1][0]), int(facts[2][0]))
    else:
        offsets = np.concatenate(([proof.next_offset - 1], offsets))
        facts = [np.concatenate(([last], fact)) for last, fact in zip(proof.last, facts, strict=True)]
    proof.breaks += jumps(stream, offsets)
    for kind, fact in zip(("order", "regime", "time"), facts, strict=True):
        for at in np.flatnonzero(np.diff(fact) < 0).tolist():
            proof.breaks.append(Break(stream, int(offsets[at + 1]), kind, f"{fact[at]} or more", str(fact[at + 1])))
    error = pc.index(pc.not_equal(table.column("topic"), stream), True).as_py()
    if error >= 0:
        found = str(table.column("topic")[error])
        proof.breaks.append(Break(stream, int(_numbers(table, "offset")[error]), "header", f"topic {stream}", found))
    proof.rows += table.num_rows
    proof.next_offset = int(offsets[-1]) + 1
    proof.last = (int(facts[0][-1]), int(facts[1][-1]), int(facts[2][-1]))
    if chains:
        _note_messages(proof, table)


def jumps(stream: str, offsets: Any) -> Iterator[Break]:
    steps = np.diff(offsets)
    for at in np.flatnonzero(steps != 1).tolist():
        before, found = int(offsets[at]), int(offsets[at + 1])
        if found > before:
            yield Break(stream, before + 1, "missing", f"offset {before + 1}", f"offset {found}")
        else:
            yield Break(stream, found, "repeated", f"offset {before + 1}", f"offset {found}")


def _note_messages(proof: FileProof, table: Any) -> None:
    indexes, offsets = _numbers(table, "message_index"), _numbers(table, "offset")
    digests = _digests(table)
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(indexes)) + 1, [len(indexes)]))
    for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        mine = digests[start:end]
        new = np.concatenate(([True], mine[1:] != mine[:-1]))
        join_message(
            proof.messages,
            MessageRows(int(indexes[start]), int(offsets[start]), end - start, mine[new].tobytes()),
        )


def join_message(messages: list[MessageRows], more: MessageRows) -> None:
    """Append rows of a message, or add them to the last entry if that is the same message.

    A pack that is split between the two counts once.
    """
    last = messages[-1] if messages else None
    if last is None or last.index != more.index:
        messages.append(more)
        return
    cut = HASH_BYTES if last.digests[-HASH_BYTES:] == more.digests[:HASH_BYTES] else 0
    last.count += more.count
    last.digests += more.digests[cut:]


def _packs(table: Any) -> Iterator[tuple[int, int]]:
    """Yield the bounds of packs: consecutive rows with the same digest."""
    digests = _digests(table)
    starts = np.concatenate(([0], np.flatnonzero(digests[1:] != digests[:-1]) + 1, [len(digests)]))
    return zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)


def check_pack(stream: str, rows: Any) -> list[Break]:
    """Return a break if the pack rebuilt from these rows does not have the digest that the rows contain."""
    rows = rows.combine_chunks()
    stated = rows.column("pack_digest")[0].as_py()
    found = b""
    for pack in rebuilt_packs(rows):
        if pack.digest == stated:
            return []
        found = pack.digest
    expected = stated.hex() if stated else "a digest"
    first, last = (int(rows.column("offset")[at].as_py()) for at in (0, rows.num_rows - 1))
    return [Break(stream, first, "digest", expected, found.hex(), last=last)]


class RebuiltPack(NamedTuple):
    """A pack that could have had these rows."""

    digest: bytes
    head: bytes
    """The octets before the digest."""
    slot_bytes: int
    """The size of the signature."""
    requests: bytes
    sizes: bytes
    data: bytes

    def octets(self, signature: bytes) -> bytes:
        """The whole pack."""
        parts = (self.head + self.digest, signature, self.requests + self.sizes, self.data)
        return b"".join(part.ljust(padded(len(part)), b"\0") for part in parts)


def rebuilt_packs(rows: Any) -> Iterator[RebuiltPack]:
    """Yield the possible packs with these rows.

    Rows do not contain everything in a pack's header, but the missing values have few possibilities: all are tried.
    """
    keyed, headed = _any(rows, "key"), _any(rows, "headers")
    tabled = bool(_numbers(rows, "message_no").any())
    known = [[True] if there else [False, True] for there in (keyed, headed, tabled)]
    values, keys = _cells(rows, "value"), _cells(rows, "key")
    headers = _header_cells(rows) if headed else (np.full(rows.num_rows, NOTHING, "<u4").tobytes(), b"")
    ids = _numbers(rows, "client_message_id")
    requests, counts = np.unique(ids, return_counts=True)
    marks = product((False, True), (False, True) if headed else (False,))  # conditions are in headers
    for (with_keys, with_headers, with_table), (isolated, conditional) in product(product(*known), marks):
        cells = [values, *([keys] if with_keys else []), *([headers] if with_headers else [])]
        table = counts.astype("<u4").tobytes() if with_table else b""
        sizes, data = (b"".join(parts) for parts in zip(*cells, strict=True))
        root = PackGroups(sizes, data, rows.num_rows, len(cells), isolated).root()
        columns = KEYS * with_keys | HEADERS * with_headers | REQUESTS * with_table | ISOLATED * isolated
        columns |= CONDITIONAL * conditional
        for signature_type, slot in _SLOTS:
            front = _FRONT.pack(
                PACK_HEAD_BYTES + padded(slot) + padded(len(table) + len(sizes)) + padded(len(data)),
                rows.num_rows,
                int(rows.column("client_id")[0].as_py()),
                int(ids[0]),
                len(requests) if with_table else rows.num_rows,
                PROTOCOL,
                int(rows.column("kind")[0].as_py()),
                signature_type,
                columns,
                slot,
                0,
                0,
            )
            yield RebuiltPack(pack_digest(front, table, root), front, slot, table, sizes, data)


def _any(rows: Any, name: str) -> bool:
    column = rows.column(name)
    return bool(column.null_count < len(column))


def _cells(rows: Any, name: str) -> tuple[bytes, bytes]:
    """Return the table of sizes and the octets of a binary column, as they are in a pack."""
    column = rows.column(name)
    cells = column.chunk(0) if column.num_chunks else pa.array([], pa.binary())
    bounds = np.frombuffer(cells.buffers()[1], np.int32)[cells.offset : cells.offset + len(cells) + 1]
    sizes = np.diff(bounds).astype("<u4")
    if cells.null_count:
        sizes[np.asarray(cells.is_null())] = NOTHING
    data = cells.buffers()[2]
    octets = b"" if data is None else data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes()
    return sizes.tobytes(), octets


def _header_cells(rows: Any) -> tuple[bytes, bytes]:
    cells = [_header_cell(one) for one in rows.column("headers").to_pylist()]
    sizes = np.array([NOTHING if one is None else len(one) for one in cells], "<u4")
    return sizes.tobytes(), b"".join([one for one in cells if one])


def _header_cell(pairs: list[dict[str, Any]] | None) -> bytes | None:
    """Return the encoded headers of a row. A malformed cell was landed as it is, under an empty name."""
    if pairs is None:
        return None
    named = {pair["key"]: pair["value"] for pair in pairs}
    if MALFORMED_NAME in named:
        return bytes(named[MALFORMED_NAME])
    return encode_headers(named)


def _numbers(table: Any, name: str) -> Any:
    return table.column(name).to_numpy().astype(np.int64)


def _times(table: Any) -> Any:
    return table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()


def _digests(table: Any) -> Any:
    """Return the digests as a numpy array. A value of another length is padded, so that it equals no digest."""
    cells = pc.fill_null(table.column("pack_digest"), b"")
    if not pc.all(pc.equal(pc.binary_length(cells), HASH_BYTES)).as_py():
        cells = pc.binary_slice(pc.binary_join_element_wise(cells, bytes(HASH_BYTES), b""), 0, HASH_BYTES)
    joined = cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
    joined = joined.cast(pa.binary(HASH_BYTES))
    return np.frombuffer(joined.buffers()[1], f"V{HASH_BYTES}")[joined.offset : joined.offset + len(joined)]


def _to_bytes(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> Any:
    return pa.ipc.open_stream(data).read_all()
