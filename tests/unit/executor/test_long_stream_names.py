"""Databases, copies and row changes of streams with names of any allowed length."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from chaplain.file_names import FILE_NAME_BYTES_MAX, bounded, is_shortened
from chaplain.runtime.databases.change_log import ESCAPE, SUFFIX_BYTES_MAX, quoted
from chaplain.runtime.databases.sqlite import backup
from chaplain.runtime.databases.sqlite.integrity import files_in
from tests.unit.executor.sqlite_stage import Database, Order, told

NAMES = ["x" * 255, "/" * 255, "x" * 232, "/" * 82, "a/" * 127]


@pytest.mark.parametrize("stream", NAMES)
def test_stream_with_a_long_name_has_a_database_with_copies(tmp_path: Path, stream: str) -> None:
    order, database = Order(), Database(tmp_path, stream)
    database.apply(order.message("create table t(a)", "insert into t values (1)"))
    path = database.engine.path
    backup.put_in_place(backup.make_copy(path), path)
    assert told(tmp_path, stream)
    assert {found for found, _ in files_in(tmp_path)} == {stream}
    database.engine.close()
    backup.set_aside(backup.beside(path, backup.KEPT))
    backup.rebuild(tmp_path, path, stream)
    database = Database(tmp_path, stream)
    assert database.engine.index == 0
    database.engine.close()


def test_damaged_database_with_a_shortened_name_is_listed_by_file_name(tmp_path: Path) -> None:
    file = tmp_path / (quoted("/" * 255) + ".sqlite")
    file.write_bytes(b"no database" * 100)
    assert files_in(tmp_path) == [(quoted("/" * 255), file)]
    apsw.Connection(str(tmp_path / "empty.sqlite")).close()


@pytest.mark.parametrize("stream", ["shop", "a/b.c", "x" * 231, "/" * 77])
def test_names_that_fit_are_not_shortened(stream: str) -> None:
    assert not is_shortened(quoted(stream), ESCAPE)
    assert quoted(stream) == "".join(one if one.isalnum() else f"%{ord(one):02X}" for one in stream)


def test_shortened_names_fit_are_unique_and_end_in_no_half_escape() -> None:
    room = FILE_NAME_BYTES_MAX - SUFFIX_BYTES_MAX
    streams = [letters * "x" + "/" * (255 - letters) for letters in range(255)] + [
        "/" * count for count in range(78, 255)
    ]
    names = {quoted(stream) for stream in streams}
    assert len(names) == len(streams)
    for name in names:
        assert len(name) <= room
        front = name.partition(ESCAPE + "-")[0]
        assert front.count(ESCAPE) * 3 == sum(len(part) for part in front.split("x") if part)


def test_shortened_name_equals_no_other_streams_name() -> None:
    short = bounded("x" * 300, "x" * 300, "%", 100)
    assert quoted(short) != short
