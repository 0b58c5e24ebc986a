"""Arrow columns against the same messages decoded one by one."""

import datetime as dt
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.segment.arrow import COLUMNS, SCHEMA, to_record_batches
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.pack import Pack, decode_pack, encode_pack, heads_of, stated_digest
from chaplain.segment.record import Kind, Record
from tests.support.segment_stage import batch, written
from tests.unit.segment.test_format import packs

ORDERS = Pack(5, 10, (b"alpha", b"be", b""), keys=(b"k1", None, b"k2"), request_counts=(2, 1), message_type=3)
PLAIN = Pack(6, 1, (b"x", b"yy"))


def rows(records: list[Record], **options) -> list[dict]:
    return [row for made in to_record_batches(records, **options) for row in made.to_pylist()]


def one_by_one(records: list[Record]) -> list[dict]:
    """What the columns must hold, the slow way."""
    expected = []
    for record in records:
        offset = record.first_offset
        for head in heads_of(record.body):
            raw = bytes(record.body[head.start : head.end])
            pack = decode_pack(raw)
            names = [
                (pack.first_id + request, number)
                for request, count in enumerate(pack.request_counts or (1,) * len(pack.values))
                for number in range(count)
            ]
            for row, value in enumerate(pack.values):
                expected.append(
                    {
                        "key": pack.keys[row] if pack.keys else None,
                        "value": value,
                        "topic": record.stream,
                        "offset": offset,
                        "timestamp": dt.datetime.fromtimestamp(0, dt.UTC)
                        + dt.timedelta(microseconds=record.timestamp_ns // 1000),
                        "headers": pack.headers[row] if pack.headers else None,
                        "kind": pack.message_type,
                        "client_id": pack.client_id,
                        "client_message_id": names[row][0],
                        "message_no": names[row][1],
                        "regime": record.regime,
                        "message_index": record.index,
                        "ingest_node": record.origin_node,
                        "pack_digest": stated_digest(raw),
                    }
                )
                offset += 1
    return expected


def test_arrow_schema_has_types_that_spark_accepts():
    (made,) = to_record_batches([batch(1, [ORDERS])])
    assert made.schema == SCHEMA
    made.validate(full=True)
    allowed = {pa.binary(), pa.string(), pa.int32(), pa.int64(), pa.timestamp("us", "UTC")}
    assert {field.type for field in made.schema} <= allowed


def test_rows_of_a_known_batch_are_decoded():
    found = rows([batch(41, [ORDERS, PLAIN], 1000, origin_node=2)])
    assert [row["offset"] for row in found] == [1000, 1001, 1002, 1003, 1004]
    assert [row["value"] for row in found] == [b"alpha", b"be", b"", b"x", b"yy"]
    assert [row["key"] for row in found] == [b"k1", None, b"k2", None, None]
    assert [(row["client_message_id"], row["message_no"]) for row in found] == [
        (10, 0),
        (10, 1),
        (11, 0),
        (1, 0),
        (2, 0),
    ]
    assert {row["topic"] for row in found} == {"orders"}
    assert {row["message_index"] for row in found} == {41}


@settings(deadline=None)
@given(st.lists(st.lists(packs(), min_size=1, max_size=4), min_size=1, max_size=5), st.integers(1, 20))
def test_columns_equal_single_decoding(groups, rows_max):
    records = []
    offset = 7
    for index, group in enumerate(groups):
        records.append(batch(index, group, offset, stream=f"straße-{index}", origin_node=index))
        offset += records[-1].count
    assert rows(records, rows_max=rows_max) == one_by_one(records)
    for made in to_record_batches(records, rows_max=rows_max):
        made.validate(full=True)
        assert made.num_rows <= max(rows_max, *(record.count for record in records))


def test_columns_can_be_chosen_and_ordered():
    (made,) = to_record_batches([batch(1, [ORDERS])], ("value", "offset"))
    assert made.schema.names == ["value", "offset"]
    for name in COLUMNS:
        assert next(to_record_batches([batch(1, [ORDERS])], (name,))).num_rows == 3


def test_other_record_kinds_give_no_rows():
    assert list(to_record_batches([])) == []
    assert list(to_record_batches([Record(Kind.META, b"x"), Record(Kind.MARK)])) == []


def test_batch_without_offsets_has_null_offsets():
    assert [row["offset"] for row in rows([batch(1, [PLAIN], NO_OFFSET), batch(2, [PLAIN], 5)])] == [None, None, 5, 6]


def test_scanned_views_decode_like_bytes():
    records = [batch(index, [ORDERS, PLAIN], 5 * index) for index in range(30)]
    _, found = written(records).survey()
    assert rows(found) == rows(records)


def test_decoding_cost_grows_with_packs_and_not_with_messages():
    """Counts Python calls, not seconds: they must grow with packs, not with messages."""
    import cProfile
    import pstats

    def calls(messages: int) -> int:
        records = [batch(1, [Pack(1, 1, tuple(np.full((messages, 10), 65, np.uint8).view("S10").ravel().tolist()))])]
        profile = cProfile.Profile()
        profile.enable()
        assert sum(made.num_rows for made in to_record_batches(records)) == messages
        profile.disable()
        return pstats.Stats(profile).total_calls

    assert calls(20_000) == calls(20)


def broken(change) -> Record:
    raw = bytearray(encode_pack(ORDERS))
    change(raw)
    return Record(Kind.BATCH, bytes(raw), count=3, first_offset=0)


def put(place: int, value: int):
    def change(raw: bytearray) -> None:
        raw[place : place + 4] = value.to_bytes(4, "little")

    return change


@pytest.mark.parametrize(
    "change",
    [
        put(0, 0),
        put(0, 96),
        put(0, 1 << 31),
        put(4, 0),
        put(4, 1 << 31),
        put(16, 0),
        put(16, 4),
        put(24, 0xFFFF),
        put(28, 1),
        put(64, 3),
        put(64, 0),
        put(68, 0xFFFFFFFF),
        put(72, 20),
        put(72, 0xFFFFFFFF),
        put(84, 0x7FFFFFFF),
        lambda raw: raw.extend(bytes(8)),
        lambda raw: raw.pop(),
    ],
)
def test_sizes_that_do_not_add_up_are_malformed(change):
    with pytest.raises(Malformed):
        rows([broken(change)])


def test_counts_and_offsets_out_of_range_are_malformed():
    good = batch(1, [ORDERS])
    for fields in ({"count": 4}, {"first_offset": (1 << 63) - 1}, {"index": 1 << 63}):
        names = {name: getattr(good, name) for name in Record.__struct_fields__}
        with pytest.raises(Malformed):
            rows([Record(**names | fields)])


def test_pandas_is_not_imported() -> None:
    """It takes longer than all the rest that a process of Spark's does for a few rows."""
    program = (
        "import sys, pyarrow as pa\nfrom tests.unit.segment import test_arrow as t\n"
        "from chaplain.pipeline.source.rows import OffsetRange, fields, rows_of\n"
        "from chaplain.segment.arrow import cell_of\n"
        "record = t.batch(1, [t.ORDERS, t.PLAIN])\n"
        "first = record.first_offset\n"
        "columns = [field.split()[0] for field in fields(True)]\n"
        "found = [*rows_of([record], OffsetRange(record.stream, first + 1, first + 4), columns)]\n"
        "assert sum(one.num_rows for one in found) == 3, found\n"
        "cell_of(b'', pa.string())\n"
        "assert 'pandas' not in sys.modules\n"
    )
    here = str(Path(__file__).parents[3])
    done = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
