"""Event admission: verifies events, holds those whose parents are missing, and adds the rest to the Model.

Decides which bytes become events of a Model, which missing parents are requested, and which peer gets a strike for an
invalid event. Does not know the disk, or when events are forwarded.

Invariants: an event is added only after its signature was verified and its parents were added, and, if it came from a
peer, not while its timestamp is too far in the future; an id is computed from the bytes received; all waiting events
are bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from chaplain.errors import Malformed
from chaplain.graph.context import GraphContext
from chaplain.graph.events import SignatureCheck
from chaplain.graph.future_events import FutureEvents
from chaplain.graph.messages.event import SignedEvent, decode, signed_part
from chaplain.graph.messages.peer import AGAIN, FIRST, GetData, Item
from chaplain.graph.orphans import Orphan, Orphans
from chaplain.graph.refused_events import RefusedEvents
from chaplain.graph.stream import EventRef, Stream
from chaplain.units import SECOND_NS

FORGED = 16
"""Strikes for a message that only a malicious or broken program sends."""
_REQUEST_AGAIN_NS = SECOND_NS
"""An event is not requested again before this time, from any peer."""
FAR_BEHIND_HEIGHTS = 8
"""If an orphan is this far above our leaves, fetch in bulk: requesting parents one by one takes too many round trips.
"""


class EventAdmission:
    def __init__(
        self,
        context: GraphContext,
        added: Callable[[int, Stream, int, SignedEvent, Sequence[tuple[bytes, bytes]]], None],
        duplicate: Callable[[int, bytes, EventRef, Sequence[tuple[bytes, bytes]], bool], None],
        far_behind: Callable[[int, bytes, str], None],
    ) -> None:
        settings = context.settings
        self._context = context
        self._added = added
        """Called with every added event and the confirmations that arrived with it."""
        self._duplicate = duplicate
        """Called with every received event that this node already has."""
        self._far_behind = far_behind
        """Called when a peer is far ahead: use bulk sync."""
        self.orphans = Orphans(settings.orphans_max, settings.orphans_per_author, settings.orphan_bytes_max)
        self.future = FutureEvents(settings.ahead_max)
        self.refused = RefusedEvents(settings.refused_max)
        self._checking: dict[bytes, None] = {}
        """Ids of events whose signatures are being verified."""
        self._requested: dict[bytes, dict[bytes, int]] = {}
        """By peer: the requested event ids, and when each was requested."""

    # From peers.

    def receive(
        self,
        now_ns: int,
        sender: bytes,
        items: Sequence[Item],
        *,
        flags: int = 0,
        fetched: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Process received events. Events with `fetched` set were requested in bulk and cost no quota. `then` runs once
        all of them are added or refused.
        """
        waiting: list[tuple[SignedEvent, Item]] = []
        for item in items:
            event = self._decode_new(now_ns, sender, item, flags)
            if event is not None:
                waiting.append((event, item))
        if not fetched and not self._within_quota(now_ns, sender, waiting):
            waiting = []
        for event, _ in waiting:
            self._checking[event.id] = None
        label = self._context.event_label
        checks = [SignatureCheck(event.author, label, signed_part(event), event.signature) for event, _ in waiting]
        self._context.check(checks, lambda results: self._checked(now_ns, sender, waiting, results, then))

    def _within_quota(self, now_ns: int, sender: bytes, waiting: Sequence[tuple[SignedEvent, Item]]) -> bool:
        """True if the peer's quota covers the verification of its unrequested events; else the peer gets a strike."""
        unasked = sum(1 for event, _ in waiting if not self._clear_request(sender, event.id))
        quota = self._context.quota(self._context.peers[sender], now_ns)
        if not unasked or quota.takes_work(now_ns, unasked):
            return True
        self._context.strike(now_ns, sender, "too many events")
        return False

    def _clear_request(self, sender: bytes, event_id: bytes) -> bool:
        """Forget that the event was requested from this peer; return True if it was."""
        return self._requested.get(sender, {}).pop(event_id, None) is not None

    def _decode_new(self, now_ns: int, sender: bytes, item: Item, flags: int) -> SignedEvent | None:
        """Return the event if it is new, well-formed and acceptable now."""
        context = self._context
        event_id = hashlib.sha256(item.raw).digest()
        if event_id in self._checking or event_id in self.orphans:
            return None
        if self.future.is_early(now_ns, event_id):
            self._clear_request(sender, event_id)
            return None
        try:
            event = decode(item.raw)
        except Malformed:
            context.strike(now_ns, sender, "malformed event", FORGED)
            return None
        stream = context.streams.get(event.stream)
        number = -1 if stream is None else stream.model.find(event_id)
        if stream is not None and number >= 0:
            self._clear_request(sender, event_id)
            self._duplicate(now_ns, sender, EventRef(stream, number), item.confirmations, bool(flags & AGAIN))
            return None
        due_ns = self._due_ns(event)
        if now_ns < due_ns:
            self._clear_request(sender, event_id)
            self._defer(event_id, due_ns)
            refusal = "timestamp too far in the future"
        else:
            refusal = self._refusal(now_ns, event, bool(flags & FIRST)) or self._lateness(
                now_ns, sender, event, bool(flags & FIRST)
            )
        if refusal:
            self._clear_request(sender, event_id)
            context.count_refusal(refusal)
            return None
        return event

    def _refusal(self, now_ns: int, event: SignedEvent, first: bool) -> str:
        """Why the event is refused; empty if it is not."""
        context = self._context
        if len(event.content) > context.settings.content_bytes_max:
            return "content too large"
        if event.stream not in context.streams and len(context.streams) >= context.settings.streams_max:
            return "too many streams"
        if first and event.author not in context.known:
            return "unknown author"
        return ""

    def _lateness(self, now_ns: int, sender: bytes, event: SignedEvent, first: bool) -> str:
        """Why the event is refused as too old; empty if it is not.

        Only a first broadcast is too old, and then each repetition by its author, and each old event that its author
        built on it. An event that was away with its node was never in a first broadcast to this node.
        """
        old = event.timestamp_ns < now_ns - self._context.settings.past_ns
        if self._context.peers[sender].key != event.author:
            self.refused.forget(event.id)  # another member has accepted it
            refused = old and first
        elif event.id in self.refused:
            refused = True
        else:
            refused = old and (first or any(link.id in self.refused for link in event.links))
            if refused and not self._context.was_paused(now_ns):
                self.refused.put(event.id, event.author)
        return "timestamp too far in the past" if refused else ""

    def is_refused(self, now_ns: int, sender: bytes, event_id: bytes) -> bool:
        """True if this node would refuse the event from this peer: requesting it is useless."""
        peer = self._context.peers.get(sender)
        return self.future.is_early(now_ns, event_id) or (peer is not None and self.refused.refuses(event_id, peer.key))

    def _due_ns(self, event: SignedEvent) -> int:
        """When the event may be accepted: once its own timestamp and those of its deferred ancestors are close enough
        to now.

        A child of a deferred event could not be added anyway. It is deferred, too: as an orphan it would occupy space,
        and the work of a signature check, for as long as its parent is deferred.
        """
        own_ns = event.timestamp_ns - self._context.settings.ahead_ns
        return max(own_ns, *(self.future.due_ns(link.id) for link in event.links), 0)

    def _defer(self, event_id: bytes, due_ns: int) -> None:
        """Refuse the event, and all orphans that wait for it, until `due_ns`."""
        held = [event_id]
        while held:
            one = held.pop()
            self.future.put(one, due_ns)
            held += [orphan.event.id for orphan in self.orphans.take_children(one)]

    def _checked(
        self,
        now_ns: int,
        sender: bytes,
        waiting: Sequence[tuple[SignedEvent, Item]],
        results: Sequence[bool],
        then: Callable[[], None] | None,
    ) -> None:
        for (event, item), right in zip(waiting, results, strict=True):
            self._checking.pop(event.id, None)
            if right:
                self.admit(now_ns, Orphan(event, sender, item.confirmations))
            else:
                self._context.strike(now_ns, sender, "wrong signature", FORGED)
        if then is not None:
            then()

    # Adding to the Model.

    def admit(self, now_ns: int, first: Orphan) -> None:
        """Add an event with a verified signature, then the orphans that waited for it."""
        waiting = [first]
        while waiting:
            one = waiting.pop()
            stream = self._context.stream(one.event.stream)
            if stream is None or stream.model.find(one.event.id) >= 0 or one.event.id in self.orphans:
                continue
            missing = stream.model.missing(one.event)
            if missing:
                self._orphan(now_ns, stream, one, missing)
            elif problem := stream.model.problem(one.event):
                self._context.strike(now_ns, one.sender, problem, FORGED)
            else:
                self._add(now_ns, stream, one)
                waiting += self.orphans.take_children(one.event.id)

    def _add(self, now_ns: int, stream: Stream, one: Orphan) -> None:
        number = stream.add(one.event)

        self._context.counts["events_added"] += 1
        self._context.remember(one.event.id, one.event.raw)
        if number in stream.model.forks:
            self._context.counts["forks"] += 1
        self._added(now_ns, stream, number, one.event, one.confirmations)

    def _orphan(self, now_ns: int, stream: Stream, one: Orphan, missing: list[bytes]) -> None:
        self._context.counts["orphans"] += 1
        for parent in missing:
            self.refused.forget_author_of(parent)  # a valid event follows it
        dropped = self.orphans.add(one, missing)
        if dropped:
            self._context.counts["orphans_dropped"] += dropped
            self._context.strike(now_ns, one.sender, "too many orphans")
        if one.sender not in self._context.peers:
            return
        top = max((stream.model.height_of(leaf) for leaf in stream.model.leaves), default=-1)
        if one.event.height > top + FAR_BEHIND_HEIGHTS:
            self._far_behind(now_ns, one.sender, stream.name)
        else:
            self.request(now_ns, one.sender, stream.name, missing)

    # Requesting events.

    def request(self, now_ns: int, instance: bytes, stream: str, ids: Sequence[bytes]) -> None:
        """Send GetData for these events, except for those requested from any peer within the last second."""
        asked = self._requested.setdefault(instance, {})
        if len(asked) >= self._context.settings.asked_max:
            for old in [one for one, when in asked.items() if now_ns - when > _REQUEST_AGAIN_NS]:
                del asked[old]
        room = self._context.settings.asked_max - len(asked)
        if room <= 0:
            return
        wanted = [one for one in ids if self._may_request(now_ns, instance, one)][:room]
        if wanted:
            asked.update(dict.fromkeys(wanted, now_ns))
            self._context.counts["getdata_sent"] += len(wanted)
            self._context.send(instance, GetData(stream, tuple(wanted)))

    def _may_request(self, now_ns: int, instance: bytes, event_id: bytes) -> bool:
        if event_id in self._checking or event_id in self.orphans or self.is_refused(now_ns, instance, event_id):
            return False
        return all(
            now_ns - of_peer.get(event_id, -_REQUEST_AGAIN_NS) >= _REQUEST_AGAIN_NS
            for of_peer in self._requested.values()
        )

    def peer_exited(self, instance: bytes) -> None:
        """The session ended: its peer will not answer open requests."""
        self._requested.pop(instance, None)
