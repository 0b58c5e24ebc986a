"""What became of a request: written, or not and never to be.

Decides how to find out. A request of this client that is still under way has its lane fenced, unless the lane is over
already; so has a request of another connection's lane, of which only that it is written can be told, not where. What
was answered lately is remembered.

Invariant: "not written" is said only after a fence that every node obeys.
"""

from __future__ import annotations

from chaplain.client.call_events import Failure, Raised, Returned
from chaplain.client.jobs import Job
from chaplain.client.journal_events import JournalEffect, Place, ResolveWish, Written
from chaplain.client.journal_results import PLACE_UNKNOWN, RequestId
from chaplain.client.lane import Lane
from chaplain.client.petitioning import APPLIED, Petitioning
from chaplain.client.writing import Writing
from chaplain.journal.client_messages import Decided
from chaplain.journal.config_message import FenceLane


class Resolving:
    def __init__(self, effects: list[JournalEffect], petitioning: Petitioning, writing: Writing) -> None:
        self._effects = effects
        self._petitioning = petitioning
        self._writing = writing
        self._petitions: dict[int, int] = {}
        """About lanes of others, by call."""

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
            self._tell(wish.call, _somewhere(wish))

    def cancel(self, call: int) -> None:
        self._petitioning.withdraw(self._petitions.pop(call, 0))
        self._writing.jobs.fates.unwatch(call)

    def _ask_the_cluster(self, now_ns: int, wish: ResolveWish) -> None:
        """A lane of another connection, or of an earlier one."""

        def verdict(now_ns: int, decided: Decided) -> None:
            self._petitions.pop(wish.call, None)
            self._decided(wish, decided)

        self._petitions[wish.call] = self._petitioning.submit(now_ns, FenceLane(wish.client_id), verdict)

    def _decided(self, wish: ResolveWish, decided: Decided) -> None:
        if decided.kind == APPLIED:
            self._tell(wish.call, _somewhere(wish) if wish.request <= decided.last_id else None)
            return
        failure = Failure.UNKNOWN if decided.kind == "unknown_lane" else Failure.REFUSED
        reason = f"nobody can tell any more ({decided.reason}): read the stream"
        self._effects.append(Raised(wish.call, failure, reason, (wish.client_id, wish.request)))

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


def _somewhere(wish: ResolveWish) -> Place:
    return Place(wish.client_id, wish.request, 1, "", PLACE_UNKNOWN, 1)
