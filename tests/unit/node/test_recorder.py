"""What the recorder keeps, in which batches, and what it says when the disk is behind."""

from __future__ import annotations

import random

import pytest

from chaplain.core import Drained, Persist, Persisted, Report, WriteAt
from chaplain.gossip.events import EventId, EventSeen, FiredEvent
from chaplain.link.events import Peer
from chaplain.mesh.events import JoinPool, Shout, Shouted
from chaplain.node.recorder import ROW_BYTES, Recorder, RecorderEffect
from chaplain.node.settings import RecorderSettings
from chaplain.segment.settings import LogSettings
from chaplain.segment.tap import Tap
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

NODE = Peer(b"n" * 16, 300, b"N" * 32, endpoint="tcp://127.0.0.1:1")


class Stage:
    def __init__(self, **settings: object) -> None:
        self.pools, self.events = (
            Tap(LogSettings(log, 1, segment_bytes=16 << 20), random.Random(1)) for log in ("pool", "event")
        )
        self.recorder = Recorder(RecorderSettings(**settings), self.pools, self.events)  # type: ignore[arg-type]

    def step(self, event: object) -> list[RecorderEffect]:
        return self.recorder.step(7, event)  # type: ignore[arg-type]


def said(text: bytes) -> bytes:
    return parcel.encode(Parcel(NODE.identifier, Layer.CLIENT, b"ann", text))


def fired(kind: str, content: bytes = b"v2") -> EventSeen:
    return EventSeen(FiredEvent(EventId(9, 1, 1), kind, content))


def test_recorder_joins_its_pools_and_records_local_and_remote_messages() -> None:
    stage = Stage(pools=("chat",))
    assert stage.recorder.joins() == [JoinPool("chat")]
    for event in (Shouted(NODE, "chat", said(b"a")), Shout("chat", said(b"b")), Shouted(NODE, "other", said(b"c"))):
        assert stage.step(event) == []
    (persist,) = stage.step(Drained())
    assert isinstance(persist, Persist)
    assert all(isinstance(operation, WriteAt) for operation in persist.operations)
    assert stage.pools.head("chat") == 2
    assert stage.pools.head("other") == 0


def test_message_in_the_name_of_another_node_is_not_recorded() -> None:
    stage = Stage(pools=("chat",))
    stage.step(Shouted(NODE, "chat", parcel.encode(Parcel(5, Layer.CLIENT, b"ann", b"a"))))
    assert stage.step(Drained()) == []
    assert stage.recorder.counts["malformed"] == 1


def test_events_are_recorded_by_type_or_all() -> None:
    some, all_of_them = Stage(events=("deployed",)), Stage(events=("*",))
    for stage in (some, all_of_them):
        stage.step(fired("deployed"))
        stage.step(fired("restarted"))
        stage.step(Drained())
    assert (some.events.head("deployed"), some.events.head("restarted")) == (1, 0)
    assert (all_of_them.events.head("deployed"), all_of_them.events.head("restarted")) == (1, 1)


def test_one_write_is_in_progress_and_later_messages_share_the_next() -> None:
    stage = Stage(events=("*",))
    stage.step(fired("deployed"))
    (first,) = stage.step(Drained())
    for _ in range(3):
        stage.step(fired("deployed"))
        assert stage.step(Drained()) == []
    assert isinstance(first, Persist)
    (second,) = stage.step(Persisted(first.ticket))
    assert isinstance(second, Persist)
    assert stage.events.head("deployed") == 4
    assert stage.step(Persisted(second.ticket)) == []


def test_messages_that_a_slow_disk_cannot_take_are_dropped_and_reported() -> None:
    stage = Stage(events=("*",), pending_bytes_max=2 * (4 + ROW_BYTES))
    for _ in range(5):
        stage.step(fired("deployed", bytes(4)))
    _, report = stage.step(Drained())
    assert report == Report("messages not recorded", detail={"count": 3})
    assert stage.recorder.counts == {"kept": 2, "left_out": 3}


@pytest.mark.parametrize("size", [160, 1 << 20, (8 << 20) - 4096])
def test_messages_waiting_for_the_disk_fit_into_records(size: int) -> None:
    stage = Stage(pools=("chat",))
    value = said(bytes(size))
    while not stage.recorder.counts["left_out"]:
        stage.step(Shout("chat", value))
    persist, _ = stage.step(Drained())
    assert isinstance(persist, Persist)
    assert stage.pools.head("chat") == stage.recorder.counts["kept"] > 0
    assert sum(len(each.data) for each in persist.operations if isinstance(each, WriteAt)) < 18 << 20
