"""Reads of clients: pages of a snapshot in the agreed order, or of new events in arrival order.

Decides which events form a page, and which calls wait for new events. Shows only durable events. Does not know event
bytes: the host reads them. Invariants: a page is bounded; parents precede children in either order; a reader that
continues at another node misses no event and gets none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from chaplain.core import Settled
from chaplain.graph.context import GraphContext
from chaplain.graph.messages.client import EventRow, Page, ReadArrivals, ReadSnapshot, encode
from chaplain.graph.messages.event import ID_BYTES, ParentLink
from chaplain.graph.stream import Stream
from chaplain.link.auth.identity import identifier_of
from chaplain.units import SECOND_NS

WAIT_NS_MAX = 30 * SECOND_NS
"""Longest wait of a call, even if the client requests a longer one."""
CONFIRMED_NS_MAX = SECOND_NS
"""A snapshot of read events waits this long for the newest event to become read. Members confirm it within
milliseconds, so an append by the same client is part of the snapshot.
"""
EXCLUDED_CACHED = 4
"""Snapshots of other nodes whose excluded events are cached."""


def _incomplete_page(request: ReadSnapshot | ReadArrivals) -> Page:
    """An empty page with `done` unset: this node does not yet have everything that the reader has read elsewhere."""
    if isinstance(request, ReadSnapshot):
        return Page((), request.log, 0, request.limit, request.leaves, False)
    return Page((), request.log, request.position, 0, (), False)


class WaitingRead:
    """A client's call that may wait until `due_ns`."""

    __slots__ = ("call", "due_ns", "expected", "request")

    def __init__(self, call: int, request: ReadSnapshot | ReadArrivals, due_ns: int) -> None:
        self.call = call
        self.request = request
        self.due_ns = due_ns
        self.expected: list[int] | None = None
        """The unread events that a new snapshot of read events waits for; None until it is tried first."""


class GraphReaders:
    def __init__(self, context: GraphContext) -> None:
        self._context = context
        self._readers_max = context.settings.readers_max
        self.name_of: Callable[[int], int] = lambda identifier: identifier
        self._waiting: dict[int, WaitingRead] = {}
        self._reading: dict[int, None] = {}
        self._excluded: dict[tuple[str, tuple[bytes, ...]], tuple[int, frozenset[int]]] = {}
        """By stream and leaves, for snapshots made at another node: the number of events here at the first request, and
        which of them are not part of the snapshot.
        """

    def deadline(self) -> int | None:
        return min((one.due_ns for one in self._waiting.values()), default=None)

    def requested(self, now_ns: int, call: int, request: ReadSnapshot | ReadArrivals) -> None:
        self._answer(WaitingRead(call, request, now_ns + min(request.wait_ns, WAIT_NS_MAX)), now_ns)

    def withdrawn(self, call: int) -> None:
        self._waiting.pop(call, None)
        self._reading.pop(call, None)

    def woken(self, now_ns: int) -> None:
        for one in [one for one in self._waiting.values() if now_ns >= one.due_ns]:
            del self._waiting[one.call]
            self._answer(one, now_ns)

    def on_changed(self, now_ns: int, names: Iterable[str]) -> None:
        """Retry the calls that wait for these streams: some events became durable, or confirmed by enough members."""
        changed = set(names)
        for one in [one for one in self._waiting.values() if one.request.stream in changed]:
            del self._waiting[one.call]
            self._answer(one, now_ns)

    def _answer(self, one: WaitingRead, now_ns: int) -> None:
        stream = self._context.streams.get(one.request.stream)
        last = now_ns >= one.due_ns
        numbers = None if stream is None else self._known(stream, one.request)
        if stream is None and not one.request.leaves:
            self._answer_without_stream(one, last)
        elif numbers is None or stream is None:
            self._wait_or_answer(one, last, Settled(one.call, encode(_incomplete_page(one.request))))
        elif isinstance(one.request, ReadSnapshot):
            if not self._awaits_confirmations(one, stream, one.request, now_ns):
                self._snapshot(one, stream, one.request, numbers)
        else:
            self._arrivals(one, stream, one.request, numbers, last)

    def _known(self, stream: Stream, request: ReadSnapshot | ReadArrivals) -> list[int] | None:
        """The reader's leaves by number. None if one of them is not durable here, or is unread in a read of read events
        only.
        """
        if request.log == self._context.log:
            return []
        numbers = [stream.find_durable(one) for one in request.leaves]
        if any(number < 0 or (request.only_read and not stream.model.is_read(number)) for number in numbers):
            return None
        return numbers

    def _answer_without_stream(self, one: WaitingRead, last: bool) -> None:
        last = last or isinstance(one.request, ReadSnapshot)
        self._wait_or_answer(one, last, Settled(one.call, encode(Page((), b"", 0, 0, (), True))))

    def _wait_or_answer(self, one: WaitingRead, last: bool, settled: Settled) -> None:
        """Keep the call waiting; if it is due, or `readers_max` calls wait, settle it with this answer."""
        if last or len(self._waiting) >= self._readers_max:
            self._context.out.append(settled)
        else:
            self._waiting[one.call] = one

    # The agreed order.

    def _awaits_confirmations(self, one: WaitingRead, stream: Stream, request: ReadSnapshot, now_ns: int) -> bool:
        """Keep a new snapshot of read events waiting while the newest event has just been written and is unread."""
        if not request.only_read or request.leaves or request.limit or len(self._waiting) >= self._readers_max:
            return False
        if one.expected is None:
            one.expected = list(stream.leaves)
            one.due_ns = min(one.due_ns, stream.changed_ns + CONFIRMED_NS_MAX)
        if now_ns >= one.due_ns or all(map(stream.model.is_read, one.expected)):
            return False
        self._waiting[one.call] = one
        return True

    def _snapshot(self, one: WaitingRead, stream: Stream, request: ReadSnapshot, numbers: list[int]) -> None:
        model = stream.model
        log, limit, leaves = request.log, request.limit, request.leaves
        if not leaves and not limit:
            log, limit = self._context.log, len(model.read_order) if request.only_read else stream.durable
            ends = model.read_leaves if request.only_read else stream.leaves
            leaves = tuple(model.id_of(number) for number in ends)
        inside = self._snapshot_filter(
            stream, request.only_read, limit if log == self._context.log else -1, leaves, numbers
        )
        after = ParentLink(request.after_id, request.after_height) if len(request.after_id) == ID_BYTES else None
        floor = model.floor
        # A new reader starts at the floor. A reader in mid-snapshot needs the next event, or an error if it is pruned.
        begin = floor if after is None else 0
        shown = (number for number in model.ordered(after) if model.height_of(number) >= begin and inside(number))
        chosen, done = self._page(stream, shown)
        # Every height up to that of the next event has events, all of them part of the snapshot. So if the height
        # after `after` is below the floor, events of the snapshot were pruned before they were read.
        if after is not None and chosen and min(model.height_of(chosen[0]), after.height + 1) < floor:
            went = f"what stands behind height {after.height} in {stream.name!r} was pruned before it was read"
            self._context.out.append(Settled(one.call, kind="dropped", reason=f"{went}: read anew, from {floor} on"))
            return
        self._send(one.call, stream, chosen, lambda rows: Page(rows, log, 0, limit, leaves, done))

    def _snapshot_filter(
        self, stream: Stream, only_read: bool, limit: int, leaves: tuple[bytes, ...], numbers: list[int]
    ) -> Callable[[int], bool]:
        """Return a test whether an event is in the snapshot: by number if it was made here, else by its leaves."""
        model = stream.model
        if limit >= 0:
            return (lambda number: model.read_rank(number) < limit) if only_read else (lambda number: number < limit)
        cached = self._excluded.get((stream.name, leaves))
        if cached is None:
            cached = self._excluded[stream.name, leaves] = (len(model), frozenset(model.beyond(numbers)))
            while len(self._excluded) > EXCLUDED_CACHED:
                del self._excluded[next(iter(self._excluded))]
        count, outside = cached
        return lambda number: number < count and number not in outside

    # The order of arrival.

    def _arrivals(
        self, one: WaitingRead, stream: Stream, request: ReadArrivals, numbers: list[int], last: bool
    ) -> None:
        model, own = stream.model, request.log == self._context.log
        arrived: Sequence[int] = model.read_order if request.only_read else range(stream.durable)
        start = min(request.position, len(arrived)) if own else 0
        if own or not numbers:
            candidates: Sequence[int] = self._next_unpruned(stream, arrived, start)
        else:
            rank = model.read_rank if request.only_read else (lambda number: number)
            beyond = [number for number in model.beyond(numbers) if rank(number) < len(arrived)]
            candidates = sorted((number for number in beyond if model.height_of(number) >= model.floor), key=rank)
        if not candidates:
            page = Page((), self._context.log, len(arrived), 0, (), True)
            self._wait_or_answer(one, last, Settled(one.call, encode(page)))
            return
        chosen, done = self._page(stream, candidates)
        if own or not numbers:
            end = chosen[-1]
            log, position = self._context.log, 1 + (model.read_rank(end) if request.only_read else end)
        else:
            log, position = (self._context.log, len(arrived)) if done else (b"", 0)
        self._send(one.call, stream, chosen, lambda rows: Page(rows, log, position, 0, (), done))

    def _next_unpruned(self, stream: Stream, arrived: Sequence[int], start: int) -> list[int]:
        """The next events that are not pruned. The list has one event more than fits in a page if further events
        follow, so the caller knows whether the page is the last one.
        """
        most, model = self._context.settings.page_events_max + 1, stream.model
        found: list[int] = []
        while start < len(arrived) and len(found) < most:
            part = arrived[start : start + most]
            found += [number for number in part if model.height_of(number) >= model.floor]
            start += most
        return found[:most]

    # Pages.

    def _page(self, stream: Stream, numbers: Iterable[int]) -> tuple[list[int], bool]:
        """The events that fit in a page, and whether these are all."""
        settings = self._context.settings
        chosen: list[int] = []
        size = 0
        for number in numbers:
            size += stream.sizes[number]
            if chosen and (len(chosen) >= settings.page_events_max or size > settings.page_bytes_max):
                return chosen, False
            chosen.append(number)
        return chosen, True

    def _send(
        self, call: int, stream: Stream, numbers: list[int], make: Callable[[tuple[EventRow, ...]], Page]
    ) -> None:
        self._reading[call] = None

        def give(raws: Sequence[bytes]) -> None:
            if call not in self._reading:
                return
            del self._reading[call]
            if not all(raws):
                reason = "an event cannot be read from this node's disk: ask another node"
                self._context.out.append(Settled(call, kind="damaged", reason=reason))
                return
            rows = tuple(self._row(stream, number, raw) for number, raw in zip(numbers, raws, strict=True))
            self._context.out.append(Settled(call, encode(make(rows))))

        self._context.read(stream, numbers, give)

    def _row(self, stream: Stream, number: int, raw: bytes) -> EventRow:
        model = stream.model
        author = self.name_of(identifier_of(model.author_of(number)))
        return EventRow(raw, author, model.is_read(number), stream.unread.counts[number], number in model.forks)
