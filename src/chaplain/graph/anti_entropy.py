"""How nodes find out that they differ, and become equal: SyncEvent, and fetching in bulk.

Every two seconds a node tells its neighbours the leaves of what it has on disk. Whoever knows them all and has more
sends the children if they are few, else tells its own leaves. Whoever does not know one of them fetches what it lacks,
page after page, from one neighbour at a time: it names some of what it has (`Model.locator`), and the neighbour sends
whatever is not below those. Sets differ only above what both know, so one round finds the difference, however long the
partition was and whoever wrote on both sides.

Invariants: one fetch a stream at a time; a page is asked for when the one before was added; what a peer may be given
is bounded by its account, and lists made for it are bounded in number.
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

LISTS_MAX = 64
PULLS_MAX = 64
"""Streams that are fetched at a time; the others wait for the next sync."""
WAITING_MAX = 8
"""Requests of one peer that may wait until its account allows an answer."""
_SYNC_BYTES_MAX = 60_000
_ANSWER_NS = 200 * MILLISECOND_NS
_SLOW_NS = 100 * MILLISECOND_NS


class Pull:
    """What we fetch of one stream, from whom."""

    __slots__ = ("due_ns", "instance", "token")

    def __init__(self, instance: bytes, token: int, due_ns: int) -> None:
        self.instance = instance
        self.token = token
        self.due_ns = due_ns


class AntiEntropy:
    def __init__(
        self,
        common: GraphContext,
        spreading: EventDissemination,
        now_ns: int,
        *,
        came: Callable[..., None],
        is_ahead: Callable[[int, bytes], bool],
        heard_floor: Callable[[int, Stream], None],
    ) -> None:
        self._common = common
        self._spreading = spreading
        self._came = came
        self._is_ahead = is_ahead
        """Whether an event's time has not come: then there is no use in fetching it."""
        self._heard_floor = heard_floor
        self._sync_ns = now_ns + common.rng.randrange(common.settings.sync_ns)
        self._pulls: dict[str, Pull] = {}
        self._lists: OrderedDict[tuple[bytes, str], tuple[int, array[int]]] = OrderedDict()
        """By peer and stream: the token, and what it lacks."""
        self._waiting: deque[tuple[bytes, FetchMissing | GetData]] = deque()
        self._slow_ns: int | None = None
        self._told_ns: dict[tuple[bytes, str], int] = {}
        self.frontiers: dict[bytes, dict[str, Leaves]] = {}
        """By member: what it last told of each stream. It has these leaves and their ancestors on disk."""

    def deadline(self) -> int | None:
        pulls = [pull.due_ns for pull in self._pulls.values()]
        return min([self._sync_ns, *pulls, *([] if self._slow_ns is None else [self._slow_ns])])

    def woken(self, now_ns: int) -> None:
        if now_ns >= self._sync_ns:
            self._sync_ns = now_ns + self._common.settings.sync_ns
            self._told_ns.clear()
            for instance in self._common.peers:
                self.tell_leaves(instance)
        for name in [name for name, pull in self._pulls.items() if now_ns >= pull.due_ns]:
            del self._pulls[name]
            self._common.counts["fetches_timed_out"] += 1
        if self._slow_ns is not None and now_ns >= self._slow_ns:
            self._slow_ns = None
            waiting, self._waiting = self._waiting, deque()
            for instance, request in waiting:
                self._serve(now_ns, instance, request)

    # Telling leaves.

    def tell_leaves(self, instance: bytes) -> None:
        part: list[Leaves] = []
        size = 0
        for stream in self._common.streams.values():
            if not stream.durable:
                continue
            leaves = self._leaves(stream)
            size += 32 * len(leaves.ids) + 300
            if part and size > _SYNC_BYTES_MAX:
                self._common.tell(instance, SyncEvent(tuple(part)))
                part, size = [], 32 * len(leaves.ids) + 300
            part.append(leaves)
        if part:
            self._common.tell(instance, SyncEvent(tuple(part)))

    def _leaves(self, stream: Stream) -> Leaves:
        """All leaves; of far too many, some by chance, others the next time."""
        ids = stream.leaf_ids()
        if len(ids) > LEAVES_MAX:
            ids = self._common.rng.sample(ids, LEAVES_MAX)
        return Leaves(stream.name, stream.model.floor, stream.durable, tuple(ids))

    def _tell_one(self, now_ns: int, instance: bytes, stream: Stream) -> None:
        """Our leaves in answer to somebody's, not too often."""
        if now_ns - self._told_ns.get((instance, stream.name), -_ANSWER_NS) >= _ANSWER_NS and stream.durable:
            self._told_ns[instance, stream.name] = now_ns
            self._common.tell(instance, SyncEvent((self._leaves(stream),)))

    # Hearing leaves.

    def heard(self, now_ns: int, instance: bytes, message: SyncEvent) -> None:
        key = self._common.peers[instance].key
        for leaves in message.streams:
            stream = self._common.streams.get(leaves.stream)
            if stream is None:
                self._fetch_lacking(now_ns, instance, leaves.stream, leaves.ids)  # an event makes it, not its name
            else:
                if key in self._common.members:
                    self.frontiers.setdefault(key, {})[leaves.stream] = leaves
                self._heard_floor(now_ns, stream)
                self._compare(now_ns, instance, stream, leaves)

    def _compare(self, now_ns: int, instance: bytes, stream: Stream, leaves: Leaves) -> None:
        numbers = [stream.model.find(one) for one in leaves.ids]
        lacking = [one for one, number in zip(leaves.ids, numbers, strict=True) if number < 0]
        if lacking:
            self._fetch_lacking(now_ns, instance, stream.name, lacking)
            if any(leaf not in numbers for leaf in stream.leaves):
                self._tell_one(now_ns, instance, stream)
        elif len(leaves.ids) == LEAVES_MAX and leaves.events == stream.durable:
            return  # a sample, all of it known, of as many events as we have
        elif set(numbers) != stream.leaves.keys():
            self._send_children(now_ns, instance, stream, numbers)

    def _fetch_lacking(self, now_ns: int, instance: bytes, name: str, leaves: Sequence[bytes]) -> None:
        if any(not self._is_ahead(now_ns, leaf) for leaf in leaves):
            self.fetch(now_ns, instance, name)

    def _send_children(self, now_ns: int, instance: bytes, stream: Stream, numbers: Sequence[int]) -> None:
        lacking = self._givable(stream, stream.model.beyond(numbers))
        if len(lacking) > self._common.settings.push_max:
            self._tell_one(now_ns, instance, stream)
        elif lacking:
            self._common.counts["children_sent"] += len(lacking)
            self._common.read(stream, lacking, lambda raws: self._give(instance, stream, lacking, raws))

    def _give(self, instance: bytes, stream: Stream, numbers: Sequence[int], raws: Sequence[bytes]) -> None:
        if instance in self._common.peers:
            items = self._items(stream, numbers, raws)
            if items:
                self._common.tell(instance, EventBatch(items))

    def _items(self, stream: Stream, numbers: Sequence[int], raws: Sequence[bytes]) -> tuple[Item, ...]:
        """With the words that others gave for each, and ours for the last."""
        pairs = [(number, raw) for number, raw in zip(numbers, raws, strict=True) if raw]
        items = [Item(raw, tuple(self._spreading.words_of(stream, number))) for number, raw in pairs]
        if pairs:
            items[-1] = Item(pairs[-1][1], tuple(self._spreading.with_own_word(stream, pairs[-1][0])))
        return tuple(items)

    # Fetching.

    def fetch(self, now_ns: int, instance: bytes, name: str) -> None:
        """Get what we lack of the stream from this peer, unless somebody is giving it already."""
        if name in self._pulls or len(self._pulls) >= PULLS_MAX or instance not in self._common.peers:
            return
        token = self._common.rng.randrange(1 << 32)
        self._pulls[name] = Pull(instance, token, 0)
        self._common.counts["fetches"] += 1
        self._ask_page(now_ns, name, 0)

    def _ask_page(self, now_ns: int, name: str, start: int) -> None:
        pull, stream = self._pulls[name], self._common.streams.get(name)
        pull.due_ns = now_ns + self._common.settings.fetch_timeout_ns
        locator = tuple(stream.model.locator()) if stream is not None and not start else ()
        self._common.tell(pull.instance, FetchMissing(name, pull.token, start, locator))

    def page(self, now_ns: int, instance: bytes, message: Fetched) -> None:
        pull = self._pulls.get(message.stream)
        if pull is None or (pull.instance, pull.token) != (instance, message.token):
            self._common.counts["pages_unasked"] += 1
            return
        self._common.counts["pages_fetched"] += 1
        pull.due_ns = now_ns + self._common.settings.fetch_timeout_ns

        def added() -> None:
            if self._pulls.get(message.stream) is not pull:
                return
            if message.done or not message.items:
                del self._pulls[message.stream]
            else:
                self._ask_page(pull.due_ns - self._common.settings.fetch_timeout_ns, message.stream, message.next)

        self._came(now_ns, instance, message.items, fetched=True, then=added)

    def exited(self, instance: bytes) -> None:
        for name in [name for name, pull in self._pulls.items() if pull.instance == instance]:
            del self._pulls[name]
        for key in [key for key in self._lists if key[0] == instance]:
            del self._lists[key]
        self._waiting = deque(one for one in self._waiting if one[0] != instance)

    # Answering.

    def wanted(self, now_ns: int, instance: bytes, request: FetchMissing | GetData) -> None:
        """Somebody asks. Who asks too much waits; who asks on without waiting is struck."""
        if sum(1 for one, _ in self._waiting if one == instance) >= WAITING_MAX:
            self._common.strike(now_ns, instance, "asks without waiting")
            return
        self._serve(now_ns, instance, request)

    def _serve(self, now_ns: int, instance: bytes, request: FetchMissing | GetData) -> None:
        peer = self._common.peers.get(instance)
        stream = self._common.streams.get(request.stream)
        if peer is None or stream is None:
            return
        if not self._common.account(peer, now_ns).may_be_served(now_ns):
            self._common.counts["answers_delayed"] += 1
            self._waiting.append((instance, request))
            self._slow_ns = self._slow_ns or now_ns + _SLOW_NS
        elif isinstance(request, GetData):
            self._give_data(now_ns, instance, stream, request)
        else:
            self._give_page(now_ns, instance, stream, request)

    def _give_data(self, now_ns: int, instance: bytes, stream: Stream, request: GetData) -> None:
        found = [number for one in dict.fromkeys(request.ids) if (number := stream.find_durable(one)) >= 0]
        numbers = found[: self._fitting(stream, found)]
        self._charge(now_ns, instance, stream, numbers)
        if numbers:
            self._common.read(stream, numbers, lambda raws: self._give(instance, stream, numbers, raws))

    def _give_page(self, now_ns: int, instance: bytes, stream: Stream, request: FetchMissing) -> None:
        wanted = self._list(now_ns, instance, stream, request)
        if wanted is None:
            self._common.tell(instance, Fetched(stream.name, request.token, 0, True, stream.model.floor, ()))
            return
        rest = wanted[request.start : request.start + self._common.settings.page_events_max]
        numbers = list(rest[: self._fitting(stream, rest)])
        following = request.start + len(numbers)
        done = following >= len(wanted)
        if done:
            self._lists.pop((instance, stream.name), None)
        self._charge(now_ns, instance, stream, numbers)

        def give(raws: Sequence[bytes]) -> None:
            if instance in self._common.peers:
                items = self._items(stream, numbers, raws)
                page = Fetched(stream.name, request.token, following, done, stream.model.floor, items)
                self._common.tell(instance, page)

        self._common.read(stream, numbers, give)

    def _list(self, now_ns: int, instance: bytes, stream: Stream, request: FetchMissing) -> array[int] | None:
        """What the asker lacks, made at its first page; None if we forgot it."""
        key = (instance, stream.name)
        if not request.start:
            known = [number for one in request.locator if (number := stream.model.find(one)) >= 0]
            lacking = stream.model.beyond(known) if known else range(stream.durable)
            wanted = array("I", self._givable(stream, lacking))
            self._lists[key] = (request.token, wanted)
            self._common.account(self._common.peers[instance], now_ns).served(8 * len(wanted))
            if len(self._lists) > LISTS_MAX:
                self._lists.popitem(last=False)
        made = self._lists.get(key)
        return made[1] if made is not None and made[0] == request.token else None

    def _givable(self, stream: Stream, numbers: Iterable[int]) -> list[int]:
        """What is on disk, and was not pruned."""
        floor, height_of = stream.model.floor, stream.model.height_of
        return [number for number in numbers if number < stream.durable and (not floor or height_of(number) >= floor)]

    def _fitting(self, stream: Stream, numbers: Sequence[int]) -> int:
        """How many of these fit in a page; one always does."""
        room = self._common.settings.page_bytes_max
        for place, number in enumerate(numbers):
            room -= stream.sizes[number]
            if room < 0:
                return max(1, place)
        return len(numbers)

    def _charge(self, now_ns: int, instance: bytes, stream: Stream, numbers: Sequence[int]) -> None:
        account = self._common.account(self._common.peers[instance], now_ns)
        account.served(sum(stream.sizes[number] + 100 for number in numbers) + 1000)
        self._common.counts["events_served"] += len(numbers)
