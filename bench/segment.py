"""Measures how fast one CPU core decodes segment files to Arrow, compared with a loop that unpacks each message.

Writes segments of 100-byte messages in packs of 64 to 500, then decodes them to eight columns, including checksums.
The loop uses `struct`. Prints a table and one line of JSON. The best of several runs counts, because other processes
may use the machine.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from chaplain.core import Rename, WriteAt
from chaplain.segment.arrow import SCHEMA, to_record_batches
from chaplain.segment.files import OpenSegment, list_segments
from chaplain.segment.pack import KEYS, NOTHING, Pack, encode_pack, heads_of
from chaplain.segment.record import Flag, Kind, Record
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter

COLUMNS = ("offset", "timestamp", "key", "value", "client_id", "client_message_id", "regime", "message_index")
MESSAGE_BYTES = 100
PACKS_A_RECORD = 8


def make_packs(chance: random.Random) -> list[tuple[int, bytes]]:
    """Return packs to choose from. Their creation is the client's work and is not measured."""
    packs = []
    for client in range(64):
        count = chance.randint(64, 500)
        values = tuple(chance.randbytes(MESSAGE_BYTES - 8) for _ in range(count))
        keys = tuple(None if chance.random() < 0.1 else chance.randbytes(8) for _ in range(count))
        pack = Pack(client, 1, values, keys=keys, signature_type=1, signature=bytes(64))
        packs.append((count, encode_pack(pack)))
    return packs


def write_segments(folder: Path, messages: int, segment_bytes: int, seed: int) -> tuple[int, float]:
    """Return the number of written messages, and the seconds that the writer core took."""
    chance = random.Random(seed)
    packs = make_packs(chance)
    writer = SegmentWriter(LogSettings("bench", 5, segment_bytes=segment_bytes), chance)
    offset = index = 0
    writing = 0.0
    while offset < messages:
        drawn = [chance.choice(packs) for _ in range(PACKS_A_RECORD)]
        count = sum(number for number, _ in drawn)
        began = time.process_time()
        body = b"".join([pack for _, pack in drawn])
        record = Record(
            Kind.BATCH, body, index, offset, index * 10**6, count, regime=1, stream="orders", flags=Flag.SETTLED
        )
        operations = writer.append([record])
        writing += time.process_time() - began
        for operation in operations:
            assert isinstance(operation, WriteAt | Rename)
            perform(folder, operation)
        offset, index = offset + count, index + 1
    return offset, writing


def perform(folder: Path, operation: WriteAt | Rename) -> None:
    if isinstance(operation, Rename):
        (folder / operation.file).rename(folder / operation.to)
        return
    path = folder / operation.file
    path.touch()
    with path.open("r+b") as stream:
        stream.seek(operation.position)
        stream.write(operation.data)


def records_in(folder: Path) -> Iterator[Record]:
    for file in list_segments(folder):
        with OpenSegment(file.path) as segment:
            for found in segment.scans(segment.header.records_start, final=True):
                assert found.clean
                for _, record in found.records:
                    yield record


def decode_columns(folder: Path) -> int:
    return sum(batch.num_rows for batch in to_record_batches(records_in(folder), COLUMNS))


def decode_loop(folder: Path) -> int:
    return sum(loop_batch(record).num_rows for record in records_in(folder))


def loop_batch(record: Record) -> Any:
    """Decode the same columns, message by message."""
    rows: list[tuple[Any, ...]] = []
    size = struct.Struct("<I").unpack_from
    body = memoryview(record.body)
    offset = record.first_offset
    for head in heads_of(body):
        sizes_at = head.tables_at + 4 * head.tabled_requests
        keys_at = sizes_at + 4 * head.count
        value_at = head.data_at
        key_at = value_at + sum(size(body, sizes_at + 4 * row)[0] for row in range(head.count))
        for row in range(head.count):
            (value_size,) = size(body, sizes_at + 4 * row)
            (key_size,) = size(body, keys_at + 4 * row) if head.columns & KEYS else (NOTHING,)
            key = None
            if key_size != NOTHING:
                key = body[key_at : key_at + key_size]
                key_at += key_size
            value = body[value_at : value_at + value_size]
            value_at += value_size
            time_us = record.timestamp_ns // 1000
            rows.append((offset, time_us, key, value, head.client_id, head.first_id + row, record.regime, record.index))
            offset += 1
    schema = pa.schema([SCHEMA.field(name) for name in COLUMNS])
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def best_rate(decode: Callable[[Path], int], folder: Path, messages: int, runs: int) -> float:
    """Return messages per CPU second of the best run. CPU time excludes the time of other processes."""
    best = float("inf")
    for _ in range(runs):
        began = time.process_time()
        assert decode(folder) == messages
        best = min(best, time.process_time() - began)
    return messages / best


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--messages", type=int, default=2_000_000)
    arguments.add_argument("--segment-mib", type=int, default=64)
    arguments.add_argument("--runs", type=int, default=7)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        messages, writing = write_segments(folder, given.messages, given.segment_mib << 20, given.seed)
        loop = best_rate(decode_loop, folder, messages, 2)
        columns = best_rate(decode_columns, folder, messages, given.runs)
    result = {
        "messages": messages,
        "message_bytes": MESSAGE_BYTES,
        "columns": len(COLUMNS),
        "writer_per_second": round(messages / writing),
        "struct_loop_per_second": round(loop),
        "arrow_per_second": round(columns),
        "ratio": round(columns / loop, 1),
    }
    print(f"{messages:,} messages of {MESSAGE_BYTES} bytes, {len(COLUMNS)} columns, one core, checksums verified")
    print(f"  {'writer, packs ready':28}{messages / writing / 1e6:8.2f} M/s")
    print(f"  {'struct, message by message':28}{loop / 1e6:8.2f} M/s")
    print(f"  {'chaplain.segment.arrow':28}{columns / 1e6:8.2f} M/s   {columns / loop:.1f} times as fast")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
