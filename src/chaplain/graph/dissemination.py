"""How events and confirmations reach everybody: broadcast, Inv, rebroadcast, and the resending of what is unread.

Decides whom to tell what, and when an event has been confirmed often enough. In a healthy mesh everybody hears an event
from its author and a confirmation from its giver, so nothing is passed on at once; what is still unread after a while
goes to those who have not shown that they have it. Refuses to know the disk: it is told what is durable.

Invariants: our word is given only for what is on our disk; nobody's word counts before it was checked, nor without its
giver being a member.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from chaplain.core import soonest
from chaplain.graph.context import GraphContext
from chaplain.graph.events import SignatureCheck
from chaplain.graph.messages.event import Event
from chaplain.graph.messages.peer import AGAIN, CONFIRMATIONS_MAX, FIRST, Confirmation, EventBatch, Inv, Item
from chaplain.graph.stream import Here, Stream

LEAVES_RESENT_MAX = 16
_FORGED = 16


class EventDissemination:
    def __init__(self, common: GraphContext, ask: Callable[[int, bytes, str, Sequence[bytes]], None]) -> None:
        self._common = common
        self._ask = ask
        self._early: OrderedDict[bytes, list[tuple[bytes, bytes]]] = OrderedDict()
        """Confirmations that came before their event."""
        self._unconfirmed: dict[str, None] = {}
        self._confirm_ns: int | None = None
        self._passing: dict[tuple[str, int], None] = {}
        """Events to be passed on if they are still unread then."""
        self._pass_ns: int | None = None
        self._resend_ns: int | None = None

    def deadline(self) -> int | None:
        return soonest((self._confirm_ns, self._pass_ns, self._resend_ns))

    def woken(self, now_ns: int) -> None:
        if self._confirm_ns is not None and now_ns >= self._confirm_ns:
            self._confirm_ns = None
            self._give_words()
        if self._pass_ns is not None and now_ns >= self._pass_ns:
            self._pass_ns = None
            self._pass_on(now_ns)
        if self._resend_ns is not None and now_ns >= self._resend_ns:
            self._resend_ns = None
            self._resend(now_ns)

    # Events that were added, or are on disk.

    def added(
        self, now_ns: int, stream: Stream, number: int, event: Event, words: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """An event confirms its parents in its author's name."""
        if event.author in self._common.members:
            for parent in stream.model.parents_of(number):
                self._confirm(stream, event.author, parent)
        early = self._early.pop(event.id, [])
        self.words(now_ns, stream, number, [*words, *early])
        if not self._common.read_at:
            stream.enough[number] = None
        self._pass_later(now_ns, stream, number)

    def durable(self, now_ns: int, stream: Stream, numbers: range) -> None:
        """These are on our disk: we have them, and our own go out."""
        own = self._common.identity.key
        mine: list[Item] = []
        for number in numbers:
            self._confirm(stream, own, number)
            if stream.model.author_of(number) == own:
                raw = self._common.recent(stream.model.id_of(number))
                if raw is not None:
                    mine.append(Item(raw))
        for part in _parts(mine, self._common.settings.page_bytes_max):
            self._common.tell_all(EventBatch(part, FIRST))
        self._unconfirmed[stream.name] = None
        if self._confirm_ns is None:
            self._confirm_ns = now_ns + self._common.settings.confirm_ns

    def _confirm(self, stream: Stream, member: bytes, number: int) -> None:
        read_at = self._common.read_at
        enough = stream.unread.confirm(member, number, read_at)
        stream.enough.update(dict.fromkeys(enough))

    def _give_words(self) -> None:
        """Inv: our word for each leaf that is not our own work, which says as much."""
        names, self._unconfirmed = self._unconfirmed, {}
        for name in names:
            stream = self._common.streams[name]
            new = [leaf for leaf in stream.leaves if leaf not in stream.confirmed and not self._is_own(stream, leaf)]
            stream.confirmed.update(dict.fromkeys(new))
            words = [self.own_word(stream, leaf) for leaf in new]
            if words:
                self._common.tell_all(Inv(name, tuple(words)))

    def _is_own(self, stream: Stream, number: int) -> bool:
        return stream.model.author_of(number) == self._common.identity.key

    def with_own_word(self, stream: Stream, number: int) -> list[tuple[bytes, bytes]]:
        """What we know of who has it, ourselves included."""
        own = self.own_word(stream, number)
        others = [word for word in self.words_of(stream, number) if word[0] != own.member]
        return [(own.member, own.signature), *others]

    def own_word(self, stream: Stream, number: int) -> Confirmation:
        assert number < stream.durable, "a word for what is not on disk"
        identity, event_id = self._common.identity, stream.model.id_of(number)
        signature = identity.sign(self._common.confirm_label, event_id)
        stream.unread.keep(identity.key, number, signature)
        return Confirmation(identity.key, event_id, signature)

    # Confirmations of others.

    def inv(self, now_ns: int, sender: bytes, message: Inv) -> None:
        """Take confirmations; ask for events that others have and we have not."""
        stream = self._common.streams.get(message.stream)
        missing: list[Confirmation] = []
        for word in message.confirmations:
            number = -1 if stream is None else stream.model.find(word.event)
            if stream is not None and number >= 0:
                self.words(now_ns, stream, number, [(word.member, word.signature)], sender)
            elif word.member in self._common.members:
                missing.append(word)
        if not missing:
            return
        if not self._common.account(self._common.peers[sender], now_ns).takes_work(now_ns, len(missing)):
            self._common.strike(now_ns, sender, "too many confirmations")
            return
        for word in missing:
            self._keep_early(word)
        self._ask(now_ns, sender, message.stream, list(dict.fromkeys(word.event for word in missing)))

    def _keep_early(self, word: Confirmation) -> None:
        words = self._early.setdefault(word.event, [])
        if len(words) < CONFIRMATIONS_MAX and all(member != word.member for member, _ in words):
            words.append((word.member, word.signature))
        if len(self._early) > self._common.settings.early_max:
            self._early.popitem(last=False)

    def words(
        self, now_ns: int, stream: Stream, number: int, words: Iterable[tuple[bytes, bytes]], sender: bytes = b""
    ) -> None:
        """Have the words that tell us something new checked, and count those that are right."""
        news = [
            (member, signature)
            for member, signature in words
            if member in self._common.members and not stream.unread.has(member, number)
        ]
        peer = self._common.peers.get(sender)
        if not news or (peer and not self._common.account(peer, now_ns).takes_work(now_ns, len(news))):
            return
        event_id, label = stream.model.id_of(number), self._common.confirm_label
        checks = [SignatureCheck(member, label, event_id, signature) for member, signature in news]

        def checked(results: Sequence[bool]) -> None:
            for (member, signature), right in zip(news, results, strict=True):
                if right:
                    self._count(now_ns, Here(stream, number), member, signature)
                else:
                    self._common.strike(now_ns, sender, "forged confirmation", _FORGED)

        self._common.check(checks, checked)

    def _count(self, now_ns: int, here: Here, member: bytes, signature: bytes) -> None:
        self._common.counts["confirmations"] += 1
        here.stream.unread.keep(member, here.number, signature)
        self._confirm(here.stream, member, here.number)
        self._pass_later(now_ns, here.stream, here.number)

    def again(self, now_ns: int, sender: bytes, here: Here, words: Sequence[tuple[bytes, bytes]], wanted: bool) -> None:
        """An event came that is here already; its sender may want to know who has it."""
        stream, number = here
        self.words(now_ns, stream, number, words, sender)
        if wanted and number < stream.durable:
            given = [Confirmation(member, here.id, word) for member, word in self.with_own_word(stream, number)]
            self._common.tell(sender, Inv(stream.name, tuple(given)))

    # Passing on.

    def _pass_later(self, now_ns: int, stream: Stream, number: int) -> None:
        if stream.model.is_read(number) or number in stream.enough:
            return
        self._passing[stream.name, number] = None
        if self._pass_ns is None:
            self._pass_ns = now_ns + self._common.settings.rebroadcast_ns
        if self._resend_ns is None:
            self._resend_ns = now_ns + self._common.settings.resend_ns

    def _pass_on(self, now_ns: int) -> None:
        """Rebroadcast what is still unread: events to those who have not shown that they have it, words to the rest."""
        passing, self._passing = self._passing, {}
        batches: dict[bytes, list[Item]] = {}
        invs: dict[tuple[bytes, str], list[Confirmation]] = {}
        for name, number in passing:
            stream = self._common.streams[name]
            if number >= stream.durable:
                self._pass_later(now_ns, stream, number)
                continue
            if stream.model.is_read(number):
                continue
            event_id = stream.model.id_of(number)
            words = self.words_of(stream, number)
            for instance, peer in self._common.peers.items():
                raw = self._common.recent(event_id)
                if stream.unread.has(peer.key, number) or raw is None:
                    given = [Confirmation(member, event_id, word) for member, word in words if member != peer.key]
                    invs.setdefault((instance, name), []).extend(given)
                elif stream.model.author_of(number) != peer.key:
                    batches.setdefault(instance, []).append(Item(raw, tuple(words)))
        self._tell_batches(batches, 0)
        for (instance, name), given in invs.items():
            if given:
                self._common.tell(instance, Inv(name, tuple(given[:1024])))

    def _resend(self, now_ns: int) -> None:
        """SEND_UNREAD_EVENTS_INTERVAL: unread leaves again, to everybody, until they are read."""
        for stream in self._common.streams.values():
            leaves = [leaf for leaf in stream.leaves if not stream.model.is_read(leaf)]
            if leaves:
                self._resend_ns = now_ns + self._common.settings.resend_ns
                self._resend_leaves(stream, leaves[-LEAVES_RESENT_MAX:])

    def _resend_leaves(self, stream: Stream, leaves: list[int]) -> None:
        def send(raws: Sequence[bytes]) -> None:
            pairs = [(leaf, raw) for leaf, raw in zip(leaves, raws, strict=True) if raw]
            items = [Item(raw, tuple(self.words_of(stream, leaf))) for leaf, raw in pairs]
            self._common.counts["events_resent"] += len(items)
            self._tell_batches(dict.fromkeys(self._common.peers, items), AGAIN)

        self._common.read(stream, leaves, send)

    def _tell_batches(self, batches: dict[bytes, list[Item]], flags: int) -> None:
        for instance, items in batches.items():
            for part in _parts(items, self._common.settings.page_bytes_max):
                self._common.tell(instance, EventBatch(part, flags))

    def words_of(self, stream: Stream, number: int) -> list[tuple[bytes, bytes]]:
        return list(stream.unread.proofs.get(number, {}).items())[: CONFIRMATIONS_MAX - 1]

    def wake_for_unread(self, now_ns: int) -> None:
        """After a start, or when the cluster's size changed."""
        if self._resend_ns is None:
            self._resend_ns = now_ns


def _parts(items: Sequence[Item], bytes_max: int) -> Iterable[tuple[Item, ...]]:
    part: list[Item] = []
    size = 0
    for item in items:
        if part and (size + len(item.raw) > bytes_max or len(part) >= 1024):
            yield tuple(part)
            part, size = [], 0
        part.append(item)
        size += len(item.raw)
    if part:
        yield tuple(part)
