"""Proof by runs, without Spark: a whole log has no break however it is cut, and damage is named however it is cut."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pipeline_stage import CLUSTER, journal, put

from chaplain.pipeline.index import Index
from chaplain.pipeline.runs import Break, stitch
from chaplain.pipeline.verify import check, cut, hidden
from chaplain.segment.pack import Pack, decode_pack, encode_pack
from chaplain.segment.record import Kind, Record

CUTS = (1, 4, 1000)


def breaks(folder: Path, tasks: int) -> list[Break]:
    index = Index(folder)
    index.refresh()
    return [*stitch([check(run) for run in cut(index.places, tasks)], CLUSTER), *hidden(index)]


def kinds(found: list[Break]) -> set[tuple[str, int, str]]:
    return {(one.stream, one.offset, one.kind) for one in found}


def replaced(groups: list[list[Record]], index: int, **fields: object) -> list[list[Record]]:
    """The same log, with the first batch of one message changed and its checksums right."""
    group = groups[index - 1]
    at = next(number for number, record in enumerate(group) if record.kind == Kind.BATCH)
    changed = [*group[:at], msgspec.structs.replace(group[at], **fields), *group[at + 1 :]]
    return [*groups[: index - 1], changed, *groups[index:]]


def body(groups: list[list[Record]], index: int) -> bytes:
    return next(bytes(record.body) for record in groups[index - 1] if record.kind == Kind.BATCH)


def again(pack: Pack, **fields: object) -> bytes:
    return encode_pack(msgspec.structs.replace(pack, **fields))


@pytest.mark.parametrize("tasks", CUTS)
def test_whole(tmp_path: Path, tasks: int) -> None:
    assert breaks(put(tmp_path, journal()), tasks) == []


@pytest.mark.parametrize("tasks", CUTS)
def test_missing_message(tmp_path: Path, tasks: int) -> None:
    groups = journal()
    found = kinds(breaks(put(tmp_path, groups[:20] + groups[21:]), tasks))
    assert ("", 22, "missing") in found
    assert any(stream == "orders" and kind == "missing" for stream, _, kind in found)
    assert any(kind == "lane" for _, _, kind in found)


@pytest.mark.parametrize("tasks", CUTS)
def test_altered_payload(tmp_path: Path, tasks: int) -> None:
    groups = journal()
    raw = body(groups, 5).replace(b"3/7", b"3/8")
    assert kinds(breaks(put(tmp_path, replaced(groups, 5, body=raw)), tasks)) == {("orders", 75, "digest")}


@pytest.mark.parametrize("tasks", CUTS)
def test_forged_pack_breaks_the_stream_chain(tmp_path: Path, tasks: int) -> None:
    groups = journal()
    pack = decode_pack(body(groups, 5))
    raw = again(pack, values=(b"forged", *pack.values[1:]))
    assert kinds(breaks(put(tmp_path, replaced(groups, 5, body=raw)), tasks)) == {("orders", 75, "stream chain")}


@pytest.mark.parametrize("tasks", CUTS)
def test_duplicated_offsets(tmp_path: Path, tasks: int) -> None:
    found = breaks(put(tmp_path, replaced(journal(), 5, first_offset=50)), tasks)
    assert Break("orders", 50, "offset", "75", "50") in found


@pytest.mark.parametrize("tasks", CUTS)
def test_altered_message_breaks_the_cluster_chain(tmp_path: Path, tasks: int) -> None:
    groups = journal()
    first = groups[6][0]
    raw = bytearray(first.body)
    raw[4 + 1 + 4 + 8 + 1 + 1 + 7] ^= 1  # the lowest octet of the body's timestamp
    groups[6] = [msgspec.structs.replace(first, body=bytes(raw)), *groups[6][1:]]
    assert kinds(breaks(put(tmp_path, groups), tasks)) == {("", 7, "cluster chain")}


@pytest.mark.parametrize("tasks", CUTS)
def test_skipped_request(tmp_path: Path, tasks: int) -> None:
    groups = journal()
    pack = decode_pack(body(groups, 5))
    raw = again(pack, first_id=pack.first_id + 1)
    assert ("orders", 75, "lane") in kinds(breaks(put(tmp_path, replaced(groups, 5, body=raw)), tasks))


@pytest.mark.parametrize("tasks", CUTS)
def test_flipped_bit(tmp_path: Path, tasks: int) -> None:
    put(tmp_path, journal())
    path = sorted(tmp_path.glob("*.segment"))[0]
    path.write_bytes(path.read_bytes().replace(b"3/7", b"3/8", 1))
    assert ("orders", 75, "damaged") in kinds(breaks(tmp_path, tasks))
