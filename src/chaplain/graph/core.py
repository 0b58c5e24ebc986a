"""The graph's core: takes what a node tells it, and gives what is to be done.

Decides the order of things: what was added in a step is written in one go when everything that waited has been stepped,
and only when it is on disk is it acknowledged, broadcast, confirmed or shown. The parts decide the rest: `intake` what
is added, `spreading` who is told, `syncing` how nodes become equal, `reading` what clients see.

Invariants: an acknowledgement follows `Persisted`; tickets complete in order; effects are those of the parts, in order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from random import Random
from typing import Any, assert_never

from chaplain.core import (
    STATUS_STREAMS_MAX,
    Drained,
    Halt,
    Operation,
    Persist,
    Persisted,
    PersistFailed,
    Report,
    Requested,
    Settled,
    Stopping,
    Withdrawn,
    Woken,
    soonest,
)
from chaplain.errors import Malformed
from chaplain.gossip.events import GossipParcel, MemberChanged
from chaplain.graph.admission import FORGED, EventAdmission
from chaplain.graph.anti_entropy import AntiEntropy
from chaplain.graph.context import GraphContext
from chaplain.graph.dissemination import EventDissemination
from chaplain.graph.events import CheckSignatures, EventsRead, GraphEffect, GraphInput, ReadEvents, SignaturesChecked
from chaplain.graph.messages import client
from chaplain.graph.messages import peer as messages
from chaplain.graph.messages.client import Append, Appended, wanted
from chaplain.graph.messages.event import PARENTS_MAX, EventDraft, ParentLink, sign
from chaplain.graph.messages.peer import EventBatch, Fetched, FetchMissing, GetData, GraphMessage, Inv, SyncEvent
from chaplain.graph.orphans import Orphan
from chaplain.graph.reading import GraphReaders
from chaplain.graph.settings import GraphSettings
from chaplain.graph.storage.pruning import allowed_floor, is_below, told_floor
from chaplain.graph.storage.recovery import recover
from chaplain.graph.storage.store import GraphStore
from chaplain.graph.storage.stored import TicketContents
from chaplain.graph.stream import Stream
from chaplain.link.auth.identity import Identity, identifier_of
from chaplain.mesh.events import Entered, Exited
from chaplain.segment.layout import Bytes

DAMAGE_SHOWN = 4


class GraphCore:
    errands = (CheckSignatures, ReadEvents)
    answers = (SignaturesChecked, EventsRead)
    wants = staticmethod(wanted)

    def __init__(
        self,
        settings: GraphSettings,
        identity: Identity,
        rng: Random,
        *,
        now_ns: int,
        founders: Iterable[bytes] = (),
        belonging: Callable[[], Sequence[bytes]] | None = None,
        segments: Iterable[tuple[int, Bytes]] = (),
    ) -> None:
        """Begin from what the disk holds. `belonging` gives the keys of who belongs to the cluster now, where that is
        agreed on; elsewhere `founders`, and whoever comes, are members until they say good-bye.
        """
        self.common = common = GraphContext(settings, identity, rng, founders, belonging)
        self.counts: Counter[str] = common.counts
        self._store = GraphStore(settings, rng)
        self.intake = EventAdmission(common, self._added, self._again, self._deep)
        self.spreading = EventDissemination(common, self.intake.ask)
        self.syncing = AntiEntropy(
            common,
            self.spreading,
            now_ns,
            came=self.intake.came,
            is_ahead=self.intake.ahead.has,
            heard_floor=self._heard_floor,
        )
        self.reading = GraphReaders(common)
        self._tickets: deque[tuple[int, int, list[TicketContents]]] = deque()
        self._ticket = 0
        self._prune_ns = now_ns
        self._released = 0
        """Everything before this position may be given up with the next write."""
        self._appends: dict[tuple[str, int], int] = {}
        """Calls that are settled when this event is on disk."""
        stranded = recover(common, self._store, segments)
        for event in stranded:
            self.intake.admit(now_ns, Orphan(event, b"", ()))
        if self._store.damage or stranded:
            damage = "; ".join(self._store.damage[:DAMAGE_SHOWN])
            words = "graph: damaged, and what is missing is asked of others"
            common.out.append(Report(words, detail={"found": damage, "waiting": len(stranded)}))
        self.spreading.wake_for_unread(now_ns)

    @property
    def streams(self) -> dict[str, Stream]:
        return self.common.streams

    def name_nodes(self, name_of: Callable[[int], int]) -> None:
        """The names people know nodes by, from their identifiers."""
        self.reading.name_of = name_of

    def status(self) -> dict[str, object]:
        listed = sorted(islice(self.streams.items(), STATUS_STREAMS_MAX))
        return {"graph": {name: self._summary(stream) for name, stream in listed}}

    def gauges(self) -> dict[str, float]:
        streams = self.streams.values()
        return {
            "graph_streams": len(streams),
            "graph_events": sum(stream.durable for stream in streams),
            "graph_unread_events": sum(len(stream.model) - len(stream.model.read_order) for stream in streams),
            "graph_leaves": sum(len(stream.leaves) for stream in streams),
            "graph_waiting_orphans": len(self.intake.orphans),
            "graph_events_ahead": len(self.intake.ahead),
        }

    def deadline(self) -> int | None:
        return soonest((self.spreading.deadline(), self.syncing.deadline(), self.reading.deadline()))

    def step(self, now_ns: int, event: GraphInput) -> list[GraphEffect]:
        self._look(now_ns)
        match event:
            case GossipParcel():
                self._told(now_ns, event)
            case Requested():
                self._requested(now_ns, event)
            case Withdrawn():
                self.reading.withdrawn(event.call)
            case Drained():
                self._write(now_ns)
            case Persisted():
                self._persisted(now_ns, event.ticket)
            case PersistFailed():
                self.common.out.append(Halt(f"the disk failed: {event.reason}"))
            case SignaturesChecked():
                self.common.checked(event.ticket, event.results)
            case EventsRead():
                self.common.was_read(event.token, event.raws)
            case Entered():
                self.common.peers[event.peer.instance] = event.peer
                self.common.known[event.peer.key] = None
                self.syncing.tell_leaves(event.peer.instance)
            case Exited():
                self._exited(event.peer.instance)
            case MemberChanged():
                self.common.member_changed(event)
                self._look(now_ns)
                self.spreading.wake_for_unread(now_ns)
            case Woken():
                self.spreading.woken(now_ns)
                self.syncing.woken(now_ns)
                self._prune(now_ns)
                self.reading.woken(now_ns)
            case Stopping():
                pass  # nothing is owed: what is not on disk was not acknowledged
            case _:
                assert_never(event)
        effects, self.common.out = self.common.out, []
        return effects

    # Others.

    def _exited(self, instance: bytes) -> None:
        if self.common.peers.pop(instance, None) is not None:
            self.intake.forget(instance)
            self.syncing.exited(instance)

    def _look(self, now_ns: int) -> None:
        """Members come and go; what is unread is counted anew without the words of those who went."""
        before = self.common.members
        if not self.common.look():
            return
        gone = [member for member in before if member not in self.common.members]
        for stream in self.streams.values():
            stream.unread.drop(gone)
            stream.enough.update(dict.fromkeys(stream.unread.recount(self.common.read_at)))
        self.spreading.wake_for_unread(now_ns)

    def _told(self, now_ns: int, event: GossipParcel) -> None:
        peer = self.common.peers.get(event.peer.instance)
        if peer is None:
            return
        if self.common.account(peer, now_ns).banned(now_ns):
            self.common.counts["unheard"] += 1
            return
        try:
            message = messages.decode(event.parcel.body, event.parcel.payload)
        except Malformed as wrong:
            self.common.strike(now_ns, peer.instance, "malformed message", FORGED)
            self.common.out.append(Report("malformed graph parcel", f"{peer.identifier:08x}", {"reason": str(wrong)}))
            return
        self._heard(now_ns, peer.instance, message)

    def _heard(self, now_ns: int, instance: bytes, message: GraphMessage) -> None:
        match message:
            case EventBatch():
                self.intake.came(now_ns, instance, message.items, flags=message.flags)
            case Inv():
                self.spreading.inv(now_ns, instance, message)
            case GetData() | FetchMissing():
                self.syncing.wanted(now_ns, instance, message)
            case SyncEvent():
                self.syncing.heard(now_ns, instance, message)
            case Fetched():
                self.syncing.page(now_ns, instance, message)
            case _:
                assert_never(message)

    # Between the parts.

    def _added(self, *args: Any) -> None:
        self.spreading.added(*args)

    def _again(self, *args: Any) -> None:
        self.spreading.again(*args)

    def _deep(self, now_ns: int, instance: bytes, name: str) -> None:
        self.syncing.fetch(now_ns, instance, name)

    # Pruning.

    def _prune(self, now_ns: int) -> None:
        """Now and then: raise floors as far as everybody's leaves allow."""
        if not self.common.settings.keep_events or now_ns < self._prune_ns:
            return
        self._prune_ns = now_ns + self.common.settings.sync_ns
        for stream in self.streams.values():
            floor, stream.held_by = allowed_floor(self.common, self.syncing, stream)
            if floor > stream.model.floor:
                stream.floor_wanted = floor

    def _heard_floor(self, now_ns: int, stream: Stream) -> None:
        """A node that was away takes over a floor that it is wholly below: what lies between is gone."""
        floor = told_floor(self.common, self.syncing, stream)
        if is_below(stream, floor):
            self.common.counts["floors_taken_over"] += 1
            stream.model.raise_floor(floor)
            stream.floor_wanted = floor
            for orphan in self.intake.orphans.take(stream.name):
                self.intake.admit(now_ns, orphan)

    # Clients.

    def _requested(self, now_ns: int, event: Requested) -> None:
        try:
            request = client.decode_request(event.body)
        except Malformed as wrong:
            self.common.out.append(Settled(event.call, kind="refused", reason=str(wrong)))
            return
        if isinstance(request, Append):
            self._append(now_ns, event, request.stream)
        else:
            self.reading.requested(now_ns, event.call, request)

    def _append(self, now_ns: int, event: Requested, name: str) -> None:
        settings = self.common.settings
        stream = self.common.stream(name) if name else None
        if stream is None:
            reason = f"a node keeps at most {settings.streams_max} graph streams, each with a name"
            self.common.out.append(Settled(event.call, kind="refused", reason=reason))
        elif len(event.payload) > settings.content_bytes_max:
            reason = f"an event holds at most {settings.content_bytes_max} bytes, not {len(event.payload)}"
            self.common.out.append(Settled(event.call, kind="refused", reason=reason))
        else:
            draft = self._draft(stream, event, now_ns)
            made = sign(draft, self.common.identity, settings.cluster)
            self.intake.admit(now_ns, Orphan(made, b"", ()))
            self._appends[name, stream.model.find(made.id)] = event.call

    def _draft(self, stream: Stream, event: Requested, now_ns: int) -> EventDraft:
        """Behind the author's last event, and behind every leaf: so branches merge."""
        model = stream.model
        previous = model.last_of(self.common.identity.key)
        leaves: list[ParentLink] = [model.link_of(leaf) for leaf in model.leaves]
        parents = [leaf for leaf in leaves if previous is None or leaf.id != previous.id]
        bound = min(self.common.settings.parents_max, PARENTS_MAX)
        return EventDraft(stream.name, event.payload, now_ns, previous, tuple(parents[:bound]), event.client)

    # The disk.

    def _write(self, now_ns: int) -> None:
        """One write at a time: while a slow disk is busy, the next one grows."""
        if self._tickets:
            return
        operations: list[Operation] = []
        written: list[TicketContents] = []
        for stream in self.streams.values():
            if not stream.fresh and not stream.enough and not stream.floor_wanted:
                continue
            fresh, stream.fresh = stream.fresh, []
            enough, stream.enough = stream.enough, {}
            new, places = self._store.batches(stream.name, stream.offset, fresh, now_ns)
            stream.offset += len(fresh)
            operations += new
            marked = [number for number in enough if not stream.model.is_read(number)]
            if marked:
                operations += self._store.read(stream.name, self._marks(stream, marked))
            floor, stream.floor_wanted = stream.floor_wanted, 0
            if floor:
                operations += self._store.floor(stream.name, floor)
            written.append(TicketContents(stream.name, tuple(places), tuple(marked), floor))
        if self._released:
            operations += self._store.release_below(self._released)
            self._released = 0
        if operations:
            self._ticket += 1
            self._tickets.append((self._ticket, self._store.written, written))
            self.common.out.append(Persist(self._ticket, tuple(operations)))

    def _marks(self, stream: Stream, numbers: list[int]) -> list[tuple[bytes, int]]:
        """Only those that are not below another of them: a mark covers ancestors."""
        below = {parent for number in numbers for parent in stream.model.parents_of(number)}
        tips = [number for number in numbers if number not in below]
        return [(stream.model.id_of(number), stream.unread.counts[number]) for number in tips]

    def _persisted(self, now_ns: int, ticket: int) -> None:
        names: dict[str, None] = {}
        while self._tickets and self._tickets[0][0] <= ticket:
            _, position, written = self._tickets.popleft()
            self._store.synced(position)
            for one in written:
                names[one.stream] = None
                self._settle(now_ns, self.streams[one.stream], one)
        self.reading.news(now_ns, names)

    def _settle(self, now_ns: int, stream: Stream, written: TicketContents) -> None:
        new = stream.persisted(len(written.places), list(written.places))
        for number in new:
            call = self._appends.pop((stream.name, number), None)
            if call is not None:
                self.common.counts["appends"] += 1
                self.common.out.append(Settled(call, client.encode(Appended(stream.model.id_of(number)))))
        if new:
            self.spreading.durable(now_ns, stream, new)
        read = [one for number in written.enough for one in stream.model.mark_read(number)]
        self.common.counts["events_read"] += len(read)
        stream.unread.settle(read, len(self.common.members) - 1)
        if written.floor:
            stream.model.raise_floor(max(written.floor, stream.model.floor))
            self.common.counts["floors_raised"] += 1
            self._released = min(stream.first_position() for stream in self.streams.values())

    # For people.

    def _summary(self, stream: Stream) -> dict[str, object]:
        model = stream.model
        return {
            "events": stream.durable,
            "read": len(model.read_order),
            "leaves": len(stream.leaves),
            "forks": len(model.forks),
            "floor": model.floor,
            "held_by": sorted(self.reading.name_of(identifier_of(member)) for member in stream.held_by),
            "fingerprint": f"{model.fingerprint:064x}",
        }
