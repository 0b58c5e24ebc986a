"""One-line mutations of the journal's order; each must be caught by a checker or by an assertion in the code."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

_BY = ("order", "assert", "host contract")


def _bug(name: str, module: str, old: str, new: str, seeds: int = 300, *, mode: str = "safety") -> Bug:
    return Bug(name, f"chaplain.journal.{module}", old, new, "order", _BY, seeds, mode)


BUGS = [
    _bug(
        "acknowledge before sync",
        "consensus.follower",
        "self._context.barrier.send_after_sync(node, acknowledge)",
        "self._context.barrier.send_now(node, acknowledge)",
    ),
    _bug(
        "vote before sync",
        "consensus.election",
        "context.barrier.send_after_sync(node, vote)",
        "context.barrier.send_now(node, vote)",
    ),
    _bug(
        "forget the vote",
        "consensus.hard_state",
        "        self._barrier.write((Replace(self._file, encode_hard_state(self.now)),), *proofs)",
        "        kept = msgspec.structs.replace(self.now, regime=0, vote=0)\n"
        "        self._barrier.write((Replace(self._file, encode_hard_state(kept)),), *proofs)",
    ),
    _bug(
        "vote twice in a regime",
        "consensus.election",
        "            return now.vote == node",
        "            return True",
    ),
    _bug(
        "count one's own vote before it is on disk",
        "consensus.election",
        "        self._context.barrier.write((), OwnVoteSynced(self._campaign_regime))",
        "        self.on_own_vote_synced(OwnVoteSynced(self._campaign_regime))",
    ),
    _bug(
        "count one's own copy before it is on disk",
        "consensus.master",
        "        context.barrier.write((), synced, context.log_synced_proof())",
        "        self._in_flight.tally.add(context.settings.node, context.hard_state.now.incarnation, {})",
    ),
    _bug(
        "count an acknowledgement of an old regime",
        "consensus.acks",
        "        if (message.regime, message.index, message.hash) == (self.regime, self.index, self.hash):",
        "        if (message.index, message.hash) == (self.index, self.hash):",
        600,
    ),
    _bug(
        "count an acknowledgement of another body",
        "consensus.acks",
        "        if (message.regime, message.index, message.hash) == (self.regime, self.index, self.hash):",
        "        if message.index == self.index:",
        600,
    ),
    _bug(
        "count half as a quorum",
        "model.quorum",
        "            if found <= len(members) // 2:",
        "            if found < len(members) // 2:",
    ),
    # Within one boot the sync hint reports the loss, too. Only a record damaged across a power cut shows this bug.
    caught_by_tests(
        "cut a record in doubt",
        "journal.storage.recovery",
        "    if cut is None or cut.verdict is ScanVerdict.TORN:",
        "    if cut is not None or cut is None:",
        "unit/journal/storage/test_recovery.py",
    ),
    _bug(
        "accept a stale regime",
        "consensus.core",
        "        if regime < current:\n            context.barrier",
        "        if regime < 0:\n            context.barrier",
    ),
    _bug(
        "skip the proposal of an inherited tail",
        "consensus.master",
        "        if context.log.tail is not None:\n            self._repropose_tail()",
        "        context.log.tail = None\n        if context.log.tail is not None:\n            self._repropose_tail()",
    ),
    _bug(
        "propose an inherited tail with a new body",
        "consensus.master",
        "        if context.log.tail is not None:\n            self._repropose_tail()",
        "        if context.log.tail is not None:\n"
        "            context.log.tail = None\n"
        "            self._propose(now_ns + 1, ())",
    ),
    _bug(
        "propose the next before the last is agreed",
        "consensus.master",
        "        return self._in_flight is not None or self._pre_replication",
        "        return self._pre_replication",
    ),
    _bug(
        "take over an inherited tail as agreed",
        "consensus.master",
        "        if context.log.tail is not None:\n            self._repropose_tail()",
        "        if context.log.tail is not None:\n"
        "            context.apply_tail(now_ns)\n"
        "            self._propose(now_ns, ())",
    ),
    _bug(
        "vote without comparing logs",
        "consensus.election",
        "        if not self._context.hard_state.sound or (message.index, message.ballot) < self._context.log.last():",
        "        if not self._context.hard_state.sound:",
    ),
    _bug(
        "compare logs by ballot first",
        "consensus.election",
        "(message.index, message.ballot) < self._context.log.last():",
        "(message.ballot, message.index) < self._context.log.last()[::-1]:",
        600,
    ),
    _bug(
        "a wiped disk votes at once",
        "consensus.hard_state",
        "    wiped = HardState(disk, VotingState.WIPED)",
        "    wiped = HardState(disk, VotingState.SOUND)",
    ),
    _bug(
        "regain standing from a minority",
        "consensus.vote_recovery",
        "        if self._quorum.reached(sound):",
        "        if sound:",
        600,
    ),
    _bug(
        "regain standing without fetching",
        "consensus.vote_recovery",
        "        if log.last() < self._target or not log.has_no_gap:",
        "        if not log.has_no_gap:",
        600,
    ),
    _bug(
        "mark before agreement",
        "consensus.master",
        "        return AgreedMark(self._regime, self._context.log.agreed, self._context.log.agreed_hash)",
        "        return (\n"
        "            AgreedMark(self._regime, tail.index, tail.hash)\n"
        "            if (tail := self._context.log.tail)\n"
        "            else AgreedMark(self._regime, self._context.log.agreed, self._context.log.agreed_hash)\n"
        "        )",
    ),
    _bug(
        "hold a message without its predecessor",
        "consensus.follower",
        "        if body.index > log.agreed + 1:",
        "        if body.index > log.agreed + 2:",
    ),
    _bug(
        "settle a tail of another hash",
        "consensus.follower",
        "tail.index == index == log.agreed + 1 and tail.hash == digest:",
        "tail.index == index == log.agreed + 1:",
        seeds=600,  # it takes one that kept an old tail, missed the new proposal, and hears the mark
    ),
    _bug(
        "go on after the disk failed",
        "consensus.core",
        '                self._stop(f"the disk failed: {event.reason}")',
        "                context.barrier.persisted(event.ticket)",
    ),
    _bug(
        "call the last record on disk agreed",
        "storage.recovery",
        "            if not linked and not marked:",
        "            if not linked and not marked and index + 2 in self.groups:",
    ),
    _bug(
        "never fetch what is missing",
        "consensus.core",
        "                self._fetcher.fetch(now_ns, election.master)",
        "                pass",
        100,
        mode="liveness",
    ),
    _bug(
        "follow a master whose election is not proven",
        "consensus.core",
        "        if (regime, node) != self._election.proven and not self._election.is_proven(node, regime):",
        "        if regime < 0:",
        40,
    ),
    _bug(
        "do not check the signatures of a proof",
        "consensus.election_proof",
        "    return all(is_vote_valid(key_of(voter), candidacy, votes[voter]) for voter in voters)",
        "    return True",
        200,
    ),
    _bug(
        "accept votes for another candidate",
        "consensus.election_proof",
        "        return self.genesis + put_number(self.regime, 4) + put_number(self.candidate, 1)",
        "        return self.genesis + put_number(self.regime, 4)",
        200,
    ),
    Bug(
        "let a mark confirm messages behind it",
        "chaplain.journal.consensus.unconfirmed",
        "marked = index <= self._master_mark[0] and self._hash_at",
        "marked = self._hash_at",
        "config",
        (*_BY, "config"),
        20,
    ),
    _bug(
        "take a supply as agreed on one node's word",
        "consensus.unconfirmed",
        "        return first if named or marked or self.is_confirmed_by(nodes) else None",
        "        return first",
        100,
    ),
    # A liar that gets votes proves no election with them, because a proof counts only for a node that may be master. It
    # delays elections, which no checker measures.
    caught_by_tests(
        "vote for a member that is no serializer",
        "journal.consensus.election",
        "        if not self._context.may_be_master(node) or message.regime - now.regime > LEAP_MAX:",
        "        if message.regime - now.regime > LEAP_MAX:",
        "unit/journal/consensus/test_election_proof.py",
        "member_without_a_vote",
    ),
]
