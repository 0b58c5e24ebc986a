"""Anti-entropy: nodes detect by SyncEvent that they differ, then converge by pushing a few events or by a bulk fetch.

Every `sync_ns` a node sends its neighbours the leaves of its durable events. If the receiver knows all of these leaves
and has more events, it pushes up to `push_max` of them; if it has more than that, it answers with its own leaves. If
the receiver lacks one of the leaves, it fetches from that neighbour, page by page. It sends a sample of its ids
(`Model.locator`), and the neighbour answers with every event that is not an ancestor of a sampled one. Two sets differ
only above their common events. One round therefore finds the difference, even after a long partition with writes on
both sides.

Invariants: at most one fetch per stream; a page is requested only after the previous one was added; the quota of a peer
bounds the bytes that are sent to it; `FETCH_LISTS_MAX` bounds the lists computed for peers.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from chaplain.graph.context import GraphContext
from chaplain.graph.dissemination import EventDissemination
from chaplain.graph.messages.peer import LEAVES_MAX, EventBatch, Fetched, FetchMissing, GetData, Item, Leaves, SyncEvent
from chaplain.graph.stream import Stream
from chaplain.units import MILLISECOND_NS

FETCH_LISTS_MAX = 64
"""Lists of missing events kept for peers that are fetching; beyond this the oldest is dropped."""
FETCHES_MAX = 64
"""Streams fetched at a time. The others wait for the next sync."""
WAITING_MAX = 8
"""Requests of one peer that wait for its quota. A further one costs the peer a strike."""
_SYNC_BYTES_MAX = 60_000
_ANSWER_NS = 200 * MILLISECOND_NS
"""Minimum interval between answers with our leaves to one peer, per stream."""
_RETRY_NS = 100 * MILLISECOND_NS
"""Interval at which waiting requests are retried."""


class BulkFetch:
    """A bulk fetch of one stream from one peer."""

    __slots__ = ("due_ns", "instance", "token")

    def __init__(self, instance: bytes, token: int, due_ns: int) -> None:
        self.instance = instance
        self.token = token
        self.due_ns = due_ns


class AntiEntropy:
    def __init__(
        self,
        context: GraphContext,
        dissemination: EventDissemination,
        now_ns: int,
        *,
        receive: Callable[..., None],
        is_refused: Callable[[int, bytes, bytes], bool],
        adopt_floor: Callable[[int, Stream], None],
    ) -> None:
        self._context = context
        self._dissemination = dissemination
        self._receive = receive
        self._is_refused = is_refused
        """True if the event would be refused from this peer: fetching it is useless."""
        self._adopt_floor = adopt_floor
        self._sync_ns = now_ns + context.rng.randrange(context.settings.sync_ns)
        self._fetches: dict[str, BulkFetch] = {}
        self._fetch_lists: OrderedDict[tuple[bytes, str], tuple[int, array[int]]] = OrderedDict()
        """By peer and stream: the fetch token, and the numbers of the events that the peer lacks."""
        self._waiting: deque[tuple[bytes, FetchMissing | GetData]] = deque()
        """Requests that wait for their peer's quota."""
        self._retry_ns: int | None = None
        self._answered_ns: dict[tuple[bytes, str], int] = {}
        self.frontiers: dict[bytes, dict[str, Leaves]] = {}
        """By member: its latest leaves of each stream. The member has these leaves and their ancestors on disk."""

    def deadline(self) -> int | None:
        fetches = [fetch.due_ns for fetch in self._fetches.values()]
        return min([self._sync_ns, *fetches, *([] if self._retry_ns is None else [self._retry_ns])])

    def woken(self, now_ns: int) -> None:
        if now_ns >= self._sync_ns:
            self._sync_ns = now_ns + self._context.settings.sync_ns
            self._answered_ns.clear()
            for instance in self._context.peers:
                self.send_leaves(instance)
        for name in [name for name, fetch in self._fetches.items() if now_ns >= fetch.due_ns]:
            del self._fetches[name]
            self._context.counts["fetches_timed_out"] += 1
        if self._retry_ns is not None and now_ns >= self._retry_ns:
            self._retry_ns = None
            waiting, self._waiting = self._waiting, deque()
            for instance, request in waiting:
                self._serve(now_ns, instance, request)

    # Sending leaves.

    def send_leaves(self, instance: bytes) -> None:
        part: list[Leaves] = []
        size = 0
        for stream in self._context.streams.values():
            if not stream.durable:
                continue
            leaves = self._leaves(stream)
            size += 32 * len(leaves.ids) + 300
            if part and size > _SYNC_BYTES_MAX:
                self._context.send(instance, SyncEvent(tuple(part)))
                part, size = [], 32 * len(leaves.ids) + 300
            part.append(leaves)
        if part:
            self._context.send(instance, SyncEvent(tuple(part)))

    def _leaves(self, stream: Stream) -> Leaves:
        """All leaves of the stream. Above `LEAVES_MAX`, a random sample, so that later syncs cover the others."""
        ids = stream.leaf_ids()
        if len(ids) > LEAVES_MAX:
            ids = self._context.rng.sample(ids, LEAVES_MAX)
        return Leaves(stream.name, stream.model.floor, stream.durable, tuple(ids))

    def _answer_leaves(self, now_ns: int, instance: bytes, stream: Stream) -> None:
        """Answer a peer's leaves with ours, at most once per `_ANSWER_NS`."""
        if now_ns - self._answered_ns.get((instance, stream.name), -_ANSWER_NS) >= _ANSWER_NS and stream.durable:
            self._answered_ns[instance, stream.name] = now_ns
            self._context.send(instance, SyncEvent((self._leaves(stream),)))

    # Receiving leaves.

    def on_sync(self, now_ns: int, instance: bytes, message: SyncEvent) -> None:
        key = self._context.peers[instance].key
        for leaves in message.streams:
            stream = self._context.streams.get(leaves.stream)
            if stream is None:
                # A peer's message names the stream; only a valid event of it creates the stream here.
                self._fetch_lacking(now_ns, instance, leaves.stream, leaves.ids)
            else:
                if key in self._context.members:
                    self.frontiers.setdefault(key, {})[leaves.stream] = leaves
                self._adopt_floor(now_ns, stream)
                self._compare(now_ns, instance, stream, leaves)

    def _compare(self, now_ns: int, instance: bytes, stream: Stream, leaves: Leaves) -> None:
        numbers = [stream.model.find(one) for one in leaves.ids]
        lacking = [one for one, number in zip(leaves.ids, numbers, strict=True) if number < 0]
        if lacking:
            self._fetch_lacking(now_ns, instance, stream.name, lacking)
            if any(leaf not in numbers for leaf in stream.leaves):
                self._answer_leaves(now_ns, instance, stream)
        elif len(leaves.ids) == LEAVES_MAX and leaves.events == stream.durable:
            return  # the leaves are a sample: we know all of them, and the peer has as many events as we have
        elif set(numbers) != stream.leaves.keys():
            self._send_children(now_ns, instance, stream, numbers)

    def _fetch_lacking(self, now_ns: int, instance: bytes, name: str, leaves: Sequence[bytes]) -> None:
        if any(not self._is_refused(now_ns, instance, leaf) for leaf in leaves):
            self.fetch(now_ns, instance, name)

    def _send_children(self, now_ns: int, instance: bytes, stream: Stream, numbers: Sequence[int]) -> None:
        lacking = self._servable(stream, stream.model.beyond(numbers))
        if len(lacking) > self._context.settings.push_max:
            self._answer_leaves(now_ns, instance, stream)
        elif lacking:
            self._context.counts["children_sent"] += len(lacking)
            self._context.read(stream, lacking, lambda raws: self._send_events(instance, stream, lacking, raws))

    def _send_events(self, instance: bytes, stream: Stream, numbers: Sequence[int], raws: Sequence[bytes]) -> None:
        if instance in self._context.peers:
            items = self._items(stream, numbers, raws)
            if items:
                self._context.send(instance, EventBatch(items))

    def _items(self, stream: Stream, numbers: Sequence[int], raws: Sequence[bytes]) -> tuple[Item, ...]:
        """Attach the known confirmations to each event, and ours to the last one, which covers its ancestors."""
        pairs = [(number, raw) for number, raw in zip(numbers, raws, strict=True) if raw]
        items = [Item(raw, tuple(self._dissemination.confirmations_of(stream, number))) for number, raw in pairs]
        if pairs:
            items[-1] = Item(pairs[-1][1], tuple(self._dissemination.confirmations_with_own(stream, pairs[-1][0])))
        return tuple(items)

    # Fetching.

    def fetch(self, now_ns: int, instance: bytes, name: str) -> None:
        """Fetch the events of the stream that we lack from this peer, unless a fetch of the stream is running."""
        if name in self._fetches or len(self._fetches) >= FETCHES_MAX or instance not in self._context.peers:
            return
        token = self._context.rng.randrange(1 << 32)
        self._fetches[name] = BulkFetch(instance, token, 0)
        self._context.counts["fetches"] += 1
        self._request_page(now_ns, name, 0)

    def _request_page(self, now_ns: int, name: str, start: int) -> None:
        fetch, stream = self._fetches[name], self._context.streams.get(name)
        fetch.due_ns = now_ns + self._context.settings.fetch_timeout_ns
        locator = tuple(stream.model.locator()) if stream is not None and not start else ()
        self._context.send(fetch.instance, FetchMissing(name, fetch.token, start, locator))

    def on_page(self, now_ns: int, instance: bytes, message: Fetched) -> None:
        fetch = self._fetches.get(message.stream)
        if fetch is None or (fetch.instance, fetch.token) != (instance, message.token):
            self._context.counts["pages_unrequested"] += 1
            return
        self._context.counts["pages_fetched"] += 1
        fetch.due_ns = now_ns + self._context.settings.fetch_timeout_ns

        def added() -> None:
            if self._fetches.get(message.stream) is not fetch:
                return
            if message.done or not message.items:
                del self._fetches[message.stream]
            else:
                self._request_page(fetch.due_ns - self._context.settings.fetch_timeout_ns, message.stream, message.next)

        self._receive(now_ns, instance, message.items, fetched=True, then=added)

    def peer_exited(self, instance: bytes) -> None:
        for name in [name for name, fetch in self._fetches.items() if fetch.instance == instance]:
            del self._fetches[name]
        for key in [key for key in self._fetch_lists if key[0] == instance]:
            del self._fetch_lists[key]
        self._waiting = deque(one for one in self._waiting if one[0] != instance)

    # Answering requests.

    def on_request(self, now_ns: int, instance: bytes, request: FetchMissing | GetData) -> None:
        """Serve a request. Over quota it waits; a peer with `WAITING_MAX` waiting requests gets a strike instead."""
        if sum(1 for one, _ in self._waiting if one == instance) >= WAITING_MAX:
            self._context.strike(now_ns, instance, "asks without waiting")
            return
        self._serve(now_ns, instance, request)

    def _serve(self, now_ns: int, instance: bytes, request: FetchMissing | GetData) -> None:
        peer = self._context.peers.get(instance)
        stream = self._context.streams.get(request.stream)
        if peer is None or stream is None:
            return
        if not self._context.quota(peer, now_ns).may_be_served(now_ns):
            self._context.counts["answers_delayed"] += 1
            self._waiting.append((instance, request))
            self._retry_ns = self._retry_ns or now_ns + _RETRY_NS
        elif isinstance(request, GetData):
            self._send_data(now_ns, instance, stream, request)
        else:
            self._send_page(now_ns, instance, stream, request)

    def _send_data(self, now_ns: int, instance: bytes, stream: Stream, request: GetData) -> None:
        found = [number for one in dict.fromkeys(request.ids) if (number := stream.find_durable(one)) >= 0]
        numbers = found[: self._fitting(stream, found)]
        self._charge(now_ns, instance, stream, numbers)
        if numbers:
            self._context.read(stream, numbers, lambda raws: self._send_events(instance, stream, numbers, raws))

    def _send_page(self, now_ns: int, instance: bytes, stream: Stream, request: FetchMissing) -> None:
        wanted = self._fetch_list(now_ns, instance, stream, request)
        if wanted is None:
            self._context.send(instance, Fetched(stream.name, request.token, 0, True, stream.model.floor, ()))
            return
        rest = wanted[request.start : request.start + self._context.settings.page_events_max]
        numbers = list(rest[: self._fitting(stream, rest)])
        following = request.start + len(numbers)
        done = following >= len(wanted)
        if done:
            self._fetch_lists.pop((instance, stream.name), None)
        self._charge(now_ns, instance, stream, numbers)

        def give(raws: Sequence[bytes]) -> None:
            if instance in self._context.peers:
                items = self._items(stream, numbers, raws)
                page = Fetched(stream.name, request.token, following, done, stream.model.floor, items)
                self._context.send(instance, page)

        self._context.read(stream, numbers, give)

    def _fetch_list(self, now_ns: int, instance: bytes, stream: Stream, request: FetchMissing) -> array[int] | None:
        """The events that the peer lacks, computed for its first page; None if the list was dropped since."""
        key = (instance, stream.name)
        if not request.start:
            known = [number for one in request.locator if (number := stream.model.find(one)) >= 0]
            lacking = stream.model.beyond(known) if known else range(stream.durable)
            wanted = array("I", self._servable(stream, lacking))
            self._fetch_lists[key] = (request.token, wanted)
            self._context.quota(self._context.peers[instance], now_ns).served(8 * len(wanted))
            if len(self._fetch_lists) > FETCH_LISTS_MAX:
                self._fetch_lists.popitem(last=False)
        made = self._fetch_lists.get(key)
        return made[1] if made is not None and made[0] == request.token else None

    def _servable(self, stream: Stream, numbers: Iterable[int]) -> list[int]:
        """The events that are on disk and not pruned."""
        floor, height_of = stream.model.floor, stream.model.height_of
        return [number for number in numbers if number < stream.durable and (not floor or height_of(number) >= floor)]

    def _fitting(self, stream: Stream, numbers: Sequence[int]) -> int:
        """How many of these events fit in a page; at least one."""
        room = self._context.settings.page_bytes_max
        for place, number in enumerate(numbers):
            room -= stream.sizes[number]
            if room < 0:
                return max(1, place)
        return len(numbers)

    def _charge(self, now_ns: int, instance: bytes, stream: Stream, numbers: Sequence[int]) -> None:
        quota = self._context.quota(self._context.peers[instance], now_ns)
        quota.served(sum(stream.sizes[number] + 100 for number in numbers) + 1000)
        self._context.counts["events_served"] += len(numbers)
