"""Find out the outcome of a request: it is written, or it is not and never will be.

To settle a request of this client that is in flight, the resolver fences its lane, unless the lane has already ended or
the caller prefers to wait. To settle a request of another connection, it fences that connection's lane. It asks a node
for the place of a written request (offset and cluster message). A node knows the place for as long as it remembers the
receipt. Recent outcomes are cached.

Invariant: "not written" is reported only after a fence, which every node obeys.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from chaplain.client.protocol.call_events import Failure, Raised, Returned
from chaplain.client.protocol.journal.config_requests import APPLIED, ConfigRequestClient
from chaplain.client.protocol.journal.events import JournalEffect, ResolveCommand, WritesAcknowledged
from chaplain.client.protocol.journal.node_selection import NodeSelector
from chaplain.client.protocol.journal.outcome_cache import OutcomeCallback, part_of
from chaplain.client.protocol.journal.write_queue import PendingWrite
from chaplain.client.protocol.journal.writer import LaneWriters
from chaplain.client.types.journal import PLACE_UNKNOWN, RequestId
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.journal.messages.client import AskLane, Decided, LaneIs, NodeMessage, Run
from chaplain.journal.messages.config import FenceLane


class Inquiry(NamedTuple):
    """A call that asks about a request."""

    call: int
    request: RequestId
    callback: OutcomeCallback
    stream: str = ""
    """The stream and the number of messages of the request, as far as the caller knows."""
    messages: int = 1

    def unknown_place(self) -> ReceiptPlace:
        """The place of a request that is written at an unknown offset."""
        return ReceiptPlace(*self.request, 1, self.stream, PLACE_UNKNOWN, self.messages)


class Resolver:
    """Answers inquiries about requests."""

    def __init__(
        self,
        effects: list[JournalEffect],
        selector: NodeSelector,
        config_requests: ConfigRequestClient,
        writers: LaneWriters,
    ) -> None:
        self._effects = effects
        self._selector = selector
        self._config_requests = config_requests
        self._writers = writers
        self._fences: dict[int, int] = {}
        """Pending fences of other connections' lanes, by call."""
        self._place_requests: dict[int, int] = {}
        """Pending requests for a place, by call."""

    def resolve(self, now_ns: int, command: ResolveCommand) -> None:
        """Determine the outcome of a request. If the request is in flight, its lane is fenced now."""

        def callback(place: ReceiptPlace | None) -> None:
            self._effects.append(
                Returned(command.call, b"") if place is None else WritesAcknowledged(command.call, place)
            )

        self.find(now_ns, Inquiry(command.call, RequestId(command.client_id, command.request), callback))
        if (
            self._writers.is_open(command.client_id)
            and self._in_flight_write(command.client_id, command.request) is not None
        ):
            self._writers.fence(now_ns)

    def find(self, now_ns: int, inquiry: Inquiry) -> None:
        """Determine the outcome of a request. If the request is in flight, wait for its outcome."""
        write = self._in_flight_write(*inquiry.request)
        outcomes = self._writers.queue.outcomes
        if write is not None and write.id is not None:
            outcomes.watch(write.id, inquiry.request, inquiry.call, inquiry.callback)
            return
        try:
            place = outcomes.get(inquiry.request)
        except KeyError:
            self._find_uncached(now_ns, inquiry)
        else:
            inquiry.callback(place)

    def _find_uncached(self, now_ns: int, inquiry: Inquiry) -> None:
        """The outcome is not cached: ask the cluster."""
        lane = self._writers.find_lane(inquiry.request.client_id)
        if lane is None:
            self._fence_lane(now_ns, inquiry)
        elif inquiry.request.client_message_id >= lane.next_id:
            self._effects.append(Raised(inquiry.call, Failure.MISSING, "no request has this id yet"))
        else:
            self.ask_place(inquiry)

    def cancel(self, call: int) -> None:
        """The caller no longer waits."""
        self._config_requests.withdraw(self._fences.pop(call, 0))
        self._selector.forget(self._place_requests.pop(call, 0))
        self._writers.queue.outcomes.unwatch(call)

    def _fence_lane(self, now_ns: int, inquiry: Inquiry) -> None:
        """Fence a lane of another connection, or of an earlier one."""

        def on_decided(now_ns: int, decided: Decided) -> None:
            self._fences.pop(inquiry.call, None)
            self.on_fenced(inquiry, decided)

        fence = FenceLane(inquiry.request.client_id)
        self._fences[inquiry.call] = self._config_requests.submit(now_ns, fence, on_decided)

    def on_fenced(self, inquiry: Inquiry, decided: Decided) -> None:
        """The lane of the request is fenced, or does not exist."""
        if decided.kind == APPLIED:
            if inquiry.request.client_message_id <= decided.last_id:
                self.ask_place(inquiry)
            else:
                inquiry.callback(None)
            return
        failure = Failure.UNKNOWN if decided.kind == "unknown_lane" else Failure.REFUSED
        reason = f"the outcome can no longer be determined ({decided.reason}): read the stream"
        self._effects.append(Raised(inquiry.call, failure, reason, inquiry.request))

    def ask_place(self, inquiry: Inquiry) -> None:
        """Ask for the place of a written request. If the node does not know, the offset stays unknown."""

        def callback(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._selector.forget(self._place_requests.pop(inquiry.call, 0))
            run = message.run if isinstance(message, LaneIs) else None
            inquiry.callback(inquiry.unknown_place() if run is None else _within(run, inquiry))

        asked = self._selector.request(lambda call: AskLane(call, *inquiry.request), callback)
        if asked:
            self._place_requests[inquiry.call] = asked
        else:
            inquiry.callback(inquiry.unknown_place())

    def _in_flight_write(self, client_id: int, request: int) -> PendingWrite | None:
        """The unanswered write of this client that contains this request."""
        lane = self._writers.find_lane(client_id)
        for packed in lane.in_flight.values() if lane is not None else ():
            if packed.first_id <= request <= packed.last_id:
                for write in packed.items:
                    assert write.id is not None
                    if request < write.id.client_message_id + write.batch.requests:
                        return write
        return None


def _within(run: Run, inquiry: Inquiry) -> ReceiptPlace | None:
    """The place of one request, computed from a receipt of several. A receipt that does not match the inquiry is
    ignored.
    """
    client_id, request = inquiry.request
    matches = run.client_id == client_id and run.first_id <= request < run.first_id + run.requests
    if not matches or run.requests not in (1, run.messages):
        return inquiry.unknown_place()
    return part_of(ReceiptPlace(*msgspec.structs.astuple(run)), inquiry.request)
