"""How events come in: checked, held until their parents are here, added.

Decides which bytes become events of a Model, what is asked for when a parent is missing, and whom to blame for what
cannot be right. Refuses to know the disk and when to tell others.

Invariants: nothing is added before its signature was found right and its parents were added, nor from others before its
time has come; an id is computed from the bytes that came; what waits is bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from chaplain.errors import Malformed
from chaplain.graph.context import GraphContext
from chaplain.graph.events import SignatureCheck
from chaplain.graph.future_events import FutureEvents
from chaplain.graph.messages.event import Event, decode, signed_part
from chaplain.graph.messages.peer import AGAIN, FIRST, GetData, Item
from chaplain.graph.orphans import Orphan, Orphans
from chaplain.graph.stream import Here, Stream
from chaplain.units import SECOND_NS

FORGED = 16
"""Strikes for what only a liar or a broken program sends."""
_ASK_AGAIN_NS = SECOND_NS
DEEP = 8
"""An orphan so far above what is here is not reached by asking for parents one by one."""


class EventAdmission:
    def __init__(
        self,
        common: GraphContext,
        added: Callable[[int, Stream, int, Event, Sequence[tuple[bytes, bytes]]], None],
        again: Callable[[int, bytes, Here, Sequence[tuple[bytes, bytes]], bool], None],
        deep: Callable[[int, bytes, str], None],
    ) -> None:
        settings = common.settings
        self._common = common
        self._added = added
        """Told of every event that was added, with the confirmations that came along."""
        self._again = again
        """Told of events that came and are here already."""
        self._deep = deep
        """Told when so much is missing that it had better be fetched."""
        self.orphans = Orphans(settings.orphans_max, settings.orphans_per_author, settings.orphan_bytes_max)
        self.ahead = FutureEvents(settings.ahead_max)
        self._checking: dict[bytes, None] = {}
        self._asked: dict[bytes, dict[bytes, int]] = {}
        """By peer: what it was asked for, and when."""

    # From peers.

    def came(
        self,
        now_ns: int,
        sender: bytes,
        items: Sequence[Item],
        *,
        flags: int = 0,
        fetched: bool = False,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Take events. `fetched` ones we asked for, however many; `then` follows when they are added or refused."""
        waiting: list[tuple[Event, Item]] = []
        for item in items:
            event = self._look(now_ns, sender, item, flags)
            if event is not None:
                waiting.append((event, item))
        if not fetched and not self._is_done(now_ns, sender, waiting):
            waiting = []
        for event, _ in waiting:
            self._checking[event.id] = None
        label = self._common.event_label
        checks = [SignatureCheck(event.author, label, signed_part(event), event.signature) for event, _ in waiting]
        self._common.check(checks, lambda results: self._checked(now_ns, sender, waiting, results, then))

    def _is_done(self, now_ns: int, sender: bytes, waiting: Sequence[tuple[Event, Item]]) -> bool:
        """Whether the peer's account covers checking all this."""
        unasked = sum(1 for event, _ in waiting if not self._answer(sender, event.id))
        account = self._common.account(self._common.peers[sender], now_ns)
        if not unasked or account.takes_work(now_ns, unasked):
            return True
        self._common.strike(now_ns, sender, "too many events")
        return False

    def _answer(self, sender: bytes, event_id: bytes) -> bool:
        return self._asked.get(sender, {}).pop(event_id, None) is not None

    def _look(self, now_ns: int, sender: bytes, item: Item, flags: int) -> Event | None:
        """The event, if it is new and well-formed."""
        common = self._common
        event_id = hashlib.sha256(item.raw).digest()
        if event_id in self._checking or event_id in self.orphans:
            return None
        if self.ahead.has(now_ns, event_id):
            self._answer(sender, event_id)
            return None
        try:
            event = decode(item.raw)
        except Malformed:
            common.strike(now_ns, sender, "malformed event", FORGED)
            return None
        stream = common.streams.get(event.stream)
        number = -1 if stream is None else stream.model.find(event_id)
        if stream is not None and number >= 0:
            self._answer(sender, event_id)
            self._again(now_ns, sender, Here(stream, number), item.confirmations, bool(flags & AGAIN))
            return None
        due_ns = self._due_ns(event)
        if now_ns < due_ns:
            self._answer(sender, event_id)
            self._hold(event_id, due_ns)
            refusal = "timestamp too far in the future"
        else:
            refusal = self._refusal(now_ns, event, bool(flags & FIRST))
        if refusal:
            common.refuse(refusal)
            return None
        return event

    def _refusal(self, now_ns: int, event: Event, first: bool) -> str:
        common = self._common
        if len(event.content) > common.settings.content_bytes_max:
            return "content too large"
        if event.stream not in common.streams and len(common.streams) >= common.settings.streams_max:
            return "too many streams"
        if first and abs(event.timestamp_ns - now_ns) > common.settings.valid_ns:
            return "timestamp too far from now"
        if first and event.author not in common.known:
            return "unknown author"
        return ""

    def _due_ns(self, event: Event) -> int:
        """When it may be taken: when its own time has come, and that of all behind which it was written.

        An event behind a held one could not be added anyway. It is held, too, because it would take room among the
        orphans, and the work of checking its signature, for as long as its parent is held.
        """
        own_ns = event.timestamp_ns - self._common.settings.ahead_ns
        return max(own_ns, *(self.ahead.due_ns(link.id) for link in event.links), 0)

    def _hold(self, event_id: bytes, due_ns: int) -> None:
        """Not before this time; nor what waits for it as an orphan."""
        held = [event_id]
        while held:
            one = held.pop()
            self.ahead.put(one, due_ns)
            held += [orphan.event.id for orphan in self.orphans.arrived(one)]

    def _checked(
        self,
        now_ns: int,
        sender: bytes,
        waiting: Sequence[tuple[Event, Item]],
        results: Sequence[bool],
        then: Callable[[], None] | None,
    ) -> None:
        for (event, item), right in zip(waiting, results, strict=True):
            self._checking.pop(event.id, None)
            if right:
                self.admit(now_ns, Orphan(event, sender, item.confirmations))
            else:
                self._common.strike(now_ns, sender, "wrong signature", FORGED)
        if then is not None:
            then()

    # Into the Model.

    def admit(self, now_ns: int, first: Orphan) -> None:
        """Add an event whose signature is right, and whoever waited for it."""
        waiting = [first]
        while waiting:
            one = waiting.pop()
            stream = self._common.stream(one.event.stream)
            if stream is None or stream.model.find(one.event.id) >= 0 or one.event.id in self.orphans:
                continue
            missing = stream.model.missing(one.event)
            if missing:
                self._orphan(now_ns, stream, one, missing)
            elif problem := stream.model.problem(one.event):
                self._common.strike(now_ns, one.sender, problem, FORGED)
            else:
                self._add(now_ns, stream, one)
                waiting += self.orphans.arrived(one.event.id)

    def _add(self, now_ns: int, stream: Stream, one: Orphan) -> None:
        number = stream.add(one.event)
        stream.quiet_ns = now_ns
        self._common.counts["events_added"] += 1
        self._common.remember(one.event.id, one.event.raw)
        if number in stream.model.forks:
            self._common.counts["forks"] += 1
        self._added(now_ns, stream, number, one.event, one.confirmations)

    def _orphan(self, now_ns: int, stream: Stream, one: Orphan, missing: list[bytes]) -> None:
        self._common.counts["orphans"] += 1
        dropped = self.orphans.add(one, missing)
        if dropped:
            self._common.counts["orphans_dropped"] += dropped
            self._common.strike(now_ns, one.sender, "too many orphans")
        if one.sender not in self._common.peers:
            return
        top = max((stream.model.height_of(leaf) for leaf in stream.model.leaves), default=-1)
        if one.event.height > top + DEEP:
            self._deep(now_ns, one.sender, stream.name)
        else:
            self.ask(now_ns, one.sender, stream.name, missing)

    # Asking.

    def ask(self, now_ns: int, instance: bytes, stream: str, ids: Sequence[bytes]) -> None:
        """GetData, unless somebody was just asked for it."""
        asked = self._asked.setdefault(instance, {})
        if len(asked) >= self._common.settings.asked_max:
            for old in [one for one, when in asked.items() if now_ns - when > _ASK_AGAIN_NS]:
                del asked[old]
        room = self._common.settings.asked_max - len(asked)
        if room <= 0:
            return
        wanted = [one for one in ids if self._may_ask(now_ns, one)][:room]
        if wanted:
            asked.update(dict.fromkeys(wanted, now_ns))
            self._common.counts["getdata_sent"] += len(wanted)
            self._common.tell(instance, GetData(stream, tuple(wanted)))

    def _may_ask(self, now_ns: int, event_id: bytes) -> bool:
        if event_id in self._checking or event_id in self.orphans or self.ahead.has(now_ns, event_id):
            return False
        return all(now_ns - of_peer.get(event_id, -_ASK_AGAIN_NS) >= _ASK_AGAIN_NS for of_peer in self._asked.values())

    def forget(self, instance: bytes) -> None:
        """The session ended: nothing asked there will be answered."""
        self._asked.pop(instance, None)
