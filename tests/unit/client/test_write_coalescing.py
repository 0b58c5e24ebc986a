"""Single writes of one turn of a loop: one batch for the client, one receipt for each caller."""

from __future__ import annotations

import asyncio

import pytest

from chaplain.client.api.journal_calls import many
from chaplain.client.io.call_registry import CallRegistry
from chaplain.client.io.write_coalescing import FULL_MESSAGES, RESOLVED_LEAST, SLICE, WriteCoalescer
from chaplain.client.protocol.call_events import Failure, Raised
from chaplain.client.protocol.journal.batch_builder import CHUNK_BYTES
from chaplain.client.protocol.journal.events import WritesAcknowledged
from chaplain.client.protocol.journal.outcome_cache import OUTCOMES_MAX, OutcomeCache
from chaplain.client.protocol.journal.packing import PACK_BYTES, packed_bytes
from chaplain.client.types.journal import PLACE_UNKNOWN, RequestId
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.errors import Closed, Refused


class Context:
    """A client whose engine is the test."""

    def __init__(self) -> None:
        self.timeout_s = 5.0
        self.loop = asyncio.get_running_loop()
        self.wishes: list = []
        self.closed = False
        self.pushes = 0
        self.registry = CallRegistry(self._submit)

    def _submit(self, wish) -> None:
        if self.closed:
            raise Closed("closed")
        self.wishes.append(wish)

    def flush_now(self) -> None:
        self.pushes += 1

    @property
    def sizes(self) -> list[int]:
        return [len(wish.batch.values) for wish in self.wishes]

    def answer(self, number: int) -> None:
        """The batch with this number was written."""
        wish = self.wishes[number]
        self.registry.deliver([WritesAcknowledged(wish.call, place(len(wish.batch.values)))])


def place(count: int, first_id: int = 7, offset: int = 100) -> ReceiptPlace:
    return ReceiptPlace(3, first_id, count, "s", offset, count, 11, 2, 10**9, b"h" * 32)


def test_writes_of_one_loop_turn_are_one_batch_with_own_receipts() -> None:
    async def play() -> None:
        context = Context()
        coalescer = WriteCoalescer(context, "s")
        futures = [coalescer.write(b"%d" % number) for number in range(3)]
        assert not context.wishes
        await asyncio.sleep(0)
        (wish,) = context.wishes
        assert (wish.batch.values, wish.batch.requests, wish.batch.transaction) == ([b"0", b"1", b"2"], 3, False)
        context.registry.deliver([WritesAcknowledged(wish.call, place(3))])
        receipts = await asyncio.gather(*futures)
        assert [(one.offset, one.client_message_id) for one in receipts] == [(100, 7), (101, 8), (102, 9)]
        coalescer.write(b"later")
        await asyncio.sleep(0)
        assert [one.batch.values for one in context.wishes[1:]] == [[b"later"]]

    asyncio.run(play())


def test_batch_is_sent_before_it_exceeds_a_pack() -> None:
    async def play() -> None:
        context = Context()
        coalescer = WriteCoalescer(context, "s")
        for _ in range(FULL_MESSAGES + 1):
            coalescer.write(b"")
        assert (context.sizes, context.pushes) == ([FULL_MESSAGES], 1)
        for _ in range(3):
            coalescer.write(bytes(CHUNK_BYTES - 1000))
        assert (context.sizes, context.pushes) == ([FULL_MESSAGES, 3], 2)
        await asyncio.sleep(0)
        assert context.sizes == [FULL_MESSAGES, 3, 1]
        assert all(packed_bytes(wish.batch) <= PACK_BYTES for wish in context.wishes)

    asyncio.run(play())


def keep_writing(coalescer: WriteCoalescer, count: int) -> list[asyncio.Task[None]]:
    async def one() -> None:
        while True:
            await coalescer.write(b"x")

    return [asyncio.create_task(one()) for _ in range(count)]


def test_callers_answered_in_slices_write_again_in_one_batch() -> None:
    async def play() -> None:
        context = Context()
        tasks = keep_writing(WriteCoalescer(context, "s"), FULL_MESSAGES + 300)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert context.sizes == [FULL_MESSAGES, 300]
        context.answer(0)
        turns = 0
        while len(context.wishes) == 2:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= FULL_MESSAGES // SLICE, "others had their turns in between"
        assert context.sizes == [FULL_MESSAGES, 300, FULL_MESSAGES]
        for task in tasks:
            task.cancel()

    asyncio.run(play())


def test_small_batches_answered_together_are_merged_and_large_ones_are_not() -> None:
    async def play() -> None:
        context = Context()
        coalescer = WriteCoalescer(context, "s")
        tasks = []
        for count in (3, RESOLVED_LEAST, 5, 7):
            tasks += keep_writing(coalescer, count)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        for number in range(4):
            context.answer(number)
        while len(context.wishes) < 6:
            await asyncio.sleep(0)
        assert context.sizes == [3, RESOLVED_LEAST, 5, 7, 3 + RESOLVED_LEAST, 5 + 7]
        for task in tasks:
            task.cancel()

    asyncio.run(play())


def test_write_between_answers_does_not_wait_for_all_answers() -> None:
    async def play() -> None:
        context = Context()
        coalescer = WriteCoalescer(context, "s")
        told = [coalescer.write(b"x") for _ in range(8 * FULL_MESSAGES)]
        await asyncio.sleep(0)
        before = len(context.wishes)
        for number in range(before):
            context.answer(number)
        mine = coalescer.write(b"mine")
        while len(context.wishes) == before:
            await asyncio.sleep(0)
        assert sum(future.done() for future in told) <= RESOLVED_LEAST + FULL_MESSAGES
        context.answer(before)
        await mine
        assert all(future.done() for future in told), "in the order in which they were written"

    asyncio.run(play())


def test_write_cancelled_in_its_turn_is_not_written() -> None:
    async def play() -> None:
        context = Context()
        coalescer = WriteCoalescer(context, "s")
        futures = [coalescer.write(b"%d" % number) for number in range(3)]
        futures[1].cancel()
        await asyncio.sleep(0)
        (wish,) = context.wishes
        assert wish.batch.values == [b"0", b"2"]
        futures[0].cancel()
        context.registry.deliver([WritesAcknowledged(wish.call, place(2))])
        assert (await futures[2]).offset == 101

    asyncio.run(play())


def test_each_caller_receives_the_outcome_of_its_own_request() -> None:
    async def play() -> None:
        context = Context()
        coalescer = WriteCoalescer(context, "s")
        futures = [coalescer.write(b"x") for _ in range(2)]
        await asyncio.sleep(0)
        reason = "may or may not be written: resolve((3, 7)) tells"
        context.registry.deliver([Raised(context.wishes[0].call, Failure.UNKNOWN, reason, RequestId(3, 7))])
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert [error.id for error in errors] == [(3, 7), (3, 8)]
        assert "resolve((3, 8)) tells" in str(errors[1])
        future = coalescer.write(b"y")
        await asyncio.sleep(0)
        context.registry.deliver([Raised(context.wishes[1].call, Failure.REFUSED, "no right")])
        with pytest.raises(Refused, match="no right"):
            await future
        lost = coalescer.write(b"z")
        await asyncio.sleep(0)
        context.registry.fail_all(Closed("over"))
        with pytest.raises(Closed):
            await lost
        context.closed = True
        late = coalescer.write(b"z")
        with pytest.raises(Closed):
            await late

    asyncio.run(play())


def test_every_request_of_a_batch_has_the_outcome_of_the_batch() -> None:
    outcomes = OutcomeCache()
    outcomes.record(RequestId(3, 7), 3, place(3))
    outcomes.record(RequestId(3, 10), 2, None)
    assert outcomes.get(RequestId(3, 7)).base_offset == 100
    second = outcomes.get(RequestId(3, 9))
    assert (second.first_id, second.requests, second.base_offset, second.messages) == (9, 1, 102, 1)
    assert outcomes.get(RequestId(3, 11)) is None
    for unknown in (RequestId(3, 6), RequestId(3, 12), RequestId(4, 7)):
        with pytest.raises(KeyError):
            outcomes.get(unknown)


def test_watcher_is_notified_of_its_own_request() -> None:
    outcomes, told = OutcomeCache(), []
    for call, number in ((1, 7), (2, 8), (3, 9)):
        outcomes.watch(RequestId(3, 7), RequestId(3, number), call, told.append)
    outcomes.unwatch(3)
    outcomes.record(RequestId(3, 7), 3, place(3, offset=PLACE_UNKNOWN))
    assert [(one.first_id, one.base_offset) for one in told] == [(7, -1), (8, -1)]
    outcomes.watch(RequestId(3, 20), RequestId(3, 21), 4, told.append)
    outcomes.record(RequestId(3, 20), 2, None)
    assert told[2:] == [None]


def test_outcomes_are_forgotten_in_order() -> None:
    outcomes = OutcomeCache()
    for number in range(1, OUTCOMES_MAX + 2):
        outcomes.record(RequestId(1, number), 1, None)
    with pytest.raises(KeyError):
        outcomes.get(RequestId(1, 1))
    assert outcomes.get(RequestId(1, 2)) is None


def test_plain_values_are_validated_as_a_batch() -> None:
    assert many("s", [b"a", b"bc"]).size_bytes == 3
    mixed = many("s", [b"a", (b"b", b"k"), bytearray(b"c")])
    assert (mixed.values, mixed.keys) == ([b"a", b"b", b"c"], [None, b"k", None])
    with pytest.raises(ValueError, match="at least one"):
        many("s", [])
    with pytest.raises(TypeError):
        many("s", ["text"])
