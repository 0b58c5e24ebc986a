"""The sequence layer of a node: the core, client calls, waiting readers, and an optional tap.

Decides when a call is answered. Does not know how events get their numbers. The tap (`recorder`) writes the events that
the node delivers to its disk. No call waits for the tap: if the disk is too slow, the tap leaves events out and reports
their number.

Invariants: every call is settled exactly once or withdrawn; a page contains only delivered events, in order and without
gaps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import assert_never

from chaplain.core import (
    STATUS_STREAMS_MAX,
    Drained,
    Persisted,
    PersistFailed,
    Report,
    Requested,
    Settled,
    Withdrawn,
    Woken,
    soonest,
)
from chaplain.errors import Malformed
from chaplain.gossip.events import GossipParcel
from chaplain.gossip.layer_api import LayerCore, LayerEffect, LayerInput
from chaplain.link.events import Meet
from chaplain.mesh.events import Whisper
from chaplain.rights import RequiredRight
from chaplain.segment.tap import Tap
from chaplain.sequence.core import SequenceCore
from chaplain.sequence.events import (
    Became,
    Confirm,
    Confirmed,
    Delivered,
    Forgot,
    HistoryBegan,
    Publish,
    Published,
    SequenceEffect,
    SequenceInput,
    Unpublished,
)
from chaplain.sequence.messages import client
from chaplain.sequence.messages.client import Numbered, PublishRequest, ReadRequest
from chaplain.sequence.messages.peer import SequenceState
from chaplain.sequence.recorder import SequenceRecorder
from chaplain.sequence.window.delivered import DeliveredWindow

SequenceLayerInput = LayerInput | Publish
SequenceLayerEffect = LayerEffect

_DSC_WAIT_NS = 5 * 10**9
"""A read that arrives before the node has joined waits at least this long for it."""


class _Waiting:
    """A read that waits for new events until `until_ns`."""

    def __init__(self, call: int, request: ReadRequest, until_ns: int) -> None:
        self.call = call
        self.request = request
        self.until_ns = until_ns


class SequenceLayer(LayerCore):
    serves_removed_nodes = True
    """Keep sessions with removed nodes: such a node may have a seat, and the others need its acknowledgements to remove
    it.
    """

    def __init__(self, core: SequenceCore, tap: Tap | None = None, tapped: tuple[str, ...] = ()) -> None:
        self.core = core
        self.counts: Counter[str] = core.context.counts
        self._name_of: Callable[[int], int] = lambda identifier: identifier
        self._delivered = DeliveredWindow()
        self._recorder = None if tap is None else SequenceRecorder(tap, tapped)
        self._waiting: dict[int, _Waiting] = {}
        self._changed = False
        """Events were delivered or the state changed since the waiting reads were last tried."""
        self._publishing: dict[int, str] = {}
        """The stream of each publish that a client waits for."""
        self._confirming: dict[int, ReadRequest] = {}
        """Fresh reads that wait until this node has delivered everything that was decided."""

    def deadline(self) -> int | None:
        if not self._waiting:
            return self.core.deadline()
        due = [self.core.deadline(), *(one.until_ns for one in self._waiting.values())]
        return soonest(due)

    def step(self, now_ns: int, event: SequenceLayerInput, /) -> list[SequenceLayerEffect]:
        out: list[SequenceLayerEffect] = []
        match event:
            case GossipParcel():
                self._step_core(now_ns, event, out)
            case Requested():
                self._requested(now_ns, event, out)
            case Withdrawn():
                self._waiting.pop(event.call, None)
                self._publishing.pop(event.call, None)
                self._confirming.pop(event.call, None)
            case Persisted():
                out += [] if self._recorder is None else self._recorder.persisted(now_ns)
            case PersistFailed():
                pass  # the node stops after any failed write
            case Woken():
                self._step_core(now_ns, event, out)
                self._answer_waiting(now_ns, out)
            case Drained():
                self._step_core(now_ns, event, out)
                if self._recorder is not None:
                    out += self._recorder.drained(now_ns)
            case _:
                self._step_core(now_ns, event, out)
        if self._changed:
            self._changed = False
            if self._waiting:
                self._answer_waiting(now_ns, out)
        return out

    def _step_core(self, now_ns: int, event: SequenceInput, out: list[SequenceLayerEffect]) -> None:
        for effect in self.core.step(now_ns, event):
            if type(effect) is Whisper:
                out.append(effect)
            else:
                self._handle_effect(now_ns, effect, out)

    def _handle_effect(self, now_ns: int, effect: SequenceEffect, out: list[SequenceLayerEffect]) -> None:
        match effect:
            case Whisper() | Meet() | Report():
                out.append(effect)
            case Delivered():
                self._delivered.add(effect)
                self._changed = True
                if self._recorder is not None and not effect.learned:
                    self._recorder.add(effect)
            case Forgot():
                self._delivered.drop_through(effect.index)
            case Confirmed():
                request = self._confirming.pop(effect.token, None)
                if request is not None:
                    self._read(now_ns, effect.token, request, out)
            case Published() | Unpublished():
                self._settle_publish(effect, out)
            case HistoryBegan():
                self._delivered.restart(effect)
                self._changed = True
            case Became():
                self._changed = True
            case _:
                assert_never(effect)

    # Calls.

    def _settle_publish(self, effect: Published | Unpublished, out: list[SequenceLayerEffect]) -> None:
        call = effect.token
        stream = self._publishing.pop(call, None)
        if isinstance(effect, Unpublished) and self._confirming.pop(call, None) is not None:
            kind = "refused" if effect.kind == "unknown" else effect.kind
            out.append(Settled(call, kind=kind, reason=effect.reason))
        if stream is None:
            return
        if isinstance(effect, Published):
            hash_ = self._delivered.hash_of(stream, effect.first)
            out.append(Settled(call, client.encode(Numbered(effect.first, hash_))))
        else:
            out.append(Settled(call, kind=effect.kind, reason=effect.reason))

    def _requested(self, now_ns: int, asked: Requested, out: list[SequenceLayerEffect]) -> None:
        try:
            request = client.decode_request(asked.body)
            values = client.split(request.lengths, asked.payload) if isinstance(request, PublishRequest) else ()
        except Malformed as wrong:
            out.append(Settled(asked.call, kind="refused", reason=str(wrong)))
            return
        if isinstance(request, PublishRequest):
            self._publishing[asked.call] = request.stream
            self._step_core(now_ns, Publish(asked.call, request.stream, asked.client, values), out)
        elif len(self._waiting) + len(self._confirming) >= self.core.settings.readers_max:
            out.append(Settled(asked.call, kind="busy", reason="too many readers wait here already: read later"))
        elif request.fresh:
            self._confirming[asked.call] = request
            self._step_core(now_ns, Confirm(asked.call), out)
        else:
            self._read(now_ns, asked.call, request, out)

    def _read(self, now_ns: int, call: int, request: ReadRequest, out: list[SequenceLayerEffect]) -> None:
        wait_ns = min(request.wait_ns, self.core.settings.read_wait_ns_max)
        if not self.core.context.is_member:
            wait_ns = max(wait_ns, _DSC_WAIT_NS)
        waiting = _Waiting(call, request, now_ns + wait_ns)
        if not self._answer(now_ns, waiting, out):
            self._waiting[call] = waiting

    def _answer_waiting(self, now_ns: int, out: list[SequenceLayerEffect]) -> None:
        for waiting in list(self._waiting.values()):
            if self._answer(now_ns, waiting, out):
                del self._waiting[waiting.call]

    def _answer(self, now_ns: int, waiting: _Waiting, out: list[SequenceLayerEffect]) -> bool:
        """Answer the read if possible: with events, with an empty page, or with a refusal. Return True if it was
        answered.
        """
        request, delivered, late = waiting.request, self._delivered, now_ns >= waiting.until_ns
        if not self.core.context.is_member:
            if late:
                reason = "this node is in DSC: it has not joined a work set yet; ask again, or another node"
                out.append(Settled(waiting.call, kind="refused", reason=reason))
            return late
        first, head = delivered.first(request.stream), delivered.head(request.stream)
        if request.history not in {0, delivered.history}:
            reason = (
                f"the history you read, {request.history:016x}, is over; {delivered.history:016x} has begun: read anew"
            )
        elif 0 < request.start < first:
            reason = f"{request.stream} {request.start} has left the window: {_unremembered(first)}"
        elif not request.start and 0 < head < first and not request.wait_ns:
            reason = f"all of {request.stream} has left the window: {_unremembered(first)}"
        elif (request.start or first) <= head or late or not request.wait_ns:
            page_bytes_max = self.core.settings.page_bytes_max
            page = delivered.page(request.stream, request.start or first, page_bytes_max, whole=request.whole)
            out.append(Settled(waiting.call, client.encode(page)))
            return True
        else:
            return False
        out.append(Settled(waiting.call, kind="missing", reason=reason))
        return True

    # Status page and metrics.

    def required_right(self, body: bytes, /) -> RequiredRight | None:
        return client.required_right(body)

    def name_nodes(self, name_of: Callable[[int], int], /) -> None:
        """Set the mapping from node identifiers to the node numbers that users see."""
        self._name_of = name_of

    def status(self) -> dict[str, object]:
        context = self.core.context
        heads = sorted(islice(self._delivered.heads().items(), STATUS_STREAMS_MAX))
        return {
            "state": context.state.name,
            "sequence": {
                "state": context.state.name,
                "reason": context.reason,
                "history": context.name,
                "work_set": sorted(self._name_of(member.identifier) for member in context.log.members),
                "number": context.log.decided,
                "hash": context.log.decided_hash.hex(),
                "lock": self._holder(),
                "events": context.events,
                "streams": {stream: {"head": number} for stream, number in heads},
            },
        }

    def _holder(self) -> int | None:
        """The node that holds the lock."""
        context = self.core.context
        found = (member.identifier for member in context.log.members if member.seat == context.log.next_seat)
        identifier = next(found, None)
        return None if identifier is None else self._name_of(identifier)

    def gauges(self) -> dict[str, float]:
        context = self.core.context
        return {
            "sequence_working": context.state is SequenceState.WRK,
            "sequence_work_set": len(context.log.members),
            "sequence_decided": context.log.decided,
            "sequence_events": context.events,
            "sequence_pending_bytes": context.publish_queue.pending_bytes,
        }


def _unremembered(first: int) -> str:
    return f"numbers before {first} are not remembered by this node"
