"""The graph layer's core: takes the node's inputs, returns effects.

Decides only the order of work. `step` collects what the parts add. On `Drained`, when no further input is queued, the
core writes everything in one `Persist`. An event is acknowledged, broadcast, confirmed or shown to readers only after
its `Persisted`. The parts decide the rest: `admission` adds events, `dissemination` sends them to peers, `anti_entropy`
makes nodes converge, and `reading` answers clients.

Invariants: an acknowledgement follows `Persisted`; tickets complete in order; the effects of a step are those of the
parts, in the order in which the parts added them.
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
from chaplain.gossip.layer_api import LayerCore
from chaplain.graph.admission import FORGED, EventAdmission
from chaplain.graph.anti_entropy import AntiEntropy
from chaplain.graph.context import GraphContext
from chaplain.graph.dissemination import EventDissemination
from chaplain.graph.events import CheckSignatures, EventsRead, GraphEffect, GraphInput, ReadEvents, SignaturesChecked
from chaplain.graph.messages import client
from chaplain.graph.messages import peer as messages
from chaplain.graph.messages.client import Append, Appended
from chaplain.graph.messages.event import PARENTS_MAX, EventDraft, ParentLink, sign
from chaplain.graph.messages.peer import EventBatch, Fetched, FetchMissing, GetData, GraphMessage, Inv, SyncEvent
from chaplain.graph.orphans import Orphan
from chaplain.graph.reading import GraphReaders
from chaplain.graph.settings import GraphSettings
from chaplain.graph.storage.pruning import allowed_floor, is_below, majority_floor
from chaplain.graph.storage.recovery import recover
from chaplain.graph.storage.store import GraphStore
from chaplain.graph.storage.stored import TicketContents
from chaplain.graph.stream import Stream
from chaplain.link.auth.identity import Identity, identifier_of
from chaplain.mesh.events import Entered, Exited
from chaplain.rights import RequiredRight
from chaplain.segment.layout import Bytes

DAMAGE_SHOWN = 4
"""Damaged positions that the start-up report lists."""


class GraphCore(LayerCore):
    host_requests = (CheckSignatures, ReadEvents)
    host_answers = (SignaturesChecked, EventsRead)

    def __init__(
        self,
        settings: GraphSettings,
        identity: Identity,
        rng: Random,
        *,
        now_ns: int,
        founders: Iterable[bytes] = (),
        cluster_members: Callable[[], Sequence[bytes]] | None = None,
        segments: Iterable[tuple[int, Bytes]] = (),
    ) -> None:
        """Start from the segments on disk. `cluster_members` returns the keys of the current members where the cluster
        has agreed on them (it has a journal). Without it, `founders` and every peer that connects are members until
        they leave gracefully.
        """
        self.context = context = GraphContext(settings, identity, rng, founders, cluster_members)
        self.counts: Counter[str] = context.counts
        self._store = GraphStore(settings, rng)
        self.admission = EventAdmission(context, self._added, self._duplicate, self._far_behind)
        self.dissemination = EventDissemination(context, self.admission.request)
        self.anti_entropy = AntiEntropy(
            context,
            self.dissemination,
            now_ns,
            receive=self.admission.receive,
            is_refused=self.admission.is_refused,
            adopt_floor=self._adopt_floor,
        )
        self.readers = GraphReaders(context)
        self._tickets: deque[tuple[int, int, list[TicketContents]]] = deque()
        """Writes in flight: ticket, log position after the write, and what it contains."""
        self._ticket = 0
        self._next_prune_ns = now_ns
        self._release_below = 0
        """The next write releases all segments that end before this log position; 0: none."""
        self._append_calls: dict[tuple[str, int], int] = {}
        """By stream and event number: the client call to settle once the event is on disk."""
        stranded = recover(context, self._store, segments)
        for event in stranded:
            self.admission.admit(now_ns, Orphan(event, b"", ()))
        if self._store.damage or stranded:
            damage = "; ".join(self._store.damage[:DAMAGE_SHOWN])
            message = "graph: damaged, and what is missing is asked of others"
            context.out.append(Report(message, detail={"found": damage, "waiting": len(stranded)}))
        self.dissemination.wake_for_unread(now_ns)

    @property
    def streams(self) -> dict[str, Stream]:
        return self.context.streams

    def required_right(self, body: bytes, /) -> RequiredRight | None:
        return client.required_right(body)

    def name_nodes(self, name_of: Callable[[int], int], /) -> None:
        """Set the mapping from node identifiers to the node numbers that users see."""
        self.readers.name_of = name_of

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
            "graph_waiting_orphans": len(self.admission.orphans),
            "graph_events_ahead": len(self.admission.future),
            "graph_events_refused": len(self.admission.refused),
        }

    def deadline(self) -> int | None:
        return soonest((self.dissemination.deadline(), self.anti_entropy.deadline(), self.readers.deadline()))

    def step(self, now_ns: int, event: GraphInput, /) -> list[GraphEffect]:
        self.context.note_step(now_ns)
        self._refresh_members(now_ns)
        match event:
            case GossipParcel():
                self._on_parcel(now_ns, event)
            case Requested():
                self._requested(now_ns, event)
            case Withdrawn():
                self.readers.withdrawn(event.call)
            case Drained():
                self._write(now_ns)
            case Persisted():
                self._persisted(now_ns, event.ticket)
            case PersistFailed():
                self.context.out.append(Halt(f"the disk failed: {event.reason}"))
            case SignaturesChecked():
                self.context.on_checked(event.ticket, event.results)
            case EventsRead():
                self.context.on_read(event.token, event.raws)
            case Entered():
                self.context.peers[event.peer.instance] = event.peer
                self.context.known[event.peer.key] = None
                self.anti_entropy.send_leaves(event.peer.instance)
            case Exited():
                self._exited(event.peer.instance)
            case MemberChanged():
                self.context.member_changed(event)
                self._refresh_members(now_ns)
                self.dissemination.wake_for_unread(now_ns)
            case Woken():
                self.dissemination.woken(now_ns)
                self.anti_entropy.woken(now_ns)
                self._prune(now_ns)
                self.readers.woken(now_ns)
            case Stopping():
                pass  # nothing to flush: events that are not on disk were never acknowledged
            case _:
                assert_never(event)
        effects, self.context.out = self.context.out, []
        return effects

    # Peers.

    def _exited(self, instance: bytes) -> None:
        if self.context.peers.pop(instance, None) is not None:
            self.admission.peer_exited(instance)
            self.anti_entropy.peer_exited(instance)

    def _refresh_members(self, now_ns: int) -> None:
        """Apply a membership change: drop the confirmations of removed members and recount all unread events."""
        before = self.context.members
        if not self.context.refresh_members():
            return
        gone = [member for member in before if member not in self.context.members]
        for stream in self.streams.values():
            stream.unread.drop_members(gone)
            stream.confirmed_enough.update(dict.fromkeys(stream.unread.recount(self.context.read_at)))
        self.dissemination.wake_for_unread(now_ns)

    def _on_parcel(self, now_ns: int, event: GossipParcel) -> None:
        peer = self.context.peers.get(event.peer.instance)
        if peer is None:
            return
        if self.context.quota(peer, now_ns).banned(now_ns):
            self.context.counts["unheard"] += 1
            return
        try:
            message = messages.decode(event.parcel.body, event.parcel.payload)
        except Malformed as wrong:
            self.context.strike(now_ns, peer.instance, "malformed message", FORGED)
            self.context.out.append(Report("malformed graph parcel", f"{peer.identifier:08x}", {"reason": str(wrong)}))
            return
        self._dispatch(now_ns, peer.instance, message)

    def _dispatch(self, now_ns: int, instance: bytes, message: GraphMessage) -> None:
        match message:
            case EventBatch():
                self.admission.receive(now_ns, instance, message.items, flags=message.flags)
            case Inv():
                self.dissemination.on_inv(now_ns, instance, message)
            case GetData() | FetchMissing():
                self.anti_entropy.on_request(now_ns, instance, message)
            case SyncEvent():
                self.anti_entropy.on_sync(now_ns, instance, message)
            case Fetched():
                self.anti_entropy.on_page(now_ns, instance, message)
            case _:
                assert_never(message)

    # Calls from one part to another. They go through the core because the parts are built one after the other.

    def _added(self, *args: Any) -> None:
        self.dissemination.on_added(*args)

    def _duplicate(self, *args: Any) -> None:
        self.dissemination.on_duplicate(*args)

    def _far_behind(self, now_ns: int, instance: bytes, name: str) -> None:
        self.anti_entropy.fetch(now_ns, instance, name)

    # Pruning.

    def _prune(self, now_ns: int) -> None:
        """Raise each stream's floor as far as the leaves of all members allow; at most once per `sync_ns`."""
        if not self.context.settings.keep_events or now_ns < self._next_prune_ns:
            return
        self._next_prune_ns = now_ns + self.context.settings.sync_ns
        for stream in self.streams.values():
            floor, stream.floor_blockers = allowed_floor(self.context, self.anti_entropy, stream)
            if floor > stream.model.floor:
                stream.floor_wanted = floor

    def _adopt_floor(self, now_ns: int, stream: Stream) -> None:
        """Adopt the floor of the other members if all local events are below it.

        A node that was away can no longer fetch the events in between: the other members have pruned them.
        """
        floor = majority_floor(self.context, self.anti_entropy, stream)
        if is_below(stream, floor):
            self.context.counts["floors_taken_over"] += 1
            stream.model.raise_floor(floor)
            stream.floor_wanted = floor
            for orphan in self.admission.orphans.take_stream(stream.name):
                self.admission.admit(now_ns, orphan)

    # Clients.

    def _requested(self, now_ns: int, event: Requested) -> None:
        try:
            request = client.decode_request(event.body)
        except Malformed as wrong:
            self.context.out.append(Settled(event.call, kind="refused", reason=str(wrong)))
            return
        if isinstance(request, Append):
            self._append(now_ns, event, request.stream)
        else:
            self.readers.requested(now_ns, event.call, request)

    def _append(self, now_ns: int, event: Requested, name: str) -> None:
        settings = self.context.settings
        stream = self.context.stream(name) if name else None
        if stream is None:
            reason = f"a node keeps at most {settings.streams_max} graph streams, each with a name"
            self.context.out.append(Settled(event.call, kind="refused", reason=reason))
        elif len(event.payload) > settings.content_bytes_max:
            reason = f"an event holds at most {settings.content_bytes_max} bytes, not {len(event.payload)}"
            self.context.out.append(Settled(event.call, kind="refused", reason=reason))
        else:
            draft = self._draft(stream, event, now_ns)
            made = sign(draft, self.context.identity, settings.cluster)
            self.admission.admit(now_ns, Orphan(made, b"", ()))
            self._append_calls[name, stream.model.find(made.id)] = event.call

    def _draft(self, stream: Stream, event: Requested, now_ns: int) -> EventDraft:
        """Link the new event to the author's last event and to every leaf, so that each append merges open branches."""
        model = stream.model
        previous = model.last_of(self.context.identity.key)
        leaves: list[ParentLink] = [model.link_of(leaf) for leaf in model.leaves]
        parents = [leaf for leaf in leaves if previous is None or leaf.id != previous.id]
        bound = min(self.context.settings.parents_max, PARENTS_MAX)
        return EventDraft(stream.name, event.payload, now_ns, previous, tuple(parents[:bound]), event.client)

    # The disk.

    def _write(self, now_ns: int) -> None:
        """Write everything that is pending, unless a write is in flight.

        With one write at a time, the batch grows while the disk is busy (group commit).
        """
        if self._tickets:
            return
        operations: list[Operation] = []
        written: list[TicketContents] = []
        for stream in self.streams.values():
            if not stream.unwritten and not stream.confirmed_enough and not stream.floor_wanted:
                continue
            unwritten, stream.unwritten = stream.unwritten, []
            enough, stream.confirmed_enough = stream.confirmed_enough, {}
            new, places = self._store.batches(stream.name, stream.offset, unwritten, now_ns)
            stream.offset += len(unwritten)
            operations += new
            marked = [number for number in enough if not stream.model.is_read(number)]
            if marked:
                operations += self._store.read(stream.name, self._read_marks(stream, marked))
            floor, stream.floor_wanted = stream.floor_wanted, 0
            if floor:
                operations += self._store.floor(stream.name, floor)
            written.append(TicketContents(stream.name, tuple(places), tuple(marked), floor))
        if self._release_below:
            operations += self._store.release_below(self._release_below)
            self._release_below = 0
        if operations:
            self._ticket += 1
            self._tickets.append((self._ticket, self._store.written, written))
            self.context.out.append(Persist(self._ticket, tuple(operations)))

    def _read_marks(self, stream: Stream, numbers: list[int]) -> list[tuple[bytes, int]]:
        """Keep only events without a descendant among `numbers`: a READ mark covers all ancestors."""
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
                self._on_written(now_ns, self.streams[one.stream], one)
        self.readers.on_changed(now_ns, names)

    def _on_written(self, now_ns: int, stream: Stream, written: TicketContents) -> None:
        new = stream.persisted(len(written.places), list(written.places))
        for number in new:
            call = self._append_calls.pop((stream.name, number), None)
            if call is not None:
                self.context.counts["appends"] += 1
                self.context.out.append(Settled(call, client.encode(Appended(stream.model.id_of(number)))))
        if new:
            stream.changed_ns = now_ns
            self.dissemination.on_durable(now_ns, stream, new)
        read = [one for number in written.confirmed_enough for one in stream.model.mark_read(number)]
        self.context.counts["events_read"] += len(read)
        stream.unread.stop_watching(read, len(self.context.members) - 1)
        if written.floor:
            stream.model.raise_floor(max(written.floor, stream.model.floor))
            self.context.counts["floors_raised"] += 1
            self._release_below = min(stream.first_position() for stream in self.streams.values())

    # Status page.

    def _summary(self, stream: Stream) -> dict[str, object]:
        model = stream.model
        return {
            "events": stream.durable,
            "read": len(model.read_order),
            "leaves": len(stream.leaves),
            "forks": len(model.forks),
            "floor": model.floor,
            "held_by": sorted(self.readers.name_of(identifier_of(member)) for member in stream.floor_blockers),
            "fingerprint": f"{model.fingerprint:064x}",
        }
