"""What survives on a made-up disk, and what may not."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.core import Persist, Remove, Rename, Replace, WriteAt
from simulator.world.disk import LOST_WRITE, MISDIRECTED, SECTOR_BYTES, UNREADABLE, Disk, sectors


def synced(*operations, seed=1):
    disk = Disk(Random(seed))
    disk.begin(Persist(1, operations))
    disk.write()
    assert disk.sync() == [1]
    return disk


def test_synced_write_survives_kill_and_power_cut():
    disk = synced(WriteAt("log", 3, b"abc"), Replace("name", b"x"))
    disk.killed()
    disk.power_cut()
    assert disk.contents() == {"log": b"\0\0\0abc", "name": b"x"}


def test_rename_remove_and_overwrite_apply_in_order():
    disk = synced(Replace("a", b"1"), Rename("a", "b"), Replace("c", b"2"), Remove("c"), WriteAt("b", 0, b"9"))
    assert disk.contents() == {"b": b"9"}


def test_unwritten_operation_leaves_nothing_after_a_kill():
    disk = Disk(Random(1))
    disk.begin(Persist(1, (Replace("a", b"1"),)))
    disk.killed()
    assert disk.contents() == {}


def test_written_data_survives_a_kill():
    disk = Disk(Random(1))
    disk.begin(Persist(1, (WriteAt("a", 0, b"1"),)))
    disk.write()
    disk.killed()
    assert disk.contents() == {"a": b"1"}


def torn_outcomes(operation, old, seeds=200):
    found = set()
    for seed in range(seeds):
        disk = synced(WriteAt("f", 0, old), seed=seed)
        disk.begin(Persist(2, (operation,)))
        disk.write()
        disk.power_cut()
        found.add(disk.contents()["f"])
    return found


def test_power_cut_tears_unsynced_writes_at_sectors():
    old, new = b"o" * 3 * SECTOR_BYTES, b"n" * 3 * SECTOR_BYTES
    found = torn_outcomes(WriteAt("f", 0, new), old)
    parts = (b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES)
    assert found == {a + b + c for a in parts for b in parts for c in parts}


def test_power_cut_keeps_any_combination_of_writes_and_renames_in_order():
    kept = set()
    for seed in range(200):
        disk = Disk(Random(seed))
        for ticket, name in ((1, "a"), (2, "b")):
            disk.begin(Persist(ticket, (WriteAt(f"{name}.log", 0, b"x"), Replace(name, b"x"))))
            disk.write()
        disk.begin(Persist(3, (WriteAt("c.log", 0, b"x"),)))
        disk.power_cut()
        kept.add(tuple(sorted(disk.contents())))
    logs = ((), ("a.log",), ("b.log",), ("a.log", "b.log"))
    assert kept == {tuple(sorted((*log, *names))) for log in logs for names in ((), ("a",), ("a", "b"))}


def test_one_sync_makes_exactly_the_written_data_durable():
    disk = Disk(Random(1))
    for ticket in (1, 2, 3):
        disk.begin(Persist(ticket, (Replace(str(ticket), b"x"),)))
    disk.write()
    disk.write()
    assert disk.sync() == [1, 2]
    disk.power_cut()
    assert sorted(disk.contents()) == ["1", "2"]


def test_replace_is_complete_or_absent_after_a_power_cut():
    old, new = b"o" * 2000, b"n" * 2000
    assert torn_outcomes(Replace("f", new), old) == {old, new}


def test_disk_failure_lasts_until_a_restart():
    disk = Disk(Random(1))
    for ticket in (1, 2):
        disk.begin(Persist(ticket, (Replace("f", b"x"),)))
        disk.write()
    assert disk.fail("EIO") == [1, 2]
    assert disk.failed == "EIO"
    with pytest.raises(AssertionError):
        disk.sync()
    disk.killed()
    assert disk.failed == ""


def test_flipped_bit_changes_exactly_one_bit():
    disk = synced(Replace("f", bytes(100)))
    assert disk.flip_bit().startswith("f at ")
    assert sum(octet.bit_count() for octet in disk.contents()["f"]) == 1
    assert Disk(Random(1)).flip_bit() == ""


def test_misdirected_write_succeeds_at_another_place():
    disk = Disk(Random(5))
    disk.misdirect_next = True
    disk.begin(Persist(1, (WriteAt("f", 10_000, b"here"),)))
    disk.write()
    assert disk.sync() == [1]
    assert disk.contents()["f"].find(b"here") not in {-1, 10_000}


def test_wipe_removes_all_files():
    disk = synced(Replace("f", b"x"))
    disk.wipe()
    assert disk.contents() == {}


@given(st.integers(0, 5000), st.binary(max_size=3000))
def test_sectors_are_the_write_cut_at_boundaries(position, data):
    pieces = sectors(WriteAt("f", position, data))
    assert b"".join(piece.data for piece in pieces) == data
    place = position
    for piece in pieces:
        assert piece.position == place
        assert piece.position // SECTOR_BYTES == (piece.position + len(piece.data) - 1) // SECTOR_BYTES
        place += len(piece.data)


def test_lazy_write_survives_a_kill_and_maybe_a_power_cut() -> None:
    kept = set()
    for seed in range(40):
        for crash in ("killed", "power_cut"):
            disk = Disk(Random(seed))
            _persist(disk, 1, WriteAt("jot", 0, b"old"))
            _persist(disk, 2, WriteAt("log", 0, b"entry"), WriteAt("jot", 0, b"new", lazy=True))
            assert disk.contents()["log"] == b"entry"
            getattr(disk, crash)()
            kept.add((crash, disk.contents()["jot"]))
    assert kept == {("killed", b"new"), ("power_cut", b"new"), ("power_cut", b"old")}


def test_lazy_write_is_durable_after_the_next_sync_of_its_file() -> None:
    for seed in range(20):
        disk = Disk(Random(seed))
        _persist(disk, 1, WriteAt("jot", 0, b"1", lazy=True), WriteAt("other", 0, b"x"))
        _persist(disk, 2, WriteAt("jot", 1, b"2"))
        disk.power_cut()
        assert disk.contents()["jot"] == b"12"


def _persist(disk: Disk, ticket: int, *operations: WriteAt) -> None:
    disk.begin(Persist(ticket, operations))
    disk.write()
    assert disk.sync() == [ticket]


def _lied_about(kind: str, seed: int) -> Disk:
    disk = Disk(Random(seed))
    _persist(disk, 1, WriteAt("log.segment", 0, b"old"), WriteAt("jot", 0, b"1"))
    disk.lie_next = kind
    _persist(disk, 2, WriteAt("log.segment", 0, b"new"), WriteAt("jot", 0, b"2"))
    return disk


@pytest.mark.parametrize("kind", [LOST_WRITE, MISDIRECTED])
def test_lost_segment_write_spares_other_writes_and_survives_a_kill(kind: str) -> None:
    disk = _lied_about(kind, 1)
    assert disk.lied
    disk.killed()
    assert disk.contents()["log.segment"][:3] != b"new"
    assert kind == MISDIRECTED or disk.contents() == {"log.segment": b"old", "jot": b"2"}


def test_power_cut_reveals_a_lost_write_until_the_next_sync() -> None:
    disk = _lied_about(LOST_WRITE, 1)
    disk.power_cut()
    assert disk.contents()["log.segment"] == b"new"
    disk = _lied_about(LOST_WRITE, 1)
    _persist(disk, 3, WriteAt("jot", 0, b"3"))
    disk.power_cut()
    assert disk.contents()["log.segment"] == b"old"


def _failed_sync(lost: float) -> Disk:
    disk = Disk(Random(3))
    disk.cache_is_lost = lost
    _persist(disk, 1, WriteAt("log", 0, b"o" * 5000))
    disk.begin(Persist(2, (WriteAt("log", 0, b"n" * 5000), Replace("name", b"x"))))
    disk.write()
    disk.fail("EIO")
    disk.killed()
    return disk


def test_page_cache_has_data_of_a_failed_sync_until_a_power_cut() -> None:
    disk = _failed_sync(0.0)
    assert disk.diverged
    assert disk.contents() == {"log": b"n" * 5000, "name": b"x"}
    _persist(disk, 3, WriteAt("other", 0, b"y"))
    assert disk.contents()["log"] == b"n" * 5000
    disk.power_cut()
    assert not disk.diverged
    assert set(disk.contents()["log"]) == set(b"on")
    assert disk.contents()["other"] == b"y"


def test_data_written_again_after_a_failed_sync_is_durable() -> None:
    disk = _failed_sync(0.0)
    _persist(disk, 3, WriteAt("log", 0, b"n" * 5000))
    disk.power_cut()
    assert disk.contents()["log"] == b"n" * 5000


def test_page_cache_may_lose_data_with_a_failed_sync() -> None:
    disk = _failed_sync(1.0)
    assert not disk.diverged
    assert set(disk.contents()["log"]) == set(b"on")


def test_unreadable_sector_reads_as_zeros_in_a_segment_and_as_unreadable_elsewhere() -> None:
    disk = synced(WriteAt("log.segment", 0, b"x" * 2000))
    assert disk.lose_sector().startswith("log.segment at ")
    assert disk.contents()["log.segment"].count(0) in {SECTOR_BYTES, 2000 % SECTOR_BYTES}
    disk = synced(Replace("small", b"content"))
    disk.lose_sector()
    assert disk.contents()["small"] == UNREADABLE
