"""The lock: the right to write the next entry.

The member that the last entry names in `next` holds the lock. A member that waits for the lock sets `wants` in its
peer state and gets its turn. A member that waits and sees no progress takes the lock with a new ballot from a majority.
It does not need the holder for this (phase 1 of Paxos).

Decides when to take the lock, to which member it is promised, and which log its new holder adopts. Does not know the
content of entries.

Invariants: a promise is never broken; a lock is granted only to a member that knows everything that the granter knows
to be decided; the new holder adopts the longest log of the highest ballot among its own and those of its granters, and
a quorum of every work set in that log has granted. Some entry after a change may be decided although the new holder
does not know it. The quorum that decided it shares a member with the granters, so the grants contain the entry
(docs/decisions/sequence-order.md).
"""

from __future__ import annotations

from chaplain.sequence.context import SequenceContext
from chaplain.sequence.messages.entry import Ballot, SeatedMember, SequenceEntry, decode_entries
from chaplain.sequence.messages.peer import Fill, Lock, LockGranted, LockRefused, LogLength, SequenceState, Why
from chaplain.sequence.peers import SequencePeer
from chaplain.sequence.reconfiguration import set_without_quorum
from chaplain.sequence.window.log import sets_after
from chaplain.sequence.work_set import WorkSet, is_quorum

_GONE_WAIT_NS = 20 * 10**6
"""A holder whose connection broke is most likely dead. The waiting members stagger their attempts by this interval."""
_DOUBLINGS_MAX = 8


class _Attempt:
    """A ballot of ours for which we collect grants."""

    def __init__(self, ballot: Ballot, members: WorkSet, decided: int, until_ns: int) -> None:
        self.ballot = ballot
        self.members = members
        self.decided = decided
        self.until_ns = until_ns
        self.grants: dict[int, LockGranted] = {}
        """Grants by seat."""


class SequenceLock:
    def __init__(self, context: SequenceContext) -> None:
        self._context = context
        self._attempt: _Attempt | None = None
        self._waiting_at: LogLength | None = None
        """The log length at which the current wait began; progress restarts the wait."""
        self._due_ns: int | None = None
        self._failures = 0

    def reset(self) -> None:
        self._attempt = self._waiting_at = self._due_ns = None
        self._failures = 0

    def due_ns(self) -> int | None:
        return self._attempt.until_ns if self._attempt is not None else self._due_ns

    @property
    def is_idle(self) -> bool:
        """True if this node neither takes the lock nor waits for it."""
        return self._attempt is None and self._waiting_at is None and self._due_ns is None

    @property
    def holds(self) -> bool:
        """True if this node may write the next entry."""
        context = self._context
        log = context.log
        return (
            context.is_member
            and self._attempt is None
            and log.next_seat == context.seat
            and log.head.ballot == context.promised
        )

    # Waiting.

    def wait(self, *, wants: bool) -> None:
        """Start or stop the wait for the lock; take the lock when the wait is over."""
        context = self._context
        if self._attempt is not None:
            if context.now_ns >= self._attempt.until_ns:
                self._fail()
            return
        if not wants or self.holds or not context.is_member:
            self._waiting_at = self._due_ns = None
        elif self._waiting_at != context.log.head:
            self._waiting_at = context.log.head
            self._due_ns = context.now_ns + self._wait_ns()
        elif self._due_ns is not None and context.now_ns >= self._due_ns:
            self._start_attempt()

    def shorten_wait(self) -> None:
        """Recompute the wait, because a peer connected or left."""
        self._waiting_at = None

    def _wait_ns(self) -> int:
        context = self._context
        settings = context.settings
        if context.peers.of_seat(context.log.members, context.log.next_seat) is None and not self._failures:
            return context.rank() * _GONE_WAIT_NS + context.rng.randrange(_GONE_WAIT_NS)
        wait_ns = min(settings.lock_wait_ns << min(self._failures, _DOUBLINGS_MAX), settings.lock_wait_ns_max)
        return wait_ns + context.rng.randrange(wait_ns)

    def _fail(self) -> None:
        self._attempt = self._waiting_at = None
        self._failures += 1
        self._context.counts["locks_failed"] += 1

    # Taking the lock.

    def _start_attempt(self) -> None:
        context = self._context
        log = context.log
        if set_without_quorum(context) is not None:
            self._waiting_at = None  # without a quorum nothing can be decided: wait for more members
            return
        ballot = Ballot(context.promised.round + 1, context.seat)
        context.promised = ballot
        until_ns = context.now_ns + self._wait_ns() + context.settings.lock_wait_ns
        self._attempt = _Attempt(ballot, log.members, log.decided, until_ns)
        context.counts["locks_asked"] += 1
        # To all peers, not only members: other nodes may know of a member that joined and that we do not know.
        context.send_all(context.peers.connected(), Lock(context.own_state()))

    def complete(self) -> Ballot | None:
        """Return our ballot once, when a quorum has granted it. The log is then the one that we adopted."""
        context, attempt = self._context, self._attempt
        if attempt is None or attempt.ballot != context.promised:
            return None
        log = context.log
        if not self._is_granted(attempt, attempt.members):
            return None
        if attempt.members != log.members:
            self._attempt = self._waiting_at = self._due_ns = None
            return None  # the work set changed during the attempt: the granters may not be a quorum of the new one
        found = self._chosen_log(attempt)
        if not all(self._is_granted(attempt, one) for one in sets_after(log.members, found)):
            return None
        self._attempt = self._waiting_at = self._due_ns = None
        self._failures = 0
        context.counts["locks_taken"] += 1
        context.publish_queue.displaced(log.attach(log.decided, found))
        return attempt.ballot

    def _is_granted(self, attempt: _Attempt, members: WorkSet) -> bool:
        context = self._context
        return is_quorum(members, {context.seat, *attempt.grants}, context.dead(members))

    def _chosen_log(self, attempt: _Attempt) -> list[SequenceEntry]:
        """The entries to adopt after our last decided entry: those of the grant with the longest log of the highest
        ballot.
        """
        log = self._context.log
        best = max(attempt.grants.values(), key=lambda grant: grant.peer_state.head, default=None)
        if best is None or best.peer_state.head <= log.head:
            return [held.entry for held in log.after(log.decided)]
        fitting = log.fit(best.previous, best.previous_hash, decode_entries(best.entries))
        assert fitting is not None, "two logs differ where both are decided"
        previous, entries = fitting
        assert previous + len(entries) == best.peer_state.head.index, "a grant contains all entries of the granter"
        return entries

    # Granting the lock.

    def on_lock(self, peer: SequencePeer, message: Lock) -> None:
        context, asker = self._context, message.peer_state
        member = SeatedMember(peer.identifier, asker.seat)
        if asker.promised.seat != asker.seat:
            return
        if not context.is_in_any_set(member):
            if asker.decided <= context.log.decided:
                context.send(peer, LockRefused(context.own_state(), Why.OUTSIDE))
        elif asker.promised < context.promised:
            context.send(peer, LockRefused(context.own_state(), Why.STALE))
        elif asker.decided < context.log.decided:
            context.send(peer, LockRefused(context.own_state(), Why.BEHIND))
        else:
            # Grant even without a seat of our own: other members may have the entry that gives us one.
            self._grant(peer, message)

    def _grant(self, peer: SequencePeer, message: Lock) -> None:
        context, asker = self._context, message.peer_state
        log = context.log
        self.promise(asker.promised)
        before, tail = log.hash_at(log.decided), b""
        assert before is not None
        if log.head > asker.head:
            tail = b"".join(held.entry.encoded for held in log.after(log.decided))
        context.send(peer, LockGranted(context.own_state(), asker.promised, log.decided, before, tail))

    def promise(self, ballot: Ballot) -> None:
        """From now on accept no entry under a lower ballot."""
        context = self._context
        if ballot <= context.promised:
            return
        context.promised = ballot
        if self._attempt is not None and self._attempt.ballot < ballot:
            self._fail()

    # Answers.

    def on_granted(self, peer: SequencePeer, grant: LockGranted) -> None:
        attempt = self._attempt
        if attempt is not None and grant.ballot == attempt.ballot == self._context.promised:
            attempt.grants[peer.last_state.seat] = grant

    def on_refused(self, peer: SequencePeer, refuse: LockRefused) -> None:
        """Act on the reason of a refusal. The core handles OUTSIDE and FORGOTTEN."""
        if refuse.why is Why.STALE:
            self.promise(refuse.peer_state.promised)
        elif refuse.why is Why.BEHIND and refuse.peer_state.state is not SequenceState.DSC:
            self._context.send(peer, Fill(self._context.own_state()))
