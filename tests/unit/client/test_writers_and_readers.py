"""What writers hand over, and whom readers give messages to, over a client whose engine is the test."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from chaplain.client.aio.journal import AsyncReader, AsyncWriter
from chaplain.client.api.journal_calls import WRITER_BYTES_MAX, read
from chaplain.client.io.call_registry import CallRegistry
from chaplain.client.protocol.call_events import Returned
from chaplain.client.protocol.journal.batch_builder import CHUNK_BYTES, BatchBuilder
from chaplain.client.protocol.journal.events import Batch, ReadChunk, ReadCommand, WritesAcknowledged
from chaplain.client.protocol.journal.packing import REQUEST_BYTES_MAX
from chaplain.client.protocol.journal.unpacking import messages_of
from chaplain.client.sync import journal
from chaplain.client.sync.journal import Reader, Writer
from chaplain.client.two_phase import TwoPhaseWriter
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.errors import Closed, Misused
from chaplain.journal.execution.two_phase import STAGED
from chaplain.segment.pack import Pack, encode_pack

LARGE = CHUNK_BYTES + 1
TOO_LARGE = REQUEST_BYTES_MAX + 1


class Context:
    def __init__(self) -> None:
        self.timeout_s = 5.0
        self.cluster = "c"
        self.wishes: list = []
        self.closed = False
        self.registry = CallRegistry(self._submit)

    def _submit(self, wish) -> None:
        if self.closed:
            raise Closed("closed")
        self.wishes.append(wish)

    def hand_over(self, act) -> None:
        act()

    @property
    def rows(self) -> list[list[tuple]]:
        """Of each batch that was handed over: values with their keys."""
        return [
            list(zip(wish.batch.values, wish.batch.keys or [None] * len(wish.batch.values), strict=True))
            for wish in self.wishes
        ]

    def answer(self, number: int) -> None:
        wish = self.wishes[number]
        count = len(wish.batch.values)
        self.registry.deliver(
            [WritesAcknowledged(wish.call, ReceiptPlace(3, 1, count, "s", 0, count, 1, 1, 1, b"h" * 32))]
        )


class Face:
    """A writer of either kind, used alike."""

    def __init__(self, context: Context, kind: type) -> None:
        self._writer = kind(context, "s", False)

    def write(self, *message) -> None:
        self._run(self._writer.write(*message))

    def leave(self, error: BaseException | None = None) -> None:
        leave = getattr(self._writer, "__exit__", None) or self._writer.__aexit__
        self._run(leave(None if error is None else type(error), error, None))

    def _run(self, outcome) -> None:
        if asyncio.iscoroutine(outcome):
            asyncio.run(outcome)


faces = pytest.mark.parametrize("kind", [Writer, AsyncWriter])


@faces
@pytest.mark.parametrize("wrong", [{"a": "text"}, {5: b""}, {"": b""}, "text"])
def test_refused_message_leaves_no_key_or_header_behind(kind: type, wrong: object) -> None:
    """Its key must not become that of the next one."""
    context = Context()
    writer = Face(context, kind)
    writer.write(b"first")
    writer.write(b"1", b"key of 1", {"a": b"1"})
    with pytest.raises(Misused):
        writer.write(b"2", b"key of 2", wrong)
    writer.write(b"3", b"key of 3", {"a": b"3"})
    context.answer(0)
    assert context.rows[1] == [(b"1", b"key of 1"), (b"3", b"key of 3")]
    assert len(context.wishes[1].batch.headers) == 2


@faces
@pytest.mark.parametrize("large", [(bytes(LARGE),), (b"", bytes(LARGE)), (b"", None, {"a": bytes(LARGE)})])
def test_large_message_is_sent_in_its_own_pack(kind: type, large: tuple) -> None:
    context = Context()
    writer = Face(context, kind)
    for message in ((b"first",), (b"1",), large, (b"2",)):
        writer.write(*message)
    for number in range(3):
        context.answer(number)
    assert [[value[:1] for value, _ in batch] for batch in context.rows] == [[b"f"], [b"1"], [large[0][:1]], [b"2"]]


@faces
@pytest.mark.parametrize("large", [(bytes(TOO_LARGE),), (b"", bytes(TOO_LARGE)), (b"", None, {"a": bytes(TOO_LARGE)})])
def test_message_above_the_limit_is_refused_alone(kind: type, large: tuple) -> None:
    context = Context()
    writer = Face(context, kind)
    writer.write(b"first")
    writer.write(b"1")
    with pytest.raises(Misused, match="in parts"):
        writer.write(*large)
    writer.write(b"2")
    for number in range(2):
        context.answer(number)
    assert [value for batch in context.rows for value, _ in batch] == [b"first", b"1", b"2"]


@faces
def test_chunk_not_handed_over_because_of_an_exception_is_not_written_later(kind: type) -> None:
    context = Context()
    writer = Face(context, kind)
    writer.write(b"handed over")
    writer.write(b"not")
    writer.leave(ValueError())
    context.answer(0)
    assert context.rows == [[(b"handed over", None)]]


@faces
def test_writer_of_a_closed_client_raises_at_once(kind: type) -> None:
    context = Context()
    writer = Face(context, kind)
    context.closed = True
    with pytest.raises(Closed):
        writer.write(b"1")


def test_chunk_whose_hand_over_is_interrupted_is_submitted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C must not lose what the writer has collected."""
    context = Context()
    writer = Writer(context, "s", False)
    writer.write(b"first")

    def interrupt(act: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(context, "hand_over", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.write(bytes(LARGE))
    writer.write(b"second")
    context.answer(0)
    assert [[len(value) for value, _ in batch] for batch in context.rows] == [[5], [LARGE], [6]]


def test_message_whose_hand_over_is_interrupted_is_submitted_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    writer = Writer(context, "s", False)

    def interrupt(act: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(context, "hand_over", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.write(b"first")
    writer.write(b"second")
    assert [value for batch in context.rows for value, _ in batch] == [b"first", b"second"]


@pytest.mark.parametrize("staged", [False, True])
def test_writer_waits_for_the_engine_before_it_collects_too_much(staged: bool) -> None:
    """The engine's thread may be slow to get the interpreter: what it has not submitted counts, too."""
    context = Context()
    writer = TwoPhaseWriter(context) if staged else Writer(context, "s", False)
    waits: list[int] = []
    acts: list = []
    context.hand_over = acts.append

    def wait_for(take, timeout_s) -> None:
        waits.append(writer._unsent_bytes())
        acts[-1]()
        for number in range(len(context.wishes)):
            if context.wishes[number].call in context.registry._sinks:
                context.answer(number)
        assert take()

    writer._changed.wait_for = wait_for
    size_bytes = CHUNK_BYTES
    for _ in range(2 * WRITER_BYTES_MAX // size_bytes):
        if staged:
            writer.stage(Batch("s", [bytes(size_bytes)], size_bytes=size_bytes, message_type=STAGED))
        else:
            writer.write(bytes(size_bytes))
    assert waits == [WRITER_BYTES_MAX + size_bytes]


def test_parts_of_an_interrupted_message_are_discarded() -> None:
    gathering = BatchBuilder()
    gathering.add(b"1", b"one", {"a": b"1"})
    gathering._add_key(b"left")
    gathering.add(b"2", b"two", {"a": b"2"})
    gathering._add_key(b"left")
    gathering._add_headers(b"left")
    (batch,) = gathering.batches("s", 0)
    assert (batch.values, batch.keys) == ([b"1", b"2"], [b"one", b"two"])
    assert len(batch.headers) == 2


# Readers: two of one reader, who both wait when two portions come.

EACH = 5


def two_portions(context: Context) -> None:
    (call,) = (wish.call for wish in context.wishes if isinstance(wish, ReadCommand))
    outcomes: list = []
    for first in (0, EACH):
        values = tuple(b"%d" % offset for offset in range(first, first + EACH))
        packed = encode_pack(Pack(client_id=1, first_id=first + 1, values=values))
        outcomes.append(ReadChunk(call, first, first + EACH, first, 1, 1, 1, 1, packed))
    context.registry.deliver([*outcomes, Returned(call, b"")])


def test_threads_that_share_a_reader_receive_every_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    reader = Reader(context, "s", read("s", 0, None, False), None)
    portions, messages = threading.Barrier(2), threading.Barrier(2)
    taken: list[int] = []

    def meet(barrier: threading.Barrier, limit_s: float) -> None:
        with suppress(threading.BrokenBarrierError):
            barrier.wait(limit_s)

    def slowly(stream: str, given: ReadChunk, types: object) -> list:
        """Who has a portion waits for the other to have one, too, if that can be."""
        meet(portions, 0.1)
        return messages_of(stream, given)

    def take() -> None:
        for number, one in enumerate(reader):
            taken.append(one.offset)
            if not number:
                meet(messages, 10)

    monkeypatch.setattr(journal, "messages_of", slowly)
    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    two_portions(context)
    for thread in threads:
        thread.join(10)
    assert sorted(taken) == list(range(2 * EACH))


def test_tasks_that_share_a_reader_receive_every_message_once() -> None:
    async def play() -> list[int]:
        context = Context()
        reader = AsyncReader(context, "s", read("s", 0, None, False), None)
        taken: list[int] = []

        async def take() -> None:
            async for one in reader:
                taken.append(one.offset)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(take()) for _ in range(2)]
        await asyncio.sleep(0)
        two_portions(context)
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        return taken

    assert sorted(asyncio.run(play())) == list(range(2 * EACH))


def test_sharers_of_a_reader_end_at_the_same_time() -> None:
    async def play() -> None:
        reader = AsyncReader(Context(), "s", read("s", 0, None, True), 0.3)
        loop = asyncio.get_running_loop()
        ends_s: list[float] = []

        async def take() -> None:
            assert [one async for one in reader] == []
            ends_s.append(loop.time())

        await asyncio.gather(*(take() for _ in range(10)))
        assert ends_s[-1] - ends_s[0] < 1.5

    asyncio.run(play())
