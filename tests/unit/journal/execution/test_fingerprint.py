"""The fingerprint of a state: it names the state, and its cost is that of what changed, not of what there is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaplain.journal.execution.state import ExecutionState, load
from chaplain.journal.model import set_hash
from chaplain.journal.model.records import LaneState, StreamHead
from chaplain.journal.model.set_hash import PENDING_MAX, MappingHash, SetHash
from tests.support.execution_stage import ADMIN_ACL, Stage, pack

keys = st.integers(0, 40)
changes = st.lists(st.tuples(keys, st.none() | st.integers(0, 3)), max_size=120)


@given(changes, st.sets(st.integers(0, 120)))
def test_mapping_hash_depends_only_on_the_items(changed: list[tuple[int, int | None]], asked: set[int]) -> None:
    items: dict[int, int] = {}
    followed = MappingHash(lambda: items)
    for number, (key, value) in enumerate(changed):
        followed.note(key)
        if value is None:
            items.pop(key, None)
        else:
            items[key] = value
        if number in asked:
            followed.digest()
    fresh = SetHash()
    for item in items.items():
        fresh.add(item)
    assert followed.digest() == fresh.digest()


def test_mapping_hash_bounds_its_pending_changes() -> None:
    items: dict[int, int] = {}
    followed = MappingHash(lambda: items)
    for key in range(10 * PENDING_MAX):
        followed.note(key)
        items[key] = key
    before = followed.hashed
    followed.digest()
    assert followed.hashed - before <= PENDING_MAX


def _filled(streams: int) -> Stage:
    stage = Stage()
    stage.execution.state.put_streams({f"s{number}": StreamHead(1, bytes(32)) for number in range(streams)})
    stage.execution.fingerprint()
    return stage


def _work(state: ExecutionState) -> int:
    return state._streams_hash.hashed + state._lanes_hash.hashed


def test_fingerprint_after_one_write_hashes_only_the_changes(monkeypatch) -> None:
    stage = _filled(3000)
    lane = stage.lane()
    stage.execution.fingerprint()
    monkeypatch.setattr(ExecutionState, "export", lambda _: 1 / 0)
    before = _work(stage.execution.state)
    stage.write(pack(lane, 1))
    first = stage.execution.fingerprint()
    stage.write(pack(lane, 2))
    assert stage.execution.fingerprint() != first
    assert _work(stage.execution.state) - before <= 8


def test_fingerprint_of_a_loaded_state_equals_that_of_the_state() -> None:
    stage = _filled(2 * set_hash.PENDING_MAX)
    lane = stage.lane()
    stage.write(pack(lane, 1), pack(lane, 2, stream="s7"))
    state = stage.execution.state
    assert load(stage.founding, state.export()).fingerprint() == state.fingerprint()


def test_fingerprint_differs_if_any_stream_or_lane_differs() -> None:
    prints = set()
    for streams, lanes in ({"a": 1}, {}), ({"a": 2}, {}), ({"b": 1}, {}), ({"a": 1}, {1: 1}), ({"a": 1}, {1: 2}):
        state = Stage().execution.state
        state.put_streams({name: StreamHead(offset, bytes(32)) for name, offset in streams.items()})
        for client_id, last_id in lanes.items():
            state.put_lane(LaneState(client_id, ADMIN_ACL, b"n" * 16, 1, last_id))
        prints.add(state.fingerprint())
    assert len(prints) == 5
