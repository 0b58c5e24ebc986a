"""What became of a request: written, or not and never to be.

Decides how to find out. A request of this client that is still under way has its lane fenced, unless the lane is over
already or whoever asks would rather wait; so has a request of another connection's lane. Where it is written is asked
of the node that said so; it knows for as long as it remembers receipts. What was answered lately is remembered here.

Invariant: "not written" is said only after a fence that every node obeys.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from chaplain.client.protocol.call_events import Failure, Raised, Returned
from chaplain.client.protocol.journal.config_requests import APPLIED, ConfigRequestClient
from chaplain.client.protocol.journal.events import JournalEffect, ResolveCommand, WritesAcknowledged
from chaplain.client.protocol.journal.node_selection import Outlets
from chaplain.client.protocol.journal.outcome_cache import Told, part_of
from chaplain.client.protocol.journal.write_queue import PendingWrite
from chaplain.client.protocol.journal.writer import LaneWriters
from chaplain.client.types.journal import PLACE_UNKNOWN, RequestId
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.journal.messages.client import AskLane, Decided, LaneIs, NodeMessage, Run
from chaplain.journal.messages.config import FenceLane


class Inquiry(NamedTuple):
    """A call that wants to know about a request."""

    call: int
    request: RequestId
    told: Told
    stream: str = ""
    """Which it was for, and how many messages it had, as far as the caller knows."""
    messages: int = 1

    def somewhere(self) -> ReceiptPlace:
        """It is written, and nobody can say where."""
        return ReceiptPlace(*self.request, 1, self.stream, PLACE_UNKNOWN, self.messages)


class Resolving:
    def __init__(
        self, effects: list[JournalEffect], outlets: Outlets, petitioning: ConfigRequestClient, writing: LaneWriters
    ) -> None:
        self._effects = effects
        self._outlets = outlets
        self._petitioning = petitioning
        self._writing = writing
        self._petitions: dict[int, int] = {}
        """About lanes of others, by call."""
        self._questions: dict[int, int] = {}
        """Where something is, by call."""

    def resolve(self, now_ns: int, wish: ResolveCommand) -> None:
        """Tell the wish's call, and have it settled now."""

        def told(place: ReceiptPlace | None) -> None:
            self._effects.append(Returned(wish.call, b"") if place is None else WritesAcknowledged(wish.call, place))

        self.find(now_ns, Inquiry(wish.call, RequestId(wish.client_id, wish.request), told))
        if self._writing.is_open(wish.client_id) and self._under_way(wish.client_id, wish.request) is not None:
            self._writing.fence(now_ns)

    def find(self, now_ns: int, inquiry: Inquiry) -> None:
        """Tell whoever inquires; of a request that is under way once that has come to its end."""
        job = self._under_way(*inquiry.request)
        fates = self._writing.jobs.fates
        if job is not None and job.id is not None:
            fates.watch(job.id, inquiry.request, inquiry.call, inquiry.told)
            return
        try:
            place = fates.get(inquiry.request)
        except KeyError:
            self._forgotten(now_ns, inquiry)
        else:
            inquiry.told(place)

    def _forgotten(self, now_ns: int, inquiry: Inquiry) -> None:
        lane = self._writing.find_lane(inquiry.request.client_id)
        if lane is None:
            self._ask_the_cluster(now_ns, inquiry)
        elif inquiry.request.client_message_id >= lane.next_id:
            self._effects.append(Raised(inquiry.call, Failure.MISSING, "no request has this id yet"))
        else:
            self.ask_where(inquiry)

    def cancel(self, call: int) -> None:
        self._petitioning.withdraw(self._petitions.pop(call, 0))
        self._outlets.forget(self._questions.pop(call, 0))
        self._writing.jobs.fates.unwatch(call)

    def _ask_the_cluster(self, now_ns: int, inquiry: Inquiry) -> None:
        """A lane of another connection, or of an earlier one."""

        def verdict(now_ns: int, decided: Decided) -> None:
            self._petitions.pop(inquiry.call, None)
            self.decided(inquiry, decided)

        fence = FenceLane(inquiry.request.client_id)
        self._petitions[inquiry.call] = self._petitioning.submit(now_ns, fence, verdict)

    def decided(self, inquiry: Inquiry, decided: Decided) -> None:
        """The lane of the request is fenced, or there is none."""
        if decided.kind == APPLIED:
            if inquiry.request.client_message_id <= decided.last_id:
                self.ask_where(inquiry)
            else:
                inquiry.told(None)
            return
        failure = Failure.UNKNOWN if decided.kind == "unknown_lane" else Failure.REFUSED
        reason = f"nobody can tell any more ({decided.reason}): read the stream"
        self._effects.append(Raised(inquiry.call, failure, reason, inquiry.request))

    def ask_where(self, inquiry: Inquiry) -> None:
        """It is written. Whoever cannot say where leaves it at that."""

        def told(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._outlets.forget(self._questions.pop(inquiry.call, 0))
            run = message.run if isinstance(message, LaneIs) else None
            inquiry.told(inquiry.somewhere() if run is None else _within(run, inquiry))

        asked = self._outlets.ask(lambda call: AskLane(call, *inquiry.request), told)
        if asked:
            self._questions[inquiry.call] = asked
        else:
            inquiry.told(inquiry.somewhere())

    def _under_way(self, client_id: int, request: int) -> PendingWrite | None:
        """The job of ours that has this request, if it has no answer yet."""
        lane = self._writing.find_lane(client_id)
        for packed in lane.in_flight.values() if lane is not None else ():
            if packed.first_id <= request <= packed.last_id:
                for job in packed.things:
                    assert job.id is not None
                    if request < job.id.client_message_id + job.batch.requests:
                        return job
        return None


def _within(run: Run, inquiry: Inquiry) -> ReceiptPlace | None:
    """Where one request of a receipt is. What a node says of something else is not believed."""
    client_id, request = inquiry.request
    ours = run.client_id == client_id and run.first_id <= request < run.first_id + run.requests
    if not ours or run.requests not in (1, run.messages):
        return inquiry.somewhere()
    return part_of(ReceiptPlace(*msgspec.structs.astuple(run)), inquiry.request)
