"""The lock: the right to write the next entry.

Whoever the last entry names in `next` has it. Who waits says so in its bearing and is given its turn; who waits without
seeing any progress takes the lock by a new ballot, from a majority, whatever became of the holder.

Decides when to take it, whom to promise it, and what log its new holder goes on with. Refuses to know what is written.

Invariants: a promise is never broken; a lock is granted only to a member that knows all that the granter knows to be
decided; its new holder goes on with the longest log of the highest ballot among those of the granters and its own, and
enough of every work set in that log have granted. So it shares a member with whoever decided something behind a change
that the holder does not know to be decided (decision 0172).
"""

from __future__ import annotations

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.entry import Ballot, SeatedMember, SequenceEntry, decode_entries
from chaplain.sequence.messages.peer import Fill, Lock, LockGranted, LockRefused, LogLength, SequenceState, Why
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.reconfiguration import lacking
from chaplain.sequence.window.log import sets_behind
from chaplain.sequence.work_set import WorkSet, is_enough

_GONE_WAIT_NS = 20 * 10**6
"""A holder whose connection broke is most likely dead: the others share this much time between them."""
_DOUBLINGS_MAX = 8


class _Attempt:
    """A ballot of ours that is being collected."""

    def __init__(self, ballot: Ballot, members: WorkSet, decided: int, until_ns: int) -> None:
        self.ballot = ballot
        self.members = members
        self.decided = decided
        self.until_ns = until_ns
        self.grants: dict[int, LockGranted] = {}
        """By seat."""


class SequenceLock:
    def __init__(self, bench: SequenceContext) -> None:
        self._bench = bench
        self._attempt: _Attempt | None = None
        self._armed: LogLength | None = None
        """How far the log was when the waiting began."""
        self._due_ns: int | None = None
        self._failures = 0

    def reset(self) -> None:
        self._attempt = self._armed = self._due_ns = None
        self._failures = 0

    def due_ns(self) -> int | None:
        return self._attempt.until_ns if self._attempt is not None else self._due_ns

    @property
    def rests(self) -> bool:
        """Whether it is neither taken nor waited for."""
        return self._attempt is None and self._armed is None and self._due_ns is None

    @property
    def holds(self) -> bool:
        """Whether the next entry is ours to write."""
        bench = self._bench
        log = bench.log
        return (
            bench.is_member and self._attempt is None and log.turn == bench.seat and log.head.ballot == bench.promised
        )

    # Waiting.

    def wait(self, *, wants: bool) -> None:
        """Arm or disarm the taking of the lock, and take it when the time has come."""
        bench = self._bench
        if self._attempt is not None:
            if bench.now_ns >= self._attempt.until_ns:
                self._fail()
            return
        if not wants or self.holds or not bench.is_member:
            self._armed = self._due_ns = None
        elif self._armed != bench.log.head:
            self._armed = bench.log.head
            self._due_ns = bench.now_ns + self._patience_ns()
        elif self._due_ns is not None and bench.now_ns >= self._due_ns:
            self._take()

    def hurry(self) -> None:
        """The company changed: the wait may be shorter now."""
        self._armed = None

    def _patience_ns(self) -> int:
        bench = self._bench
        settings = bench.settings
        if bench.company.of_seat(bench.log.members, bench.log.turn) is None and not self._failures:
            return bench.rank() * _GONE_WAIT_NS + bench.chance.randrange(_GONE_WAIT_NS)
        wait_ns = min(settings.lock_wait_ns << min(self._failures, _DOUBLINGS_MAX), settings.lock_wait_ns_max)
        return wait_ns + bench.chance.randrange(wait_ns)

    def _fail(self) -> None:
        self._attempt = self._armed = None
        self._failures += 1
        self._bench.counts["locks_failed"] += 1

    # Taking.

    def _take(self) -> None:
        bench = self._bench
        log = bench.log
        if lacking(bench) is not None:
            self._armed = None  # nothing could be decided: wait until more are here
            return
        ballot = Ballot(bench.promised.round + 1, bench.seat)
        bench.promised = ballot
        until_ns = bench.now_ns + self._patience_ns() + bench.settings.lock_wait_ns
        self._attempt = _Attempt(ballot, log.members, log.decided, until_ns)
        bench.counts["locks_asked"] += 1
        bench.tell_all(bench.company.connected(), Lock(bench.bearing()))  # who joined may be known to others alone

    def complete(self) -> Ballot | None:
        """Our ballot, once, when enough have granted it; the log is then the one to go on with."""
        bench, attempt = self._bench, self._attempt
        if attempt is None or attempt.ballot != bench.promised:
            return None
        log = bench.log
        if not self._is_granted(attempt, attempt.members):
            return None
        if attempt.members != log.members:
            self._attempt = self._armed = self._due_ns = None
            return None  # the work set changed meanwhile: those who granted are not those who count
        found = self._found(attempt)
        if not all(self._is_granted(attempt, one) for one in sets_behind(log.members, found)):
            return None
        self._attempt = self._armed = self._due_ns = None
        self._failures = 0
        bench.counts["locks_taken"] += 1
        bench.publishing.displaced(log.attach(log.decided, found))
        return attempt.ballot

    def _is_granted(self, attempt: _Attempt, members: WorkSet) -> bool:
        bench = self._bench
        return is_enough(members, {bench.seat, *attempt.grants}, bench.dead(members))

    def _found(self, attempt: _Attempt) -> list[SequenceEntry]:
        """What to go on with, behind what we know to be decided."""
        log = self._bench.log
        best = max(attempt.grants.values(), key=lambda grant: grant.bearing.head, default=None)
        if best is None or best.bearing.head <= log.head:
            return [held.entry for held in log.after(log.decided)]
        fitting = log.fit(best.previous, best.previous_hash, decode_entries(best.entries))
        assert fitting is not None, "two logs differ where both are decided"
        previous, entries = fitting
        assert previous + len(entries) == best.bearing.head.index, "a grant shows all that its giver holds"
        return entries

    # Granting.

    def asked(self, fellow: SequencePeer, message: Lock) -> None:
        bench, asker = self._bench, message.bearing
        member = SeatedMember(fellow.identifier, asker.seat)
        if asker.promised.seat != asker.seat:
            return
        if not bench.knows(member):
            if asker.decided <= bench.log.decided:
                bench.tell(fellow, LockRefused(bench.bearing(), Why.OUTSIDE))
        elif asker.promised < bench.promised:
            bench.tell(fellow, LockRefused(bench.bearing(), Why.STALE))
        elif asker.decided < bench.log.decided:
            bench.tell(fellow, LockRefused(bench.bearing(), Why.BEHIND))
        else:
            self._grant(fellow, message)  # even without a seat: others may hold the entry that gives us one

    def _grant(self, fellow: SequencePeer, message: Lock) -> None:
        bench, asker = self._bench, message.bearing
        log = bench.log
        self.promise(asker.promised)
        before, tail = log.hash_at(log.decided), b""
        assert before is not None
        if log.head > asker.head:
            tail = b"".join(held.entry.encoded for held in log.after(log.decided))
        bench.tell(fellow, LockGranted(bench.bearing(), asker.promised, log.decided, before, tail))

    def promise(self, ballot: Ballot) -> None:
        """Nothing under a lower ballot is accepted from now on."""
        bench = self._bench
        if ballot <= bench.promised:
            return
        bench.promised = ballot
        if self._attempt is not None and self._attempt.ballot < ballot:
            self._fail()

    # Answers.

    def granted(self, fellow: SequencePeer, grant: LockGranted) -> None:
        attempt = self._attempt
        if attempt is not None and grant.ballot == attempt.ballot == self._bench.promised:
            attempt.grants[fellow.bearing.seat] = grant

    def refused(self, fellow: SequencePeer, refuse: LockRefused) -> None:
        """Why tells what to do; being outside, or forgotten, is for the core."""
        if refuse.why is Why.STALE:
            self.promise(refuse.bearing.promised)
        elif refuse.why is Why.BEHIND and refuse.bearing.state is not SequenceState.DSC:
            self._bench.tell(fellow, Fill(self._bench.bearing()))
