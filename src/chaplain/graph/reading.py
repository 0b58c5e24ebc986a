"""Answers clients who read: pages of a snapshot in the agreed order, or of what has come since.

Decides which events make a page, and who waits for news. Shows only what is on disk. Refuses to know bytes: they are
read by the host. Invariants: a page is bounded; parents come before children in either order; a reader that goes on at
another node misses nothing and gets nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from chaplain.core import Settled
from chaplain.graph.context import GraphContext
from chaplain.graph.messages.client import Page, ReadArrivals, ReadSnapshot, Row, encode
from chaplain.graph.messages.event import ID_BYTES, ParentLink
from chaplain.graph.stream import Stream
from chaplain.link.auth.identity import identifier_of
from chaplain.units import SECOND_NS

WAIT_NS_MAX = 30 * SECOND_NS
OUTSIDE_CACHED = 4


def _behind(request: ReadSnapshot | ReadArrivals) -> Page:
    """Nothing, and more to come: this node has not yet got all that was read elsewhere."""
    if isinstance(request, ReadSnapshot):
        return Page((), request.log, 0, request.limit, request.leaves, False)
    return Page((), request.log, request.position, 0, (), False)


class Waiting:
    __slots__ = ("call", "due_ns", "request")

    def __init__(self, call: int, request: ReadSnapshot | ReadArrivals, due_ns: int) -> None:
        self.call = call
        self.request = request
        self.due_ns = due_ns


class GraphReaders:
    def __init__(self, common: GraphContext) -> None:
        self._common = common
        self.name_of: Callable[[int], int] = lambda identifier: identifier
        self._waiting: dict[int, Waiting] = {}
        self._reading: dict[int, None] = {}
        self._outside: dict[tuple[str, tuple[bytes, ...]], tuple[int, frozenset[int]]] = {}
        """Of snapshots made elsewhere: how many events were here when it was asked for, and which are not in it."""

    def deadline(self) -> int | None:
        return min((one.due_ns for one in self._waiting.values()), default=None)

    def requested(self, now_ns: int, call: int, request: ReadSnapshot | ReadArrivals) -> None:
        self._answer(Waiting(call, request, now_ns + min(request.wait_ns, WAIT_NS_MAX)), now_ns)

    def withdrawn(self, call: int) -> None:
        self._waiting.pop(call, None)
        self._reading.pop(call, None)

    def woken(self, now_ns: int) -> None:
        for one in [one for one in self._waiting.values() if now_ns >= one.due_ns]:
            del self._waiting[one.call]
            self._answer(one, now_ns)

    def news(self, now_ns: int, names: Iterable[str]) -> None:
        """Something of these streams is on disk, or became read."""
        changed = set(names)
        for one in [one for one in self._waiting.values() if one.request.stream in changed]:
            del self._waiting[one.call]
            self._answer(one, now_ns)

    def _answer(self, one: Waiting, now_ns: int) -> None:
        stream = self._common.streams.get(one.request.stream)
        last = now_ns >= one.due_ns
        numbers = None if stream is None else self._known(stream, one.request)
        if stream is None and not one.request.leaves:
            self._arrive_at_nothing(one, last)
        elif numbers is None or stream is None:
            self._later(one, last, Settled(one.call, encode(_behind(one.request))))
        elif isinstance(one.request, ReadSnapshot):
            self._snapshot(one, stream, one.request, numbers)
        else:
            self._arrivals(one, stream, one.request, numbers, last)

    def _known(self, stream: Stream, request: ReadSnapshot | ReadArrivals) -> list[int] | None:
        """The reader's leaves by number; None if one is not here, on disk, and read if that is asked for."""
        if request.log == self._common.log:
            return []
        numbers = [stream.find_durable(one) for one in request.leaves]
        if any(number < 0 or (request.only_read and not stream.model.is_read(number)) for number in numbers):
            return None
        return numbers

    def _arrive_at_nothing(self, one: Waiting, last: bool) -> None:
        last = last or isinstance(one.request, ReadSnapshot)
        self._later(one, last, Settled(one.call, encode(Page((), b"", 0, 0, (), True))))

    def _later(self, one: Waiting, last: bool, settled: Settled) -> None:
        """Wait for news; at last, or if too many wait, say this."""
        if last or len(self._waiting) >= self._common.settings.readers_max:
            self._common.out.append(settled)
        else:
            self._waiting[one.call] = one

    # The agreed order.

    def _snapshot(self, one: Waiting, stream: Stream, request: ReadSnapshot, numbers: list[int]) -> None:
        model = stream.model
        log, limit, leaves = request.log, request.limit, request.leaves
        if not leaves and not limit:
            log, limit = self._common.log, len(model.read_order) if request.only_read else stream.durable
            ends = model.read_leaves if request.only_read else stream.leaves
            leaves = tuple(model.id_of(number) for number in ends)
        inside = self._inside(stream, request.only_read, limit if log == self._common.log else -1, leaves, numbers)
        after = ParentLink(request.after_id, request.after_height) if len(request.after_id) == ID_BYTES else None
        floor = model.floor
        begin = floor if after is None else 0  # whoever has begun wants what comes next, or hears that it went
        shown = (number for number in model.ordered(after) if model.height_of(number) >= begin and inside(number))
        chosen, done = self._page(stream, shown)
        # There are events at every height up to that of the next one, all of them in the snapshot.
        if after is not None and chosen and min(model.height_of(chosen[0]), after.height + 1) < floor:
            went = f"what stands behind height {after.height} in {stream.name!r} was pruned before it was read"
            self._common.out.append(Settled(one.call, kind="dropped", reason=f"{went}: read anew, from {floor} on"))
            return
        self._send(one.call, stream, chosen, lambda rows: Page(rows, log, 0, limit, leaves, done))

    def _inside(
        self, stream: Stream, only_read: bool, limit: int, leaves: tuple[bytes, ...], numbers: list[int]
    ) -> Callable[[int], bool]:
        """Whether an event belongs to the snapshot: by number where it was made here, else by its leaves."""
        model = stream.model
        if limit >= 0:
            return (lambda number: model.read_rank(number) < limit) if only_read else (lambda number: number < limit)
        cached = self._outside.get((stream.name, leaves))
        if cached is None:
            cached = self._outside[stream.name, leaves] = (len(model), frozenset(model.beyond(numbers)))
            while len(self._outside) > OUTSIDE_CACHED:
                del self._outside[next(iter(self._outside))]
        count, outside = cached
        return lambda number: number < count and number not in outside

    # The order of arrival.

    def _arrivals(self, one: Waiting, stream: Stream, request: ReadArrivals, numbers: list[int], last: bool) -> None:
        model, own = stream.model, request.log == self._common.log
        arrived: Sequence[int] = model.read_order if request.only_read else range(stream.durable)
        start = min(request.position, len(arrived)) if own else 0
        if own or not numbers:
            candidates: Sequence[int] = self._above(stream, arrived, start)
        else:
            rank = model.read_rank if request.only_read else (lambda number: number)
            beyond = [number for number in model.beyond(numbers) if rank(number) < len(arrived)]
            candidates = sorted((number for number in beyond if model.height_of(number) >= model.floor), key=rank)
        if not candidates:
            page = Page((), self._common.log, len(arrived), 0, (), True)
            self._later(one, last, Settled(one.call, encode(page)))
            return
        chosen, done = self._page(stream, candidates)
        if own or not numbers:
            end = chosen[-1]
            log, position = self._common.log, 1 + (model.read_rank(end) if request.only_read else end)
        else:
            log, position = (self._common.log, len(arrived)) if done else (b"", 0)
        self._send(one.call, stream, chosen, lambda rows: Page(rows, log, position, 0, (), done))

    def _above(self, stream: Stream, arrived: Sequence[int], start: int) -> list[int]:
        """The next ones that were not pruned: one more than a page takes."""
        most, model = self._common.settings.page_events_max + 1, stream.model
        found: list[int] = []
        while start < len(arrived) and len(found) < most:
            part = arrived[start : start + most]
            found += [number for number in part if model.height_of(number) >= model.floor]
            start += most
        return found[:most]

    # Pages.

    def _page(self, stream: Stream, numbers: Iterable[int]) -> tuple[list[int], bool]:
        """What fits, and whether that was all."""
        settings = self._common.settings
        chosen: list[int] = []
        size = 0
        for number in numbers:
            size += stream.sizes[number]
            if chosen and (len(chosen) >= settings.page_events_max or size > settings.page_bytes_max):
                return chosen, False
            chosen.append(number)
        return chosen, True

    def _send(self, call: int, stream: Stream, numbers: list[int], make: Callable[[tuple[Row, ...]], Page]) -> None:
        self._reading[call] = None

        def give(raws: Sequence[bytes]) -> None:
            if call not in self._reading:
                return
            del self._reading[call]
            if not all(raws):
                reason = "an event cannot be read from this node's disk: ask another node"
                self._common.out.append(Settled(call, kind="damaged", reason=reason))
                return
            rows = tuple(self._row(stream, number, raw) for number, raw in zip(numbers, raws, strict=True))
            self._common.out.append(Settled(call, encode(make(rows))))

        self._common.read(stream, numbers, give)

    def _row(self, stream: Stream, number: int, raw: bytes) -> Row:
        model = stream.model
        author = self.name_of(identifier_of(model.author_of(number)))
        return Row(raw, author, model.is_read(number), stream.unread.counts[number], number in model.forks)
