"""Bits that flip in files of databases: whatever they are in, they are found and named, and no copy spreads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

from chaplain.cli.main import main
from chaplain.executor.events import (
    Apply,
    CheckDatabase,
    CopyTaken,
    DatabaseOpened,
    KeepDatabase,
    OpenDatabase,
    ReadKept,
    RemakeDatabase,
    TakeCopy,
    Work,
)
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.databases.interface import DatabaseDamaged, EngineFailed
from chaplain.runtime.databases.snapshots import CopyTasks
from chaplain.runtime.databases.sqlite.database import SqliteDatabase
from chaplain.runtime.databases.sqlite.integrity import check
from chaplain.runtime.databases.workers import Databases
from tests.unit.executor.sqlite_stage import Database, Order

ROWS = 600
"""Some pages of each table and index."""
INSERT = "insert into t(b, c, d) values (?, ?, ?)"


def fill(order: Order, apply: Callable[[Work], object]) -> None:
    apply(order.message("create table t(a integer primary key, b text, c real, d text)", "create index by_d on t(d)"))
    apply(order.message("create table u(k text primary key, v) without rowid", "create table e(x)"))
    inserts = [(INSERT, [f"row {number:04}", number, f"name {number:04}"]) for number in range(ROWS)]
    apply(order.message(*inserts))
    apply(order.message(*[("insert into u values (?, ?)", [f"key {number:04}", number]) for number in range(ROWS)]))
    apply(order.message("update t set c = c + 0.5 where a % 3 = 0", "delete from t where a % 50 = 7"))


class Node:
    """A node's databases, and what is done about their copies."""

    def __init__(self, folder: Path) -> None:
        self.databases = Databases("sqlite", folder)
        self.engines = self.databases._engines
        self.copies = CopyTasks(self.databases._open, folder, self.engines, self.databases._locks)
        self.file = folder / "main.sqlite"
        self.opened = self.databases.open(OpenDatabase("main"))

    def apply(self, work: Work) -> None:
        assert not self.databases.apply(Apply("main", (work,))).failed

    def query(self, sql: str) -> list[tuple[object, ...]]:
        return list(self.engines["main"].query(sql, ()).rows)

    def close(self) -> None:
        self.databases.close()


def flip(file: Path, needle: bytes, which: int = 0, at: int = 0) -> None:
    """One bit, in one of the places where these octets stand."""
    raw = bytearray(file.read_bytes())
    place = -1
    for _ in range(which + 1):
        place = raw.index(needle, place + 1)
    raw[place + at] ^= 0x04
    file.write_bytes(raw)


def closed(folder: Path) -> tuple[Path, bytes]:
    """A database's file, which nobody has open, and its fingerprint."""
    order, database = Order(), Database(folder)
    fill(order, database.apply)
    fingerprint = database.engine.fingerprint
    database.engine.close()
    return folder / "main.sqlite", fingerprint


def damage_of(file: Path) -> str:
    try:
        check(file, "main")
    except DatabaseDamaged as damage:
        return str(damage)
    return ""


# What is found.


def test_undamaged_database_passes_the_check(tmp_path: Path) -> None:
    file, _ = closed(tmp_path)
    checked = check(file, "main")
    assert (checked.index, checked.rows) == (5, ROWS - 12 + ROWS)


def test_flipped_bit_in_a_row_is_found(tmp_path: Path) -> None:
    file, fingerprint = closed(tmp_path)
    flip(file, b"row 0300", at=6)
    assert damage_of(file) == "t: 588 rows, and not all as they were written"
    database = Database(tmp_path)
    assert database.engine.fingerprint == fingerprint, "which shows nothing"
    assert database.rows("select b from t where a = 301") == [("row 0340",)], "nor does SQLite"
    database.engine.close()


def test_flipped_bit_in_an_index_is_found(tmp_path: Path) -> None:
    """Rows add up; but whoever looks for one by its name does not find it."""
    file, _ = closed(tmp_path)
    sound = file.read_bytes()
    found = []
    for which in range(sound.count(b"name 0300")):
        flip(file, b"name 0300", which, at=7)
        found.append(damage_of(file))
        file.write_bytes(sound)
    assert sorted(text[:5] for text in found) == ["row 2", "t: 58"], "row … missing from index; t: 588 rows, …"


def test_check_reads_rows_of_tables_without_rowids(tmp_path: Path) -> None:
    file, _ = closed(tmp_path)
    flip(file, b"key 0300", at=7)
    assert "u: 600 rows, and not all" in damage_of(file)


@pytest.mark.parametrize("column", ["tallies", "fingerprint", "budget", "seal"])
def test_flipped_bit_in_the_row_tally_is_found(tmp_path: Path, column: str) -> None:
    file, _ = closed(tmp_path)
    with apsw.Connection(str(file)) as connection:
        ((value,),) = connection.execute(f"select {column} from chaplain_state")
    connection.close()
    flip(file, value, at=len(value) - 1)
    assert damage_of(file) == "its position and tallies are not as they were written"


@pytest.mark.parametrize("column", ["idx", "requests", "changes"])
def test_flipped_bit_in_the_position_is_found(tmp_path: Path, column: str) -> None:
    """The rows add up as before, and messages would be passed over, or applied twice."""
    file, fingerprint = closed(tmp_path)
    connection = apsw.Connection(str(file))
    connection.execute(f"update chaplain_state set {column} = {column} + 1")
    connection.close()
    assert damage_of(file) == "its position and tallies are not as they were written"
    database = Database(tmp_path)
    assert database.engine.damage
    assert (database.engine.index, database.engine.fingerprint == fingerprint) == (0, False)
    database.engine.close()


def test_database_without_position_hash_is_accepted_and_gets_one(tmp_path: Path) -> None:
    file, fingerprint = closed(tmp_path)
    connection = apsw.Connection(str(file))
    connection.execute("alter table chaplain_state drop column seal")
    connection.close()
    assert check(file, "main").index == 5
    node = Node(tmp_path)
    assert (node.opened.index, node.opened.fingerprint, node.opened.damage) == (5, fingerprint, "")
    node.apply(_sixth())
    node.close()
    flip(file, node.engines["main"].fingerprint)
    assert damage_of(file) == "its position and tallies are not as they were written"


def test_flipped_bit_in_the_schema_is_found(tmp_path: Path) -> None:
    file, _ = closed(tmp_path)
    flip(file, b"c real", at=0)
    assert "fingerprint" in damage_of(file)
    assert SqliteDatabase(tmp_path, "main").damage


def test_flipped_bits_of_a_page_with_rows_are_found(tmp_path: Path) -> None:
    """But for what SQLite does not read: what is left between rows."""
    file, _ = closed(tmp_path)
    sound = file.read_bytes()
    page = sound.index(b"row 0300") // 4096 * 4096
    used = [place for place in range(page, page + 4096, 61) if sound[place]]
    unfound = []
    for place in used:
        raw = bytearray(sound)
        raw[place] ^= 0x10
        file.write_bytes(raw)
        if not damage_of(file):
            unfound.append(place - page)
    assert len(unfound) <= len(used) // 20, unfound


def test_unreadable_file_is_not_reported_as_damaged(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed) as failed:
        check(tmp_path / "nothing.sqlite", "main")
    assert not isinstance(failed.value, DatabaseDamaged)


def test_check_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = closed(tmp_path)
    monkeypatch.setattr("chaplain.runtime.databases.sqlite.integrity._STEPS_A_CALL", 100)
    with pytest.raises(EngineFailed, match="Interrupt"):
        check(file, "main", given_up=lambda: True)


def test_check_does_not_evaluate_old_constraints(tmp_path: Path) -> None:
    order, database = Order(), Database(tmp_path)
    database.apply(
        order.message("create table t(a check (a < 10 and typeof(a) = 'integer'), at default (datetime('now')))")
    )
    database.apply(order.message("insert into t(a) values (1)"))
    database.engine.close()
    assert damage_of(tmp_path / "main.sqlite") == ""


# Copies.


def damaged_while_open(folder: Path) -> tuple[Node, Order]:
    """A node that was started with a row that had rotted, and noticed nothing."""
    order, first = Order(), Node(folder)
    fill(order, first.apply)
    first.close()
    flip(first.file, b"row 0300", at=6)
    node = Node(folder)
    assert not node.opened.failed
    return node, order


def test_copy_with_damaged_rows_is_not_kept(tmp_path: Path) -> None:
    node, _ = damaged_while_open(tmp_path)
    kept = node.copies.keep(KeepDatabase("main"))
    assert "not all as they were written" in kept.damage
    assert not list(tmp_path.glob("*.kept*"))
    assert "not all" in node.copies.check(CheckDatabase("main")).damage
    node.close()


def test_damaged_copy_is_not_sent_to_others(tmp_path: Path) -> None:
    order, node = Order(), Node(tmp_path)
    fill(order, node.apply)
    assert node.copies.keep(KeepDatabase("main")).index == 5
    node.close()
    flip(tmp_path / "main.sqlite.kept", b"row 0300", at=6)
    node = Node(tmp_path)
    read = node.copies.read_kept(ReadKept(1, "main", 0))
    assert read.damage
    assert not read.data
    assert node.copies.read_kept(ReadKept(2, "main", 0)).data == b"", "it is there no more"
    assert (tmp_path / "main.sqlite.kept.damaged").exists()
    node.close()


def test_received_copy_with_damaged_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "giver").mkdir()
    (tmp_path / "taker").mkdir()
    order, giver, taker = Order(), Node(tmp_path / "giver"), Node(tmp_path / "taker")
    fill(order, giver.apply)
    giver.copies.keep(KeepDatabase("main"))
    kept = giver.copies.read_kept(ReadKept(1, "main", 0))
    raw = bytearray(kept.data)
    raw[raw.index(b"row 0300") + 6] ^= 4
    damaged = TakeCopy("main", 0, bytes(raw), len(raw), sha256(raw).digest())  # as if it was so before it was digested
    taken = taker.copies.take_copy(damaged)
    assert isinstance(taken, CopyTaken)
    assert "not all as they were written" in taken.failed
    taken = taker.copies.take_copy(TakeCopy("main", 0, kept.data, kept.size_bytes, kept.digest))
    assert isinstance(taken, DatabaseOpened)
    assert (taken.index, taken.fingerprint) == (5, giver.engines["main"].fingerprint)
    giver.close()
    taker.close()


# Made anew.


def test_damaged_database_is_set_aside_and_rebuilt_from_the_start(tmp_path: Path) -> None:
    node, _ = damaged_while_open(tmp_path)
    remade = node.copies.remake(RemakeDatabase("main"))
    assert (remade.index, remade.failed) == (0, "")
    assert (tmp_path / "main.sqlite.damaged").exists()
    again = Order()
    fill(again, node.apply)
    assert node.copies.check(CheckDatabase("main")).damage == ""
    assert node.query("select b from t where a = 301") == [("row 0300",)]
    node.close()
    database = Database(tmp_path)
    assert database.folded() == database.engine.fingerprint, "its row changes were told again"
    database.engine.close()


def test_damaged_database_is_rebuilt_from_its_copy(tmp_path: Path) -> None:
    order, node = Order(), Node(tmp_path)
    fill(order, node.apply)
    node.copies.keep(KeepDatabase("main"))
    later = order.message("insert into e values (1)")
    node.apply(later)
    fingerprint = node.engines["main"].fingerprint
    node.close()
    flip(node.file, b"row 0300", at=6)
    node = Node(tmp_path)
    remade = node.copies.remake(RemakeDatabase("main"))
    assert (remade.index, remade.kept) == (5, 5)
    node.apply(later)
    assert node.engines["main"].fingerprint == fingerprint
    assert node.copies.check(CheckDatabase("main")).damage == ""
    node.close()


def test_damaged_copy_is_not_used_for_a_rebuild(tmp_path: Path) -> None:
    order, node = Order(), Node(tmp_path)
    fill(order, node.apply)
    node.copies.keep(KeepDatabase("main"))
    node.close()
    flip(tmp_path / "main.sqlite.kept", b"row 0300", at=6)
    node = Node(tmp_path)
    remade = node.copies.remake(RemakeDatabase("main"))
    assert (remade.index, remade.kept) == (0, 0)
    node.close()


def test_database_behind_its_own_copy_continues_from_the_copy(tmp_path: Path) -> None:
    """A copy is synced, a commit is not: if the machine fails, the log has gone that would bring it further."""
    order, node = Order(), Node(tmp_path)
    fill(order, node.apply)
    node.close()
    before = node.file.read_bytes()
    node = Node(tmp_path)
    node.apply(order.message("insert into e values (1)"))
    node.copies.keep(KeepDatabase("main"))
    fingerprint = node.engines["main"].fingerprint
    node.close()
    node.file.write_bytes(before)
    node = Node(tmp_path)
    assert (node.opened.index, node.opened.fingerprint) == (6, fingerprint)
    node.close()


@pytest.mark.parametrize("octets", [b"nothing of ours, and no database" * 400, b"SQLite format 3\0" * 400])
def test_file_that_is_no_database_is_rebuilt_when_opened(tmp_path: Path, octets: bytes) -> None:
    file, _ = closed(tmp_path)
    file.write_bytes(octets)
    node = Node(tmp_path)
    assert (node.opened.index, node.opened.failed) == (0, "")
    assert node.opened.damage
    fill(Order(), node.apply)
    node.close()


def test_only_a_database_that_was_not_closed_is_checked_at_start(tmp_path: Path) -> None:
    closed(tmp_path)
    node = Node(tmp_path)
    assert node.opened.doubtful_rows == 0
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    node.apply(_sixth())
    for name in ("main.sqlite", "main.sqlite-wal"):
        (crashed / name).write_bytes((tmp_path / name).read_bytes())
    node.close()
    shutil.copytree(tmp_path / "rows", crashed / "rows")
    node = Node(crashed)
    assert node.opened.doubtful_rows == ROWS - 12 + ROWS + 1
    node.close()


def _sixth() -> Work:
    order = Order()
    order.index, order.offset = 5, 10_000
    return order.message("insert into e values (1)")


# By hand.


def exit_code(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code


def test_sql_check_reads_databases_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_cluster(tmp_path / "demo", 2, "sqlite", None)
    folder = tmp_path / "demo" / "node-2" / "databases"
    assert exit_code(["sql", "check", "--cluster", str(tmp_path / "demo")]) == 1
    folder.mkdir()
    node = Node(folder)
    fill(Order(), node.apply)
    assert exit_code(["sql", "check", "--cluster", str(tmp_path / "demo")]) == 0, "while it is open, too"
    node.copies.keep(KeepDatabase("main"))
    node.close()
    capsys.readouterr()
    flip(folder / "main.sqlite.kept", b"row 0300", at=6)
    assert exit_code(["sql", "check", "--cluster", str(tmp_path / "demo"), "--output", "json"]) == 3
    whole, rotten = json.loads(capsys.readouterr().out)
    assert whole == {"node": 2, "stream": "main", "file": "main.sqlite", "position": 5, "rows": 1188, "damage": ""}
    assert (rotten["file"], rotten["damage"]) == ("main.sqlite.kept", "t: 588 rows, and not all as they were written")
    assert not list(folder.glob("*.damaged")), "nothing is changed"
