"""Dissemination of events and confirmations: broadcast, Inv, rebroadcast, and resending unread events.

Decides which events and confirmations each peer receives, and when an event has enough confirmations. In a healthy mesh
every node receives an event directly from its author, and a confirmation directly from the confirming member. So a node
does not forward them at once. An event that is still unread after `rebroadcast_ns` is sent to the peers that are not
known to have it. This module does not know the disk: the core reports which events are durable.

Invariants: this node confirms only events on its own disk; a confirmation counts only after its signature was verified,
and only if its issuer is a member.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from chaplain.core import soonest
from chaplain.graph.context import GraphContext
from chaplain.graph.events import SignatureCheck
from chaplain.graph.messages.event import SignedEvent, timestamp_of
from chaplain.graph.messages.peer import AGAIN, CONFIRMATIONS_MAX, FIRST, Confirmation, EventBatch, Inv, Item
from chaplain.graph.stream import EventRef, Stream

LEAVES_RESENT_MAX = 16
"""Unread leaves of a stream resent at a time, newest first."""
_FORGED = 16


class EventDissemination:
    def __init__(self, context: GraphContext, ask: Callable[[int, bytes, str, Sequence[bytes]], None]) -> None:
        self._context = context
        self._request = ask
        self._early: OrderedDict[bytes, list[tuple[bytes, bytes]]] = OrderedDict()
        """By event id: confirmations that arrived before their event."""
        self._unconfirmed_streams: dict[str, None] = {}
        """Streams with new durable events that this node has not confirmed yet."""
        self._confirm_ns: int | None = None
        self._to_rebroadcast: dict[tuple[str, int], None] = {}
        """Events to forward if they are still unread at `_rebroadcast_ns`."""
        self._rebroadcast_ns: int | None = None
        self._resend_ns: int | None = None

    def deadline(self) -> int | None:
        return soonest((self._confirm_ns, self._rebroadcast_ns, self._resend_ns))

    def woken(self, now_ns: int) -> None:
        if self._confirm_ns is not None and now_ns >= self._confirm_ns:
            self._confirm_ns = None
            self._send_own_confirmations()
        if self._rebroadcast_ns is not None and now_ns >= self._rebroadcast_ns:
            self._rebroadcast_ns = None
            self._rebroadcast(now_ns)
        if self._resend_ns is not None and now_ns >= self._resend_ns:
            self._resend_ns = None
            self._resend(now_ns)

    # Added and durable events.

    def on_added(
        self, now_ns: int, stream: Stream, number: int, event: SignedEvent, confirmations: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Count the confirmations of a new event. The event itself is its author's confirmation of the parents."""
        if event.author in self._context.members:
            for parent in stream.model.parents_of(number):
                self._confirm(stream, event.author, parent)
        early = self._early.pop(event.id, [])
        self.receive_confirmations(now_ns, stream, number, [*confirmations, *early])
        if not self._context.read_at:
            stream.confirmed_enough[number] = None
        self._schedule_rebroadcast(now_ns, stream, number)

    def on_durable(self, now_ns: int, stream: Stream, numbers: range) -> None:
        """Confirm these events, which are now on our disk, and broadcast those that this node wrote."""
        own = self._context.identity.key
        mine: dict[int, list[Item]] = {}
        for number in numbers:
            self._confirm(stream, own, number)
            if stream.model.author_of(number) == own:
                raw = self._context.recent(stream.model.id_of(number))
                if raw is not None:
                    mine.setdefault(self._first_flag(now_ns, raw), []).append(Item(raw))
        for flags, items in mine.items():
            for part in _split(items, self._context.settings.page_bytes_max):
                self._context.broadcast(EventBatch(part, flags))
        self._unconfirmed_streams[stream.name] = None
        if self._confirm_ns is None:
            self._confirm_ns = now_ns + self._context.settings.confirm_ns

    def _first_flag(self, now_ns: int, raw: bytes) -> int:
        """FIRST, unless this node's own disk kept the event back so long that others would refuse it as too old."""
        late_ns = now_ns - self._context.settings.past_ns // 2
        return FIRST if timestamp_of(raw) > late_ns else 0

    def _confirm(self, stream: Stream, member: bytes, number: int) -> None:
        read_at = self._context.read_at
        enough = stream.unread.confirm(member, number, read_at)
        stream.confirmed_enough.update(dict.fromkeys(enough))

    def _send_own_confirmations(self) -> None:
        """Broadcast an Inv with our confirmation of each new leaf. Our own events need none: each confirms its
        ancestors.
        """
        names, self._unconfirmed_streams = self._unconfirmed_streams, {}
        for name in names:
            stream = self._context.streams[name]
            new = [
                leaf for leaf in stream.leaves if leaf not in stream.confirmed_leaves and not self._is_own(stream, leaf)
            ]
            stream.confirmed_leaves.update(dict.fromkeys(new))
            confirmations = [self.own_confirmation(stream, leaf) for leaf in new]
            if confirmations:
                self._context.broadcast(Inv(name, tuple(confirmations)))

    def _is_own(self, stream: Stream, number: int) -> bool:
        return stream.model.author_of(number) == self._context.identity.key

    def confirmations_with_own(self, stream: Stream, number: int) -> list[tuple[bytes, bytes]]:
        """All known confirmations of the event, ours first."""
        own = self.own_confirmation(stream, number)
        others = [
            confirmation for confirmation in self.confirmations_of(stream, number) if confirmation[0] != own.member
        ]
        return [(own.member, own.signature), *others]

    def own_confirmation(self, stream: Stream, number: int) -> Confirmation:
        assert number < stream.durable, "a confirmation of an event that is not on disk"
        identity, event_id = self._context.identity, stream.model.id_of(number)
        signature = identity.sign(self._context.confirm_label, event_id)
        stream.unread.keep_signature(identity.key, number, signature)
        return Confirmation(identity.key, event_id, signature)

    # Confirmations from other members.

    def on_inv(self, now_ns: int, sender: bytes, message: Inv) -> None:
        """Process confirmations; request the confirmed events that this node lacks."""
        stream = self._context.streams.get(message.stream)
        missing: list[Confirmation] = []
        for confirmation in message.confirmations:
            number = -1 if stream is None else stream.model.find(confirmation.event)
            if stream is not None and number >= 0:
                self.receive_confirmations(
                    now_ns, stream, number, [(confirmation.member, confirmation.signature)], sender
                )
            elif confirmation.member in self._context.members:
                missing.append(confirmation)
        if not missing:
            return
        if not self._context.quota(self._context.peers[sender], now_ns).takes_work(now_ns, len(missing)):
            self._context.strike(now_ns, sender, "too many confirmations")
            return
        for confirmation in missing:
            self._keep_early(confirmation)
        self._request(
            now_ns, sender, message.stream, list(dict.fromkeys(confirmation.event for confirmation in missing))
        )

    def _keep_early(self, confirmation: Confirmation) -> None:
        confirmations = self._early.setdefault(confirmation.event, [])
        if len(confirmations) < CONFIRMATIONS_MAX and all(member != confirmation.member for member, _ in confirmations):
            confirmations.append((confirmation.member, confirmation.signature))
        if len(self._early) > self._context.settings.early_max:
            self._early.popitem(last=False)

    def receive_confirmations(
        self,
        now_ns: int,
        stream: Stream,
        number: int,
        confirmations: Iterable[tuple[bytes, bytes]],
        sender: bytes = b"",
    ) -> None:
        """Verify the confirmations that are new to us, then count the valid ones."""
        news = [
            (member, signature)
            for member, signature in confirmations
            if member in self._context.members and not stream.unread.has_event(member, number)
        ]
        peer = self._context.peers.get(sender)
        if not news or (peer and not self._context.quota(peer, now_ns).takes_work(now_ns, len(news))):
            return
        event_id, label = stream.model.id_of(number), self._context.confirm_label
        checks = [SignatureCheck(member, label, event_id, signature) for member, signature in news]

        def checked(results: Sequence[bool]) -> None:
            for (member, signature), right in zip(news, results, strict=True):
                if right:
                    self._count(now_ns, EventRef(stream, number), member, signature)
                else:
                    self._context.strike(now_ns, sender, "forged confirmation", _FORGED)

        self._context.check(checks, checked)

    def _count(self, now_ns: int, ref: EventRef, member: bytes, signature: bytes) -> None:
        self._context.counts["confirmations"] += 1
        ref.stream.unread.keep_signature(member, ref.number, signature)
        self._confirm(ref.stream, member, ref.number)
        self._schedule_rebroadcast(now_ns, ref.stream, ref.number)

    def on_duplicate(
        self, now_ns: int, sender: bytes, ref: EventRef, confirmations: Sequence[tuple[bytes, bytes]], wanted: bool
    ) -> None:
        """Process an event that this node already has. If `wanted`, send the known confirmations to its sender."""
        stream, number = ref
        self.receive_confirmations(now_ns, stream, number, confirmations, sender)
        if wanted and number < stream.durable:
            given = [
                Confirmation(member, ref.id, signature)
                for member, signature in self.confirmations_with_own(stream, number)
            ]
            self._context.send(sender, Inv(stream.name, tuple(given)))

    # Rebroadcast and resend.

    def _schedule_rebroadcast(self, now_ns: int, stream: Stream, number: int) -> None:
        if stream.model.is_read(number) or number in stream.confirmed_enough:
            return
        self._to_rebroadcast[stream.name, number] = None
        if self._rebroadcast_ns is None:
            self._rebroadcast_ns = now_ns + self._context.settings.rebroadcast_ns
        if self._resend_ns is None:
            self._resend_ns = now_ns + self._context.settings.resend_ns

    def _rebroadcast(self, now_ns: int) -> None:
        """Forward unread events to peers that are not known to have them, and confirmations to the others."""
        waiting, self._to_rebroadcast = self._to_rebroadcast, {}
        batches: dict[bytes, list[Item]] = {}
        invs: dict[tuple[bytes, str], list[Confirmation]] = {}
        for name, number in waiting:
            stream = self._context.streams[name]
            if number >= stream.durable:
                self._schedule_rebroadcast(now_ns, stream, number)
                continue
            if stream.model.is_read(number):
                continue
            event_id = stream.model.id_of(number)
            confirmations = self.confirmations_of(stream, number)
            for instance, peer in self._context.peers.items():
                raw = self._context.recent(event_id)
                if stream.unread.has_event(peer.key, number) or raw is None:
                    given = [
                        Confirmation(member, event_id, signature)
                        for member, signature in confirmations
                        if member != peer.key
                    ]
                    invs.setdefault((instance, name), []).extend(given)
                elif stream.model.author_of(number) != peer.key:
                    batches.setdefault(instance, []).append(Item(raw, tuple(confirmations)))
        self._send_batches(batches, 0)
        for (instance, name), given in invs.items():
            if given:
                self._context.send(instance, Inv(name, tuple(given[:1024])))

    def _resend(self, now_ns: int) -> None:
        """Send unread leaves again to all peers until they are read (SEND_UNREAD_EVENTS_INTERVAL)."""
        for stream in self._context.streams.values():
            leaves = [leaf for leaf in stream.leaves if not stream.model.is_read(leaf)]
            if leaves:
                self._resend_ns = now_ns + self._context.settings.resend_ns
                self._resend_leaves(stream, leaves[-LEAVES_RESENT_MAX:])

    def _resend_leaves(self, stream: Stream, leaves: list[int]) -> None:
        def send(raws: Sequence[bytes]) -> None:
            pairs = [(leaf, raw) for leaf, raw in zip(leaves, raws, strict=True) if raw]
            items = [Item(raw, tuple(self.confirmations_of(stream, leaf))) for leaf, raw in pairs]
            self._context.counts["events_resent"] += len(items)
            self._send_batches(dict.fromkeys(self._context.peers, items), AGAIN)

        self._context.read(stream, leaves, send)

    def _send_batches(self, batches: dict[bytes, list[Item]], flags: int) -> None:
        for instance, items in batches.items():
            for part in _split(items, self._context.settings.page_bytes_max):
                self._context.send(instance, EventBatch(part, flags))

    def confirmations_of(self, stream: Stream, number: int) -> list[tuple[bytes, bytes]]:
        """The stored confirmations of this event; one less than the maximum, which leaves room for ours."""
        return list(stream.unread.signatures.get(number, {}).items())[: CONFIRMATIONS_MAX - 1]

    def wake_for_unread(self, now_ns: int) -> None:
        """Resend at once: after a start, or when the cluster's size changed."""
        if self._resend_ns is None:
            self._resend_ns = now_ns


def _split(items: Sequence[Item], bytes_max: int) -> Iterable[tuple[Item, ...]]:
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
