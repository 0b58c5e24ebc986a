"""Landed tables, without Spark: what is written is what was read, in order, and damage to rows is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from chaplain.cli.main import cli
from chaplain.errors import ConfigError, Malformed, Missing, StorageError
from chaplain.link.auth.identity import Identity
from chaplain.pipeline.landing import compact as compaction
from chaplain.pipeline.landing.land import land, task_of, write_file
from chaplain.pipeline.source.offset_index import OffsetIndex
from chaplain.pipeline.source.rows import ranges
from chaplain.pipeline.tables import (
    STAGING,
    append_files,
    arrow_schema,
    commit,
    first_landed,
    landed_files,
    landed_offset,
    landed_streams,
    offsets_in_name,
    stray_files,
    table_path,
)
from chaplain.pipeline.verification.table_proof import find_table_breaks
from chaplain.pipeline.verification.verify import find_breaks, prove
from chaplain.segment.files import list_segments
from chaplain.segment.headers import encode_headers
from chaplain.segment.pack import Pack, encode_pack
from chaplain.verification.manifest import read, signer_for
from tests.spark.support.journal import rich_journal
from tests.spark.support.scene import Scene, split
from tests.spark.support.scene import changed as with_fields
from tests.spark.support.stage import ROWS, journal, put

STREAM = "orders"
Edit = Callable[[Any], tuple[Any, set[tuple[str, int, str]]]]


def landed(scene: Scene, batches: int = 3, plain: bool = False) -> Path:
    """The scene's stream in a table: batches of two files, cut in the middle of packs."""
    index = OffsetIndex(scene.segments)
    index.refresh()
    places = index.streams[STREAM]
    end = places[-1].first_offset + places[-1].count
    tables = scene.directory / "tables"
    table = table_path(tables, STREAM)
    for batch in ranges(places, STREAM, 0, end, batches):
        cut = ranges(batch.places, STREAM, batch.start, batch.end, 2)
        prefix = f"{STAGING}/" if plain else ""
        files = [write_file(task_of(one, table, f"{prefix}{one.start:020d}")) for one in cut]
        if plain:
            append_files(table, files)
        else:
            commit(table, STREAM, files, arrow_schema())
    return tables


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path, 1)
    scene.write()
    return scene


def rows(tables: Path) -> Any:
    return pa.concat_tables([pq.read_table(file) for file in landed_files(tables, STREAM)])


def named(tables: Path, **more: Any) -> set[tuple[str, int, str]]:
    return {(one.stream, one.offset, one.kind) for one in find_table_breaks(None, tables, STREAM, **more)}


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("batches", [1, 7])
def test_undamaged_table_has_no_violation(scene: Scene, batches: int, plain: bool) -> None:
    tables = landed(scene, batches, plain)
    found = rows(tables)
    assert found.column("offset").to_pylist() == list(range(landed_offset(tables, STREAM)))
    assert found.num_rows > 200
    assert named(tables) == set()


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_table_of_a_log_without_its_start_begins_with_the_first_offset(scene: Scene, kind: Any) -> None:
    given: dict[str, Any] = {"stream": STREAM, "path": str(scene.segments), "once": True, "format": kind}
    old, new = scene.directory / "old", scene.directory / "new"
    part = land(None, tables=old, batch_rows=10, **{**given, "once": False}, until=lambda: True)
    for file in list_segments(scene.segments)[:2]:
        file.path.unlink()
    kept = land(None, tables=new, batch_rows=50, **given)
    first, end = first_landed(new, STREAM), landed_offset(new, STREAM)
    assert part < first
    assert (kept, land(None, tables=new, **given)) == (end - first, 0)
    assert rows(new).column("offset").to_pylist() == list(range(first, end))
    assert named(new) == set()
    with pytest.raises(Missing, match=f"offsets {part} to {first - 1} .* dropped .* begins with offset {first}"):
        land(None, tables=old, **given)
    file = landed_files(new, STREAM)[0]
    pq.write_table(pq.read_table(file).slice(1), file)
    assert (STREAM, first, "missing") in named(new)


@pytest.mark.parametrize("stream", ["orders/eu", "a%2Fb", "~", "~2F", ".hidden", "..", "a:b?c#d&e[f]{g}*"])
def test_every_stream_has_its_own_folder(tmp_path: Path, stream: str) -> None:
    table = Path(table_path(tmp_path, stream))
    assert table.parent == tmp_path
    assert not set(table.name) & set("%/?#*[]{} ")
    DeltaTable.create(str(table), schema=arrow_schema())
    assert landed_streams(tmp_path) == [stream]


def test_folder_names_of_streams_are_unique(tmp_path: Path) -> None:
    streams = ["a/b", "a~2Fb", "a%2Fb", "a%2fb", "a2Fb", "a~b", "a_b", "a.b", ".a", "~2Ea"]
    assert len({table_path(tmp_path, stream) for stream in streams}) == len(streams)


def poisoned(folder: Path) -> Path:
    """A log of an earlier version: the headers at offset 30 do not follow their form."""
    groups = journal(messages=3)
    fine, bad = encode_headers({"a": b"1"}), b"\xff"
    batches = [(group, part) for group in groups for part, one in enumerate(group) if one.stream == STREAM]
    for number, (group, part) in enumerate(batches):
        cells = tuple(bad if (number, row) == (1, 5) else fine if row % 2 else None for row in range(ROWS))
        packs, _ = split(group[part])
        body = b"".join(with_fields(raw, headers=cells) for raw in packs)
        group[part] = msgspec.structs.replace(group[part], body=body)
    return put(folder, groups)


def test_land_reports_or_keeps_malformed_headers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    segments, tables = poisoned(tmp_path / "segments"), tmp_path / "tables"
    given: dict[str, Any] = {"stream": STREAM, "tables": tables, "path": str(segments), "once": True}
    with pytest.raises(Malformed, match=r"'orders': the headers at offset 30 .*failOnMalformedHeaders"):
        land(None, **given)
    assert land(None, **given, fail_on_malformed_headers=False) == 3 * ROWS
    assert [record.args for record in caplog.records if "offset" in record.msg] == [(STREAM, pa.scalar(30))]
    headers = rows(tables).column("headers").to_pylist()
    assert headers[30] == [{"key": "", "value": b"\xff"}]
    assert (headers[28], headers[29]) == ([{"key": "a", "value": b"1"}], None)
    assert named(tables) == set(), "the packs are put together again as they were"


@pytest.mark.parametrize("kind", ["delta", "parquet"])
@pytest.mark.parametrize("stream", ["/" * 255, "x" * 200 + "/" * 55])
def test_stream_with_a_long_name_lands_and_is_listed(tmp_path: Path, stream: str, kind: Any) -> None:
    renamed = [
        [msgspec.structs.replace(record, stream=stream) if record.stream == STREAM else record for record in group]
        for group in journal(messages=3)
    ]
    segments, tables = put(tmp_path / "segments", renamed), tmp_path / "tables"
    given: dict[str, Any] = {"stream": stream, "tables": tables, "path": str(segments), "once": True, "format": kind}
    assert (land(None, **given), land(None, **given)) == (3 * ROWS, 0)
    assert landed_streams(tables) == [stream]
    assert landed_offset(tables, stream) == 3 * ROWS
    assert len(landed_files(tables, stream)) == 1


@pytest.mark.parametrize("folder", ["with blanks", "ü#1", "50% off", "[a] {b}"])
@pytest.mark.parametrize("plain", [False, True])
def test_table_folder_may_have_spaces_and_special_characters(tmp_path: Path, folder: str, plain: bool) -> None:
    scene = Scene(tmp_path / folder, 1)
    scene.write()
    tables = landed(scene, 2, plain)
    assert rows(tables).num_rows == landed_offset(tables, STREAM) > 200
    assert named(tables) == set()


def test_table_folder_with_a_delta_escape_is_refused_before_writing(scene: Scene) -> None:
    tables = scene.directory / "a%41b"
    with pytest.raises(ConfigError, match=r"%41.*choose another folder"):
        land(None, stream=STREAM, tables=tables, path=str(scene.segments), once=True)
    assert not tables.exists()
    assert land(None, stream=STREAM, tables=tables, path=str(scene.segments), once=True, format="parquet") > 200


def test_compaction_preserves_rows_and_order(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "ROWS_MAX", 150)
    tables = landed(scene, 20)
    before, files = rows(tables), landed_files(tables, STREAM)
    table = table_path(tables, STREAM)
    assert len(files) == 40
    compaction.compact(table)
    after = landed_files(tables, STREAM)
    assert len(after) <= 12
    assert rows(tables).equals(before)
    assert landed_offset(tables, STREAM) == before.num_rows
    assert [one.start for one in compaction.list_files(table)] == sorted(
        one.start for one in compaction.list_files(table)
    )
    assert named(tables) == set()


@pytest.mark.parametrize("plain", [False, True])
def test_batch_is_committed_once(scene: Scene, plain: bool) -> None:
    tables = landed(scene, 2, plain)
    before = landed_files(tables, STREAM)
    index = OffsetIndex(scene.segments)
    index.refresh()
    table = table_path(tables, STREAM)
    again = write_file(task_of(ranges(index.streams[STREAM], STREAM, 0, 20, 1)[0], table, "again"))
    with pytest.raises(StorageError, match="another process landed"):
        append_files(table, [again]) if plain else commit(table, STREAM, [again], arrow_schema())
    assert landed_files(tables, STREAM) == before


def one_gone(table: Any, at: int) -> Any:
    return pa.concat_tables([table.slice(0, at), table.slice(at + 1)])


def changed(table: Any, name: str, at: int, value: Any) -> Any:
    column = table.column(name).to_pylist()
    column[at] = value
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(name), pa.array(column, table.schema.field(name).type))


def pack_start(table: Any, at: int) -> int:
    """The offset at which the pack of this row begins."""
    digest = table.column("pack_digest")[at]
    return int(pc.min(table.filter(pc.equal(table.column("pack_digest"), digest)).column("offset")).as_py())


def missing(table: Any) -> Any:
    return one_gone(table, 50), {(STREAM, 50, "missing")}


def missing_first(table: Any) -> Any:
    return one_gone(table, 0), {(STREAM, 0, "missing")}


def missing_last(table: Any) -> Any:
    return table.slice(0, table.num_rows - 1), {(STREAM, table.num_rows - 1, "missing")}


def missing_pack(table: Any) -> Any:
    start = pack_start(table, 60)
    kept = table.filter(pc.not_equal(table.column("pack_digest"), table.column("pack_digest")[60]))
    return kept, {(STREAM, start, "missing")}


def last_row_of_a_message(table: Any) -> Any:
    indexes = table.column("message_index").to_pylist()
    at = next(n for n in range(40, len(indexes)) if indexes[n] != indexes[n + 1])
    return one_gone(table, at), {(STREAM, at, "missing")}


def duplicated(table: Any) -> Any:
    doubled = pa.concat_tables([table.slice(0, 51), table.slice(50, 1), table.slice(51)])
    return doubled, {(STREAM, 50, "repeated")}


def altered(table: Any) -> Any:
    return changed(table, "value", 70, b"forged"), {(STREAM, pack_start(table, 70), "digest")}


def swapped(table: Any) -> Any:
    start = pack_start(table, 70)
    first, second = table.column("value")[start].as_py(), table.column("value")[start + 1].as_py()
    return changed(changed(table, "value", start, second), "value", start + 1, first), {(STREAM, start, "digest")}


def keyed(table: Any) -> Any:
    return changed(table, "key", 70, b"k"), {(STREAM, pack_start(table, 70), "digest")}


def another_client(table: Any) -> Any:
    start = pack_start(table, 70)
    return changed(table, "client_id", start, 77), {(STREAM, start, "digest")}


def another_digest(table: Any) -> Any:
    """Of one row: it seems to be a pack of its own, and splits the one it was of."""
    start = pack_start(table, 70)
    return changed(table, "pack_digest", start, b"\1" * 32), {(STREAM, start, "digest"), (STREAM, start + 1, "digest")}


def stale_regime(table: Any) -> Any:
    return changed(table, "regime", 80, 0), {(STREAM, 80, "regime")}


def earlier(table: Any) -> Any:
    return changed(table, "timestamp", 80, table.column("timestamp")[0].as_py()), {(STREAM, 80, "time")}


def another_message(table: Any) -> Any:
    return changed(table, "message_index", 80, 1), {(STREAM, 80, "order")}


def another_topic(table: Any) -> Any:
    return changed(table, "topic", 80, "audit"), {(STREAM, 80, "header")}


EDITS: tuple[Edit, ...] = (
    missing, missing_first, missing_last, missing_pack, last_row_of_a_message, duplicated, altered, swapped, keyed,
    another_client, another_digest, stale_regime, earlier, another_message, another_topic,
)  # fmt: skip


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_table_damage_is_named(scene: Scene, edit: Edit) -> None:
    tables = landed(scene, 1)
    files = landed_files(tables, STREAM)
    parts = [pq.read_table(file) for file in files]
    whole, expected = edit(pa.concat_tables(parts))
    cut = parts[0].num_rows
    pq.write_table(whole.slice(0, cut), files[0])
    pq.write_table(whole.slice(cut), files[1])
    assert named(tables) == expected


def test_missing_table_file_is_one_violation(scene: Scene) -> None:
    tables = landed(scene, 3, plain=True)
    gone = Path(landed_files(tables, STREAM)[2])
    gone.unlink()
    start = int(gone.name.split("-")[0])
    assert landed_offset(tables, STREAM) == start
    assert named(tables) == {(STREAM, start, "missing")}
    for stray in stray_files(tables, STREAM):
        Path(stray).unlink()
    # Nobody says how far plain files should reach: what is left is a table that ends earlier.
    assert named(tables) == set()


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize(("kind", "spoil"), [("delta", Path.unlink), ("delta", cut_off), ("parquet", cut_off)])
def test_unreadable_table_file_is_one_violation(scene: Scene, kind: Any, spoil: Callable[[Path], None]) -> None:
    given: dict[str, Any] = {"stream": STREAM, "path": str(scene.segments), "once": True, "format": kind}
    land(None, tables=scene.directory, batch_rows=40, **given)
    files = [Path(file) for file in landed_files(scene.directory, STREAM)]
    spoilt = {files[1], files[2], files[-1]}
    for file in spoilt:
        spoil(file)
    breaks = find_table_breaks(None, scene.directory, STREAM)
    assert {(one.offset, one.kind, one.file) for one in breaks} == {
        (offsets_in_name(file.name)[0], "damaged", file.name) for file in spoilt
    }


def test_table_is_compared_with_a_manifest(scene: Scene, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    assert prove(None, path=str(scene.segments), manifest=manifest).breaks == []
    proven = read(manifest, signer_for(manifest, ""))
    assert named(landed(scene), proven=proven) == set()
    other = Scene(tmp_path / "other", 1)
    other.groups = rich_journal(1, parts_at=20, messages=31)
    other.write()
    tables = landed(other)
    assert named(tables) == set()
    assert proven is not None
    end = proven.state.tails[STREAM].next_offset
    assert named(tables, proven=proven) == {(STREAM, end - 1, "stream chain")}


def test_table_cut_within_and_between_packs_agrees_with_the_manifest(scene: Scene, tmp_path: Path) -> None:
    """With 80 files, some packs are cut, and some messages are cut between two packs."""
    manifest = tmp_path / "manifest.json"
    assert prove(None, path=str(scene.segments), manifest=manifest).breaks == []
    tables = landed(scene, batches=40, plain=True)
    assert named(tables, proven=read(manifest, signer_for(manifest, ""))) == set()


def test_log_and_tables_are_compared_with_one_manifest(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signed by the cluster's client, unless somebody else is named: also when it is read for tables."""
    cluster, tables = scene.directory, landed(scene)
    node = f'[[nodes]]\nid = 1\nendpoint = "tcp://127.0.0.1:1"\nkey = "{"A" * 43}"\n'
    (cluster / "cluster.toml").write_text(f'cluster = "c"\nseal = "aes-256-gcm"\nidentity = "client.identity"\n{node}')
    for name in ("client", "other"):
        (cluster / f"{name}.identity").write_text(Identity.generate(random.Random(name)).text())
    monkeypatch.setattr("chaplain.pipeline.local_session", lambda *_, **__: None)
    manifest, words = cluster / "manifest", ["pipeline", "verify", "--cluster", str(cluster), "--tables", str(tables)]
    for _ in range(2):
        result = CliRunner().invoke(cli, [*words, "--manifest", str(manifest)], catch_exceptions=False)
        assert (result.exit_code, json.loads(manifest.read_text())["rows"] > 200) == (0, True), result.output
    with pytest.raises(ConfigError, match="give the identity that signed it"):
        find_breaks(cast("Any", None), tables=tables, manifest=manifest)
    assert not manifest.with_name("manifest.identity").exists(), "who reads makes no key"
    assert find_breaks(cast("Any", None), tables=tables, manifest=manifest, identity=cluster / "client.identity") == []
    monkeypatch.setenv("CHAPLAIN_IDENTITY", str(cluster / "other.identity"))
    with pytest.raises(ConfigError, match="signed by another identity: give the identity"):
        prove(None, cluster=cluster, manifest=manifest)


def test_packs_of_every_shape_are_reconstructed() -> None:
    from chaplain.pipeline.source.rows import header_lists
    from chaplain.pipeline.verification.table_check import check_pack
    from chaplain.segment.arrow import to_record_batches
    from chaplain.segment.record import Kind, Record

    values = (b"a", b"", b"ccc")
    head = encode_headers({"h": b"1"})
    for keys in (None, (None, b"k", b""), (None, None, None)):
        for headers in (None, (None, head, encode_headers({})), (None, None, None)):
            for counts in (None, (1, 2), (1, 1, 1)):
                for signature in ((1, bytes(64)), (2, bytes(32)), (0, b"")):
                    raw = encode_pack(Pack(3, 9, values, keys, headers, counts, 4, *signature))
                    record = Record(Kind.BATCH, raw, 5, 100, 7, 3, 1, STREAM)
                    (batch,) = to_record_batches([record])
                    table = pa.Table.from_batches([batch])
                    place = table.schema.get_field_index("headers")
                    lists = header_lists(table.column("headers").combine_chunks())
                    table = table.set_column(place, "headers", lists)
                    assert check_pack(STREAM, table) == []
                    broken = table.set_column(1, "value", pa.array([b"a", b"", b"ccd"]))
                    assert len(check_pack(STREAM, broken)) == 1
