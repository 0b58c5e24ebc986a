"""Clients' calls at the sequence: publishing, pages, waiting readers, what left the window, and the tap."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from chaplain.client.api.sequence_calls import Published, SequenceEvent, SequenceReader, check_values
from chaplain.core import Drained, Persist, Persisted, Report, Requested, Settled, Withdrawn, Woken
from chaplain.errors import Missing, Misused, Unproven
from chaplain.segment.settings import LogSettings
from chaplain.segment.tap import StreamKind, Tap
from chaplain.sequence.core import SequenceCore
from chaplain.sequence.messages import client
from chaplain.sequence.messages.client import Numbered, PublishRequest, ReadRequest, SequencePage
from chaplain.sequence.service import LayerEffect, SequenceLayer
from chaplain.sequence.settings import SequenceSettings

SECOND = 10**9


class Alone:
    """One node with an empty list."""

    def __init__(self, *, tap: Tap | None = None, started: bool = True, **settings: int) -> None:
        self.now_ns = 0
        values: dict[str, int] = {"lonely_ns": 0, **settings}
        core = SequenceCore(SequenceSettings(1, listed=() if started else (2, 3), **values), Random(1), 0)  # type: ignore[arg-type]
        self.layer = SequenceLayer(core, tap, ("*",))
        self.layer.name_nodes({1: 7}.__getitem__)
        self.effects: list[LayerEffect] = []
        self._call = 0
        self.step(Drained())

    def step(self, event: object, after_s: float = 0.0) -> list[LayerEffect]:
        self.now_ns += int(after_s * SECOND)
        got = self.layer.step(self.now_ns, event)  # type: ignore[arg-type]
        self.effects += got
        return got

    def ask(self, request: client.SequenceRequest | bytes, payload: bytes = b"") -> int:
        self._call += 1
        body = request if isinstance(request, bytes) else client.encode(request)
        self.step(Requested(self._call, "ann", body, payload))
        self.step(Drained())
        return self._call

    def publish(self, *values: bytes, stream: str = "s") -> int:
        return self.ask(PublishRequest(stream, [len(value) for value in values]), b"".join(values))

    def answer(self, call: int) -> Settled | None:
        found = [one for one in self.effects if isinstance(one, Settled) and one.call == call]
        assert len(found) <= 1, "a call is settled once"
        return found[0] if found else None

    def page(self, start: int = 0, wait_ns: int = 0, history: int = 0) -> SequencePage:
        settled = self.answer(self.ask(ReadRequest("s", start, wait_ns, history)))
        assert settled is not None
        assert not settled.kind, settled.reason
        return client.decode_page(settled.payload)

    def read(self, reading: SequenceReader, pages: int = 100) -> list[SequenceEvent]:
        """As a client does, page by page."""
        found: list[SequenceEvent] = []
        for _ in range(pages):
            if reading.ended:
                break
            build: Callable[[int, int], object] = reading.next_request().build
            request = build(1, SECOND).request  # type: ignore[attr-defined]
            settled = self.answer(self.ask(request.body))
            assert settled is not None
            found += reading.take(client.decode_page(settled.payload))
        return found


def reason(settled: Settled | None) -> str:
    assert settled is not None
    assert settled.kind
    return f"{settled.kind}: {settled.reason}"


def test_publish_is_answered_with_its_first_number() -> None:
    node = Alone()
    first, second = node.publish(b"a", b"b"), node.publish(b"c")
    hashes = [event.hash for event in node.read(SequenceReader("s", None, None, False, None))]
    assert node.answer(first) == Settled(first, client.encode(Numbered(1, hashes[0])))
    assert node.answer(second) == Settled(second, client.encode(Numbered(3, hashes[2])))


def test_pages_contain_events_with_linked_hashes() -> None:
    node = Alone()
    node.publish(b"a", b"b", b"c")
    node.publish(b"d")
    whole = node.read(SequenceReader("s", None, None, False, None))
    assert [(one.number, one.value, one.publisher) for one in whole] == [
        (1, b"a", "ann"),
        (2, b"b", "ann"),
        (3, b"c", "ann"),
        (4, b"d", "ann"),
    ]
    assert node.read(SequenceReader("s", 2, None, False, None)) == whole[1:], "hashes do not depend on where one begins"
    assert node.read(SequenceReader("s", 2, 4, False, None)) == whole[1:3]
    assert node.read(SequenceReader("s", 3, 3, False, None)) == []
    assert node.read(SequenceReader("nothing", None, None, False, None)) == []


def verified(node: Alone, start: int | None = None, verify: bool | Published = True) -> list[SequenceEvent]:
    return node.read(SequenceReader("s", start, None, False, None, verify=verify))


def test_verifying_reader_receives_the_same_events_from_any_number_on() -> None:
    node = Alone(page_bytes_max=200)
    for number in range(30):
        node.publish(*(b"%d" % number,) * (1 + number % 3))
    whole = node.read(SequenceReader("s", None, None, False, None))
    for start in (None, *range(1, len(whole) + 1)):
        assert verified(node, start) == whole[(start or 1) - 1 :]
        assert verified(node, start, Published(whole[-1].number, whole[-1].hash)) == whole[(start or 1) - 1 :]


@pytest.mark.parametrize("field", ["value", "publisher", "number", "left out"])
def test_verifying_reader_finds_every_change_of_an_earlier_event(field: str) -> None:
    node = Alone()
    for number in range(6):
        node.publish(b"%d" % number)
    [page] = [node.page(1)]
    runs = list(page.runs)
    changed = runs[2]
    match field:
        case "value":
            changed = msgspec.structs.replace(changed, values=[b"x"])
        case "publisher":
            changed = msgspec.structs.replace(changed, publisher="bob")
        case "number":
            changed = msgspec.structs.replace(changed, first=changed.first + 1)
        case _:
            pass
    runs[2:3] = [] if field == "left out" else [changed]
    reading = SequenceReader("s", 1, None, False, None, verify=True)
    with pytest.raises(Unproven):
        list(reading.take(msgspec.structs.replace(page, runs=runs)))


def test_verifying_reader_finds_another_event_in_the_place_of_a_published_one() -> None:
    node = Alone()
    node.publish(b"a", b"b")
    node.publish(b"c")
    events = verified(node)
    for event in events:
        assert verified(node, None, Published(event.number, event.hash)) == events
        with pytest.raises(Unproven, match="another event"):
            verified(node, None, Published(event.number, bytes(32)))
    with pytest.raises(Missing):
        verified(node, None, Published(9, bytes(32)))
    with pytest.raises(Misused):
        SequenceReader("s", 3, None, False, None, verify=Published(2, bytes(32)))


def test_fresh_reader_asks_for_freshness_once() -> None:
    node = Alone(page_bytes_max=100)
    for number in range(20):
        node.publish(b"%d" % number)
    reading = SequenceReader("s", None, None, False, None, fresh=True)
    asked = []
    while not reading.ended:
        build: Callable[[int, int], object] = reading.next_request().build
        request = client.decode_request(build(1, SECOND).request.body)  # type: ignore[attr-defined]
        assert isinstance(request, ReadRequest)
        asked.append(request.fresh)
        settled = node.answer(node.ask(request))
        assert settled is not None
        list(reading.take(client.decode_page(settled.payload)))
    assert asked[0]
    assert not any(asked[1:])
    assert len(asked) > 1


def test_published_is_a_number_with_a_hash() -> None:
    published = Published(7, b"h" * 32)
    assert (published, published.number, published.hash, [*range(10)][published]) == (7, 7, b"h" * 32, 7)
    assert pickle.loads(pickle.dumps(published)).hash == published.hash


def test_long_stream_is_read_in_bounded_pages() -> None:
    node = Alone(page_bytes_max=1000)
    for number in range(50):
        node.publish(b"%d" % number * 50)
    page = node.page()
    assert (page.first, page.head) == (1, 50)
    assert sum(len(value) for run in page.runs for value in run.values) < 1200
    assert len(node.read(SequenceReader("s", None, None, False, None))) == 50


def test_reader_without_follow_ends_at_the_head_of_its_first_page() -> None:
    node = Alone(page_bytes_max=1)
    for number in range(3):
        node.publish(b"%d" % number)
    reading = SequenceReader("s", None, None, False, None)
    seen = node.read(reading, pages=1)
    node.publish(b"late")
    seen += node.read(reading)
    assert [one.value for one in seen] == [b"0", b"1", b"2"]


def test_reader_waits_for_new_events_or_its_timeout() -> None:
    node = Alone()
    waiting = node.ask(ReadRequest("s", 1, 5 * SECOND, 0))
    assert node.answer(waiting) is None
    assert node.layer.deadline() is not None
    node.publish(b"news")
    settled = node.answer(waiting)
    assert settled is not None
    assert client.decode_page(settled.payload).runs[0].values == [b"news"]
    idle = node.ask(ReadRequest("s", 2, 5 * SECOND, 0))
    node.step(Woken(), after_s=6)
    settled = node.answer(idle)
    assert settled is not None
    assert client.decode_page(settled.payload).runs == []


def test_withdrawn_call_is_not_answered() -> None:
    node = Alone(lonely_ns=10 * SECOND)
    published, waiting = node.publish(b"a"), node.ask(ReadRequest("s", 1, 5 * SECOND, 0))
    node.step(Withdrawn(published))
    node.step(Withdrawn(waiting))
    for _ in range(12):
        node.step(Woken(), after_s=1)
    assert node.page().head == 1, "it was published all the same"
    assert node.answer(published) is None
    assert node.answer(waiting) is None


def test_number_that_left_the_window_is_missing_with_a_reason() -> None:
    node = Alone(window_bytes=3000)
    for _ in range(20):
        node.publish(bytes(400))
    page = node.page()
    assert 1 < page.first <= 20
    assert page.runs[0].first == page.first
    call = node.ask(ReadRequest("s", 1, 0, 0))
    unremembered = f"numbers before {page.first} are not remembered by this node"
    assert reason(node.answer(call)) == f"missing: s 1 has left the window: {unremembered}"


def test_stream_that_left_the_window_completely_is_missing_and_not_empty() -> None:
    node = Alone(window_bytes=3000)
    node.publish(b"a", b"b", b"c")
    for _ in range(20):
        node.publish(bytes(400), stream="t")
    call = node.ask(ReadRequest("s", 0, 0, 0))
    unremembered = "numbers before 4 are not remembered by this node"
    assert reason(node.answer(call)) == f"missing: all of s has left the window: {unremembered}"
    waiting = node.ask(ReadRequest("s", 0, SECOND, 0))
    node.publish(b"d")
    settled = node.answer(waiting)
    assert settled is not None
    assert client.decode_page(settled.payload).runs[0].first == 4, "who follows goes on with what comes"


def test_window_for_readers_equals_the_window_that_nodes_can_learn() -> None:
    node = Alone(window_entries_max=5)
    for _ in range(20):
        node.publish(b"a")
    kept = [
        held for held in node.layer.core.context.log.since(node.layer.core.context.log.base.index) if held.entry.runs
    ]
    assert node.page().first == 20 - len(kept) + 1


def test_reader_of_another_history_is_refused() -> None:
    node = Alone()
    node.publish(b"a")
    call = node.ask(ReadRequest("s", 1, 0, 12345))
    assert "missing: the history you read, 0000000000003039, is over" in reason(node.answer(call))


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b"\x93", b""),
        (client.encode(PublishRequest("s", [2])), b"a"),
        (client.encode(PublishRequest("s", [])), b""),
        (client.encode(PublishRequest("s s", [1])), b"a"),
        (client.encode(PublishRequest("", [1])), b"a"),
        (client.encode(PublishRequest("s", [2, -1])), b"a"),
        (client.encode(ReadRequest("s", -1, 0, 0)), b""),
        (client.encode(ReadRequest("s", 0, -1, 0)), b""),
        (client.encode(ReadRequest("s", 0, 0, -1)), b""),
    ],
)
def test_malformed_requests_are_refused(body: bytes, payload: bytes) -> None:
    node = Alone()
    assert reason(node.answer(node.ask(body, payload))).startswith("refused: ")
    assert node.layer.core.context.events == 0


def test_node_that_has_not_joined_lets_readers_wait_and_then_refuses() -> None:
    node = Alone(started=False)
    call = node.ask(ReadRequest("s", 0, 0, 0))
    assert node.answer(call) is None
    for _ in range(6):
        node.step(Woken(), after_s=1)
    assert "in DSC" in reason(node.answer(call))
    published = node.publish(b"a")
    for _ in range(12):
        node.step(Woken(), after_s=1)
    assert "in DSC" in reason(node.answer(published))


def test_readers_are_bounded() -> None:
    node = Alone(readers_max=2)
    calls = [node.ask(ReadRequest("s", 1, SECOND, 0)) for _ in range(3)]
    assert [node.answer(call) is None for call in calls] == [True, True, False]
    assert reason(node.answer(calls[2])).startswith("busy: ")


def test_status_and_gauges_show_state_and_streams() -> None:
    node = Alone()
    node.publish(b"a")
    status = node.layer.status()
    assert status["state"] == "WRK"
    sequence = status["sequence"]
    assert isinstance(sequence, dict)
    assert (sequence["work_set"], sequence["lock"], sequence["events"]) == ([7], 7, 1)
    assert sequence["streams"] == {"s": {"head": 1}}
    assert len(sequence["history"]) == 16
    assert node.layer.gauges()["sequence_working"] == 1


def test_recorder_stores_delivered_events_with_one_write_at_a_time() -> None:
    tap = Tap(LogSettings("sequence", StreamKind.SEQUENCE), Random(2))
    node = Alone(tap=tap)
    node.publish(b"a", b"b")
    node.step(Drained())
    [persist] = [one for one in node.effects if isinstance(one, Persist)]
    node.publish(b"c")
    node.publish(b"d", stream="t")
    assert len([one for one in node.effects if isinstance(one, Persist)]) == 1, "the first is under way"
    node.step(Persisted(persist.ticket))
    assert len([one for one in node.effects if isinstance(one, Persist)]) == 2
    assert (tap.head("s"), tap.head("t")) == (3, 1)
    assert not [one for one in node.effects if isinstance(one, Report) and one.event == "events not recorded"]


def test_client_refuses_arguments_that_no_node_accepts() -> None:
    for values in ([], [bytes(3 << 20)]):
        with pytest.raises(ValueError, match="publishes 1 event or more"):
            check_values(values)
    with pytest.raises(TypeError, match="bytes are wanted"):
        check_values(["text"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="begin at 1"):
        SequenceReader("s", 0, None, False, None)


def test_client_notices_a_gap_in_an_answer() -> None:
    reading = SequenceReader("s", 1, None, True, None)
    page = SequencePage(1, 2, 2, [client.PageRun(2, "ann", bytes(32), [b"b"])])
    with pytest.raises(Missing, match="s 1 is not in"):
        list(reading.take(page))
