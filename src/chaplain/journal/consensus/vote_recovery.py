"""May this node vote after a restart? Checks the recovered log at startup, and recovers the vote after data loss.

A vote or acknowledgement is a promise. A node that may have lost one must not vote: it could contradict the promise,
and two masters or two messages at one index could result. `check_recovered_log` takes the vote if the log shows a loss.
`VoteRecovery` then learns from the other serializers everything that this node may have promised:

| state     | this node | until |
|---|---|---|
| asking    | asks the others which of its incarnations they know | a quorum of others has answered |
| beginning | writes a new incarnation to disk, then asks what the others have stored; each of them writes the
              incarnation to disk before it answers | a quorum of others has answered |
| fetching  | fetches the messages that the answers name | all of them are on its disk |
| regained  | is sound, in the highest regime of the answers, with its vote there used | |

Does not decide elections or proposals.

Invariants:
- `check_recovered_log` never improves the voting state.
- A node recovers from a quorum that does not count itself. There is one exception: after a power cut of the whole
  cluster, every node may doubt its last record. If all serializers answer, and none has lost more than its last record,
  they continue.
- If the fetched messages show a newer configuration, the node asks the voters of that one, too.

docs/protocol/journal-order.md, "Lost memory" and "All in doubt", has the argument.
"""

from __future__ import annotations

from chaplain.journal.consensus.catch_up import Fetcher
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election import LEAP_MAX
from chaplain.journal.consensus.events import VoteRegained
from chaplain.journal.consensus.hard_state import VotingState
from chaplain.journal.messages.consensus import KNOWN_AGREED, Lives, RecoveryAnswer, RecoveryQuestion, Supply
from chaplain.journal.storage.recovery import Recovered


def check_recovered_log(context: ConsensusContext, found: Recovered) -> None:
    """Write the voting state at startup. Take the vote, and report why, if the log shows that records are missing."""
    hard_state = context.hard_state
    gone = "the log had records, and is empty now" if hard_state.now.log_begun and found.empty else ""
    lost = found.data_lost or bool(gone)
    worse = (VotingState.SOUND, VotingState.DOUBTFUL) if lost else (VotingState.SOUND,)
    if (found.doubt or gone) and hard_state.now.state in worse:
        what = "lost what was acknowledged" if lost else "in doubt"
        context.report(f"{what}: no vote until caught up", 0, reason=found.doubt or gone)
        hard_state.downgrade(VotingState.LOST if lost else VotingState.DOUBTFUL)
    else:
        hard_state.write()
    if not found.empty:
        hard_state.note_log_begun()


class VoteRecovery:
    """Tries to make this node sound again, from the start if an attempt makes no progress for `patience_ns`."""

    def __init__(self, context: ConsensusContext, fetcher: Fetcher, now_ns: int) -> None:
        self._context = context
        self._fetcher = fetcher
        fetcher.include_tail = True
        self._restart(now_ns)

    def _restart(self, now_ns: int) -> None:
        """Begin a new attempt."""
        self._quorum = self._context.latest_known_quorum
        """The voters that are asked."""
        self._answers: dict[int, RecoveryAnswer] = {}
        """Answers to the current question, by node."""
        self._nonce = self._context.chance.getrandbits(64)
        """Identifies the current question. Answers to an earlier one are ignored."""
        self._incarnation = 0
        """The new incarnation; 0 in the state asking."""
        self._target: tuple[int, int] | None = None
        """The log position (index, ballot) that this node must reach; None until the state fetching."""
        self._best_held = (-1, -1)
        """The highest log position so far, to notice progress."""
        self._patience_end_ns = now_ns + self._context.settings.patience_ns
        """When to start again if there is no progress until then."""
        self._regaining = False
        """The hard state that says "sound" is being written."""
        self._floor = 0
        """The highest regime in which this node may have made a promise that it forgot."""
        self._ask(now_ns)

    def _ask(self, now_ns: int) -> None:
        """Send the question to all nodes that have not answered."""
        self.due_ns: int | None = now_ns + self._context.settings.retry_ns
        for peer in self._others():
            if peer not in self._answers:
                # The new incarnation is on disk before another node learns of it. Otherwise a crash could use the same
                # number twice.
                self._context.barrier.send_after_sync(peer, RecoveryQuestion(self._nonce, self._incarnation))
        self._proceed(now_ns)

    def woken(self, now_ns: int) -> None:
        if self.due_ns is None or now_ns < self.due_ns:
            return
        self.due_ns = now_ns + self._context.settings.retry_ns
        if now_ns >= self._patience_end_ns:
            self._report_stalled()
            self._restart(now_ns)
        elif self._target is None:
            self._ask(now_ns)
        else:
            self._pursue(now_ns)

    def _report_stalled(self) -> None:
        states = {node: VotingState(answer.standing).name.lower() for node, answer in self._answers.items()}
        index, ballot = self._context.log.last()
        detail = {"answered": str(states), "wanted": str(self._target), "held": f"{index} under {ballot}"}
        self._context.report("no vote until caught up with a quorum", 0, **detail)

    def on_answer(self, now_ns: int, node: int, answer: RecoveryAnswer) -> None:
        if answer.nonce != self._nonce or self._target is not None or node not in self._others():
            return
        if answer.regime - self._context.hard_state.regime > LEAP_MAX:
            return
        if self._incarnation and answer.asker_life > self._incarnation:
            self._restart(now_ns)  # this node has forgotten that incarnation, too
            return
        self._answers[node] = answer
        self._proceed(now_ns)

    def _proceed(self, now_ns: int) -> None:
        if not self._answers_suffice():
            return
        if self._incarnation == 0:
            self._begin_incarnation(now_ns)
        else:
            self._set_target(now_ns)

    def _others(self) -> tuple[int, ...]:
        return tuple(node for node in self._quorum.voters if node != self._context.settings.node)

    def _answers_suffice(self) -> bool:
        """True if the answers cover everything that this node can have promised."""
        states = [answer.standing for answer in self._answers.values()]
        sound = [node for node, answer in self._answers.items() if answer.standing == VotingState.SOUND]
        if self._quorum.reached(sound):
            return True
        # The exception for a power cut of all nodes. If an acknowledged record was lost, it must be damaged on a
        # majority of disks. The nodes take that for torn writes of a record that was never acknowledged.
        all_answered = len(states) == len(self._others())
        own = self._context.hard_state.now.state
        # A torn last write explains "doubtful". It explains neither "lost" nor "wiped".
        torn = {VotingState.SOUND, VotingState.DOUBTFUL}.issuperset(states)
        return all_answered and torn and own is VotingState.DOUBTFUL

    def _begin_incarnation(self, now_ns: int) -> None:
        """Start an incarnation later than any that the others know, and ask again under it."""
        hard_state = self._context.hard_state
        known = [answer.asker_life for answer in self._answers.values()]
        self._incarnation = max([*known, hard_state.now.incarnation]) + 1
        hard_state.begin_incarnation(self._incarnation, _all_incarnations(self._answers))
        self._answers = {}
        self._nonce = self._context.chance.getrandbits(64)
        self._ask(now_ns)

    def _set_target(self, now_ns: int) -> None:
        """Compute the log position that this node must reach: the highest position in the answers. It covers every
        acknowledgement that may still count. A quorum with such an acknowledgement contains a node that answered, and
        that node has the message.
        """
        counted = self._counted()
        ballots = [answer.ballot % KNOWN_AGREED for answer in counted]
        self._floor = max([0, *ballots, *(answer.regime for answer in counted)])
        # A message that is agreed by an answer was agreed under the floor or an earlier regime, so this node may store
        # it under the floor. This needs no confirmation, because perhaps only one serializer knows that it is agreed.
        self._target = max(((answer.index, min(answer.ballot, self._floor)) for answer in counted), default=(0, 0))
        self._patience_end_ns = now_ns + self._context.settings.patience_ns
        self._context.write_mark()  # its sync also covers the records that were found at the start
        self._pursue(now_ns)

    def _counted(self) -> list[RecoveryAnswer]:
        """Answers of nodes that remember anything."""
        return [answer for answer in self._answers.values() if answer.standing != VotingState.WIPED]

    def on_supply(self, now_ns: int, node: int, supply: Supply) -> None:
        if self._target is None or self._regaining:
            return
        if supply.tail_ballot > self._floor:
            # No answer contained this ballot. It is newer, or a false one that would exhaust the regime numbers.
            supply = without_tail(supply)
        self._fetcher.on_supply(now_ns, node, supply, floor=self._floor)
        if node in self._answers:
            self._fetcher.hold_unconfirmed(self._target[0], self._floor)
        self._pursue(now_ns)

    def _pursue(self, now_ns: int) -> None:
        """Fetch, restart or finish, depending on how far the log is."""
        assert self._target is not None
        log = self._context.log
        if log.last() > self._best_held:
            self._best_held = log.last()
            self._patience_end_ns = now_ns + self._context.settings.patience_ns
        if log.last() < self._target or not log.has_no_gap:
            self._fetcher.fetch(now_ns, self._furthest())
        elif self._context.quorum != self._quorum:
            self._restart(now_ns)  # the fetched messages changed the voters: ask the new ones
        elif log.durable >= log.last()[0]:
            self._regain()

    def _furthest(self) -> int:
        """The node that answered with the highest log position."""
        answers = self._answers
        return max(answers, key=lambda node: (answers[node].index, answers[node].ballot, -node), default=0)

    def on_log_synced(self, now_ns: int) -> None:
        """More of the log is on disk."""
        if self._target is not None and not self._regaining:
            self._pursue(now_ns)

    def _regain(self) -> None:
        """Declare this node sound. The core continues with `VoteRegained`, after the hard state is on disk."""
        hard_state = self._context.hard_state
        regime = max(hard_state.regime, self._floor, self._context.log.agreed_by[0])
        self._regaining, self.due_ns = True, None
        hard_state.regain(regime, _all_incarnations(self._answers), VoteRegained(self._incarnation))


def without_tail(supply: Supply) -> Supply:
    """The supply without its tail: agreed messages only."""
    return Supply(supply.index, supply.agreed, supply.messages[:-1]) if supply.tail_ballot else supply


def _all_incarnations(answers: dict[int, RecoveryAnswer]) -> Lives:
    """The highest incarnation of each node in any answer."""
    highest: Lives = {}
    for answer in answers.values():
        for node, incarnation in answer.lives.items():
            highest[node] = max(incarnation, highest.get(node, 0))
    return highest
