"""What became of a request: written, or not and never to be.

Decides how to find out. A request of this client that is still under way has its lane fenced, unless the lane is over
already; so has a request of another connection's lane. Where it is written is asked of the node that said so; it knows
for as long as it remembers receipts. What was answered lately is remembered here.

Invariant: "not written" is said only after a fence that every node obeys.
"""

from __future__ import annotations

import msgspec

from chaplain.client.call_events import Failure, Raised, Returned
from chaplain.client.fates import part_of
from chaplain.client.jobs import Job
from chaplain.client.journal_events import JournalEffect, Place, ResolveWish, Written
from chaplain.client.journal_results import PLACE_UNKNOWN, RequestId
from chaplain.client.lane import Lane
from chaplain.client.outlets import Outlets
from chaplain.client.petitioning import APPLIED, Petitioning
from chaplain.client.writing import Writing
from chaplain.journal.client_messages import AskLane, Decided, LaneIs, NodeMessage, Run
from chaplain.journal.config_message import FenceLane


class Resolving:
    def __init__(
        self, effects: list[JournalEffect], outlets: Outlets, petitioning: Petitioning, writing: Writing
    ) -> None:
        self._effects = effects
        self._outlets = outlets
        self._petitioning = petitioning
        self._writing = writing
        self._petitions: dict[int, int] = {}
        """About lanes of others, by call."""
        self._questions: dict[int, int] = {}
        """Where something is, by call."""

    def resolve(self, now_ns: int, wish: ResolveWish) -> None:
        lane = self._writing.find_lane(wish.client_id)
        job = _find_job(lane, wish.request)
        if job is not None and job.id is not None:
            self._writing.jobs.fates.watch(job.id, RequestId(wish.client_id, wish.request), wish.call)
            if self._writing.is_open(wish.client_id):
                self._writing.fence(now_ns)
            return
        try:
            self._tell(wish.call, self._writing.jobs.fates.get(RequestId(wish.client_id, wish.request)))
        except KeyError:
            self._forgotten(now_ns, wish, lane)

    def _forgotten(self, now_ns: int, wish: ResolveWish, lane: Lane[Job] | None) -> None:
        if lane is None:
            self._ask_the_cluster(now_ns, wish)
        elif wish.request >= lane.next_id:
            self._effects.append(Raised(wish.call, Failure.MISSING, "no request has this id yet"))
        else:
            self._ask_where(wish)

    def cancel(self, call: int) -> None:
        self._petitioning.withdraw(self._petitions.pop(call, 0))
        self._outlets.forget(self._questions.pop(call, 0))
        self._writing.jobs.fates.unwatch(call)

    def _ask_the_cluster(self, now_ns: int, wish: ResolveWish) -> None:
        """A lane of another connection, or of an earlier one."""

        def verdict(now_ns: int, decided: Decided) -> None:
            self._petitions.pop(wish.call, None)
            self._decided(wish, decided)

        self._petitions[wish.call] = self._petitioning.submit(now_ns, FenceLane(wish.client_id), verdict)

    def _decided(self, wish: ResolveWish, decided: Decided) -> None:
        if decided.kind == APPLIED:
            if wish.request <= decided.last_id:
                self._ask_where(wish)
            else:
                self._tell(wish.call, None)
            return
        failure = Failure.UNKNOWN if decided.kind == "unknown_lane" else Failure.REFUSED
        reason = f"nobody can tell any more ({decided.reason}): read the stream"
        self._effects.append(Raised(wish.call, failure, reason, (wish.client_id, wish.request)))

    def _ask_where(self, wish: ResolveWish) -> None:
        """It is written. Whoever cannot say where leaves it at that."""

        def told(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._outlets.forget(self._questions.pop(wish.call, 0))
            run = message.run if isinstance(message, LaneIs) else None
            self._tell(wish.call, _somewhere(wish) if run is None else _within(run, wish))

        asked = self._outlets.ask(lambda call: AskLane(call, wish.client_id, wish.request), told)
        if asked:
            self._questions[wish.call] = asked
        else:
            self._tell(wish.call, _somewhere(wish))

    def _tell(self, call: int, place: Place | None) -> None:
        self._effects.append(Returned(call, b"") if place is None else Written(call, place))


def _find_job(lane: Lane[Job] | None, request: int) -> Job | None:
    """The job under way that has this request."""
    for packed in lane.in_flight.values() if lane is not None else ():
        if packed.first_id <= request <= packed.last_id:
            for job in packed.things:
                assert job.id is not None
                if request < job.id.client_message_id + job.batch.requests:
                    return job
    return None


def _within(run: Run, wish: ResolveWish) -> Place | None:
    """Where one request of a receipt is. What a node says of something else is not believed."""
    request = RequestId(wish.client_id, wish.request)
    ours = run.client_id == wish.client_id and run.first_id <= wish.request < run.first_id + run.requests
    if not ours or run.requests not in (1, run.messages):
        return _somewhere(wish)
    return part_of(Place(*msgspec.structs.astuple(run)), request)


def _somewhere(wish: ResolveWish) -> Place:
    return Place(wish.client_id, wish.request, 1, "", PLACE_UNKNOWN, 1)
