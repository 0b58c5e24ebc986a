"""Getting what is missing: agreed messages from others, and one's own standing back after it was lost.

`Fetcher` decides which node to ask for which messages, and what may be believed of the answer. `VoteRecovery` decides
when a node that may have lost its promises has learned enough to vote again. Neither knows elections or proposals.

    asking      which lives of mine do you know?               until a quorum of others has answered
    beginning   this is a new life of mine; what do you hold?  on disk here, then asked; on disk there, then answered
    fetching    until nothing that anybody answered with is missing here, on disk
    regained    sound again, in the highest regime that anybody answered with, and with no vote in it

Invariants: a message is taken only if it continues our agreed chain, its payloads have their digests, and others
confirm that it is agreed (`unconfirmed`) or our own log names it; a doubtful node learns from a quorum without itself,
or, if all were in doubt about their last record only (a power cut of everybody), from all; and if it learns that
others have the vote now, it learns from those.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election import LEAP_MAX, Election
from chaplain.journal.consensus.events import Regained
from chaplain.journal.consensus.hard_state import VotingState
from chaplain.journal.consensus.unconfirmed import SuppliedMessage, UnconfirmedSupplies, read_supplied
from chaplain.journal.messages.consensus import KNOWN_AGREED, Fetch, Lives, RecoveryAnswer, RecoveryQuestion, Supply
from chaplain.journal.model.log_entry import LogEntry

_LIKELY = 0.75


class Fetcher:
    def __init__(self, bench: ConsensusContext, election: Election) -> None:
        self._bench = bench
        self._supplies = UnconfirmedSupplies(bench, election)
        self._asked: int = 0
        self._source: int = 0
        """The peer whose last supply we could use; 0 if it was of no use."""
        self._probe_ns = 0
        """When a serializer may be asked again on the word of somebody who is not believed."""
        self.due_ns: int | None = None
        """When to give up on the one we asked."""
        self.tail = False
        """Also fetch what is held and not known to be agreed."""

    def want(self, now_ns: int, preferred: int = 0) -> None:
        """Ask somebody for what follows our agreed prefix, unless somebody has been asked."""
        bench = self._bench
        if self.due_ns is not None and now_ns < self.due_ns:
            return
        able = [peer for peer in bench.up if bench.firsts.get(peer, (1, 0))[0] <= bench.log.agreed + 1]
        able = [peer for peer in able if self._supplies.may_vouch(peer) or peer in bench.holders]
        able = [peer for peer in able if not self._supplies.has_confirmed(peer)] or able
        peers = [peer for peer in able if peer != self._asked] or able
        if not peers or not bench.room:
            self.due_ns = None
            return
        first_time = self.due_ns is None
        if first_time and self._source in able:
            # It has more of what we lack; an index-only serializer, or a peer that lacks it as well, has not.
            chosen = self._source
        else:
            chosen = preferred if first_time and preferred in able else bench.chance.choice(self._likely(peers))
        self._asked = chosen
        self.due_ns = now_ns + bench.settings.retry_ns
        tail = self.tail or bench.log.expected_next_hash() is not None
        bench.quill.tell(chosen, Fetch(self._supplies.wanted(chosen), tail))

    def probe(self, now_ns: int) -> None:
        """Ask one serializer whether it has more than we do: somebody says so who is not believed. Not too often."""
        bench = self._bench
        if self.due_ns is not None or now_ns < self._probe_ns:
            return
        peers = [peer for peer in bench.up if self._supplies.may_vouch(peer)]
        if peers and bench.room:
            self._probe_ns = now_ns + bench.settings.retry_ns
            bench.quill.tell(bench.chance.choice(peers), Fetch(bench.log.agreed + 1, False))

    def _likely(self, peers: list[int]) -> list[int]:
        """Where serializers are index-only, mostly those that have more than the order."""
        holders = [peer for peer in peers if peer in self._bench.holders]
        return holders if holders and self._bench.chance.random() < _LIKELY else peers

    def stop(self) -> None:
        self.due_ns = None

    def confirms(self, nodes: Collection[int]) -> bool:
        return self._supplies.confirms(nodes)

    def mark(self, index: int, digest: bytes) -> None:
        """A proven master calls this message agreed, and we do not have it."""
        self._supplies.mark(index, digest)

    def supplied(self, now_ns: int, node: int, supply: Supply, floor: int = 0) -> None:
        """Take what continues our prefix and is confirmed. `floor` is a ballot that the copy must not fall below."""
        agreed = supply.messages[:-1] if supply.tail_ballot else supply.messages
        taken: list[LogEntry] = []
        news = self._supplies.add(node, supply.index, supply.agreed, agreed)
        while (first := self._supplies.confirmed()) is not None and self._take(first, floor, taken):
            pass
        if supply.tail_ballot:
            self._take_tail(node, supply, floor, taken)
        if node == self._asked:
            self._source = node if taken else 0
            # Who has nothing for us is not asked again at once.
            self.due_ns = None if taken or news else now_ns + self._bench.settings.retry_ns
        if taken:
            self._bench.announce(now_ns, taken)
            self._bench.quill.write((), self._bench.written())

    def hold(self, index: int, ballot: int) -> None:
        """Hold the message of this index, which a serializer calls agreed and no quorum confirms, as a tail."""
        log, first = self._bench.log, self._supplies.first()
        if first is None or index != log.agreed + 1 or (index, ballot) < log.last():
            return
        message = self._held(first, ballot, bare=log.index_only)
        if message is not None and message.ballot == ballot and (log.tail is None or log.tail.ballot < ballot):
            self._bench.quill.write(log.store(message), self._bench.written())

    def _take(self, supplied: SuppliedMessage, floor: int, taken: list[LogEntry]) -> bool:
        """Whether the message could be taken: its payloads may be missing."""
        message = self._held(supplied, floor)
        if message is None:
            return False
        self._bench.quill.write(self._bench.log.append_agreed(message))
        taken.append(message)
        taken += self._bench.log.apply_own_copies()
        return True

    def _take_tail(self, node: int, supply: Supply, floor: int, taken: list[LogEntry]) -> None:
        """The sender does not know whether this is agreed. We may: if something of ours further on names it."""
        log = self._bench.log
        supplied = read_supplied(self._bench, node, supply.messages[-1])
        message = None if supplied is None else self._held(supplied, supply.tail_ballot, bare=log.index_only)
        if supplied is None or message is None:
            return
        if message.hash == log.expected_next_hash():
            self._take(supplied, floor, taken)
        elif self.tail and (message.index, message.ballot) > log.last() and node in self._bench.teachers.voters:
            self._bench.quill.write(log.store(message), self._bench.written())

    def _held(self, supplied: SuppliedMessage, floor: int, *, bare: bool = False) -> LogEntry | None:
        """The message, if it is the one that comes next here. Unless it may be bare, its payloads are here, too.

        It is held under the regime that its body names, in which it was proposed; under `floor`, if that is higher; and
        under no lower ballot than the one under which we hold it already, and may have acknowledged it.
        """
        log, body = self._bench.log, supplied.body
        if (body.index, body.previous) != (log.agreed + 1, log.agreed_hash):
            return None
        ballot, tail = max(floor, body.regime), log.tail
        if tail is not None and (tail.index, tail.hash) == (body.index, supplied.hash):
            ballot = max(ballot, tail.ballot)
        absent = supplied.bare and not bare
        payloads = self._bench.gather(body.data_entries, 0) if absent else supplied.payloads
        return None if payloads is None else LogEntry(body, supplied.raw, supplied.hash, ballot, payloads)


class VoteRecovery:
    """One attempt after the other to become sound."""

    def __init__(self, bench: ConsensusContext, fetcher: Fetcher, now_ns: int) -> None:
        self._bench = bench
        self._fetcher = fetcher
        fetcher.tail = True
        self._begin(now_ns)

    def _begin(self, now_ns: int) -> None:
        self._quorum = self._bench.teachers
        self._answers: dict[int, RecoveryAnswer] = {}
        self._nonce = self._bench.chance.getrandbits(64)
        self._life = 0
        self._target: tuple[int, int] | None = None
        self._reach = (-1, -1)
        self._impatient_ns = now_ns + self._bench.settings.patience_ns
        self._regaining = False
        self._floor = 0
        """Nothing that we promised and forgot was promised in a higher regime."""
        self._ask(now_ns)

    def _ask(self, now_ns: int) -> None:
        """Ask those that have not answered."""
        self.due_ns: int | None = now_ns + self._bench.settings.retry_ns
        for peer in self._others():
            if peer not in self._answers:
                self._bench.quill.promise(peer, RecoveryQuestion(self._nonce, self._life))
        self._proceed(now_ns)

    def woken(self, now_ns: int) -> None:
        if self.due_ns is None or now_ns < self.due_ns:
            return
        self.due_ns = now_ns + self._bench.settings.retry_ns
        if now_ns >= self._impatient_ns:
            self._say_why()
            self._begin(now_ns)
        elif self._target is None:
            self._ask(now_ns)
        else:
            self._pursue(now_ns)

    def _say_why(self) -> None:
        states = {node: VotingState(answer.standing).name.lower() for node, answer in self._answers.items()}
        index, ballot = self._bench.log.last()
        detail = {"answered": str(states), "wanted": str(self._target), "held": f"{index} under {ballot}"}
        self._bench.report("no vote until caught up with a quorum", 0, **detail)

    def answered(self, now_ns: int, node: int, answer: RecoveryAnswer) -> None:
        if answer.nonce != self._nonce or self._target is not None or node not in self._others():
            return
        if answer.regime - self._bench.keeper.regime > LEAP_MAX:
            return
        if self._life and answer.asker_life > self._life:
            self._begin(now_ns)  # a life of ours that we have forgotten, too
            return
        self._answers[node] = answer
        self._proceed(now_ns)

    def _proceed(self, now_ns: int) -> None:
        if not self._enough():
            return
        if self._life == 0:
            self._begin_life(now_ns)
        else:
            self._aim(now_ns)

    def _others(self) -> tuple[int, ...]:
        return tuple(node for node in self._quorum.voters if node != self._bench.settings.node)

    def _enough(self) -> bool:
        """Whether what was answered covers all that we can have promised."""
        states = [answer.standing for answer in self._answers.values()]
        sound = [node for node, answer in self._answers.items() if answer.standing == VotingState.SOUND]
        if self._quorum.reached(sound):
            return True
        everybody = len(states) == len(self._others())
        ours = self._bench.keeper.now.state
        # A node that lost records, or was wiped, is not explained by a torn last write.
        torn = {VotingState.SOUND, VotingState.DOUBTFUL}.issuperset(states)
        return everybody and torn and ours is VotingState.DOUBTFUL

    def _begin_life(self, now_ns: int) -> None:
        keeper = self._bench.keeper
        known = [answer.asker_life for answer in self._answers.values()]
        self._life = max([*known, keeper.now.life]) + 1
        keeper.begin_life(self._life, _all_lives(self._answers))
        self._answers = {}
        self._nonce = self._bench.chance.getrandbits(64)
        self._ask(now_ns)

    def _aim(self, now_ns: int) -> None:
        """Everything that we may have promised is at or below the furthest that was answered."""
        counted = self._counted()
        ballots = [answer.ballot % KNOWN_AGREED for answer in counted]
        self._floor = max([0, *ballots, *(answer.regime for answer in counted)])
        # A message that is known to be agreed was agreed under the floor, or an earlier regime. To hold it under the
        # floor is enough: we need not be convinced that it is agreed, which a single serializer may know.
        self._target = max(((answer.index, min(answer.ballot, self._floor)) for answer in counted), default=(0, 0))
        self._impatient_ns = now_ns + self._bench.settings.patience_ns
        self._bench.write_mark()  # what was found at start may not have been synced: now it will be
        self._pursue(now_ns)

    def _counted(self) -> list[RecoveryAnswer]:
        return [answer for answer in self._answers.values() if answer.standing != VotingState.WIPED]

    def supplied(self, now_ns: int, node: int, supply: Supply) -> None:
        if self._target is None or self._regaining:
            return
        if supply.tail_ballot > self._floor:
            supply = without_tail(supply)  # nobody answered so: it is news, or a lie that would use regimes up
        self._fetcher.supplied(now_ns, node, supply, floor=self._floor)
        if node in self._answers:
            self._fetcher.hold(self._target[0], self._floor)
        self._pursue(now_ns)

    def _pursue(self, now_ns: int) -> None:
        assert self._target is not None
        log = self._bench.log
        if log.last() > self._reach:
            self._reach = log.last()
            self._impatient_ns = now_ns + self._bench.settings.patience_ns
        if log.last() < self._target or not log.has_no_gap:
            self._fetcher.want(now_ns, self._furthest())
        elif self._bench.quorum != self._quorum:
            self._begin(now_ns)  # others have the vote now than those who answered: ask them, too
        elif log.durable >= log.last()[0]:
            self._regain()

    def _furthest(self) -> int:
        """Who answered that it holds most."""
        answers = self._answers
        return max(answers, key=lambda node: (answers[node].index, answers[node].ballot, -node), default=0)

    def durable(self, now_ns: int) -> None:
        """More of the log is on disk."""
        if self._target is not None and not self._regaining:
            self._pursue(now_ns)

    def _regain(self) -> None:
        keeper = self._bench.keeper
        regime = max(keeper.regime, self._floor, self._bench.log.agreed_by[0])
        self._regaining, self.due_ns = True, None
        keeper.regain(regime, _all_lives(self._answers), Regained(self._life))


def without_tail(supply: Supply) -> Supply:
    """The agreed messages of a supply alone."""
    return Supply(supply.index, supply.agreed, supply.messages[:-1]) if supply.tail_ballot else supply


def _all_lives(answers: dict[int, RecoveryAnswer]) -> Lives:
    lives: Lives = {}
    for answer in answers.values():
        for node, life in answer.lives.items():
            lives[node] = max(life, lives.get(node, 0))
    return lives
