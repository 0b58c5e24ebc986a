"""Master election: pre-vote (Canvass), vote (AskVote), and the timer that starts them.

Decides the regime (term) of this node, its votes, and when it campaigns. Does not know what a master does.

    follower    no sign of the master for election_ns to 2 election_ns,
                or its connection closed                ──▶  candidate: pre-vote, which binds no node
    candidate   a quorum would vote for it              ──▶  enters the next regime, votes for itself, syncs the vote
                                                             to disk, then asks for votes
    candidate   a quorum voted for it                   ──▶  master
    any role    a master of this or a later regime proves its election and sends a message  ──▶  follower

Invariants:
- A node gives at most one vote in a regime. The vote is signed, and is on disk before it leaves.
- A node does not vote for a candidate whose log is behind its own. Logs compare by (last index, ballot of the last).
- A node that hears its master over an open connection grants no pre-vote and no vote, except in a handover.
- Only a sound node votes and campaigns.
- A node that is not a voter by its own configuration does not campaign. It votes if a serializer asks, because the
  candidate counts the votes and may know a newer configuration.
- A node votes only for serializers and nominated nodes, and accepts a higher regime only from these. A member without a
  vote therefore cannot raise the regime.
- A node follows a master only after the master proved its election.
"""

from __future__ import annotations

from chaplain.journal.consensus.acks import AckTally
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election_proof import Candidacy, is_vote_valid, proves_election, sign_vote
from chaplain.journal.consensus.events import OwnVoteSynced, Role, RoleChanged
from chaplain.journal.messages.consensus import (
    KNOWN_AGREED,
    AskVote,
    Canvass,
    Canvassed,
    ElectionProof,
    MarkHeard,
    SignedVotes,
    Vote,
)
from chaplain.journal.model.quorum import Quorum
from chaplain.link.auth.identity import Identity

LEAP_MAX = 1 << 20
"""A regime that is further ahead than this cannot be the result of elections: its sender is faulty, or wants to exhaust
the 32-bit numbers. This node ignores it. It follows a master that proves its election into any regime."""


class Election:
    """Role, master and campaign of this node."""

    def __init__(self, context: ConsensusContext, identity: Identity) -> None:
        """`identity` signs this node's votes."""
        self._context = context
        self._identity = identity
        self.role = Role.OUT
        self.master = 0
        self._highest_regime_seen = 0
        """The highest regime that a possible master has named. The next campaign goes beyond it."""
        self.due_ns = 0
        """Election timer: when to start a campaign."""
        self._timeout_ns = 0
        """The time that the timer was set to. It is random between `election_ns` and twice that."""
        self._master_heard_ns = 0
        """When this node heard its master last."""
        self._master_lost_ns = 0
        """When the connection to the master was closed last."""
        self._campaign_regime = 0
        """The regime of this node's last campaign."""
        self._pre_votes: AckTally | None = None
        """Pre-votes granted to this node; None if no pre-vote is under way."""
        self._votes: AckTally | None = None
        """Votes for this node; None if it is not asking for votes."""
        self._signed_votes: SignedVotes = {}
        """Signatures of the counted votes. They are the proof of the election."""
        self.proven = (0, 0)
        """The last regime whose election was proved to this node, and its master."""
        self._reported_unproven = (0, 0)
        """The last regime and sender of a proof that was not sufficient, to report it once."""
        self._handover = False
        """True if the previous master requested this campaign by a handover."""
        self._campaign: tuple[Quorum, tuple[int, int]] = (context.quorum, (0, 0))
        """Quorum and last log position (index, ballot) at the start of the campaign."""

    # Changes of role.

    def become_follower(self, now_ns: int) -> None:
        """Become a follower without a master, and restart the election timer."""
        self._become(Role.FOLLOWER, 0)
        self._reset_timer(now_ns)

    def follow(self, now_ns: int, master: int, regime: int) -> None:
        """Become a follower of a proven master of this regime or a later one."""
        current = self._context.hard_state.now.regime
        assert regime >= current, "a master of an earlier regime was followed"
        if regime > current:
            self._context.hard_state.enter_regime(regime, master)
        if regime > current or (self.role, self.master) != (Role.FOLLOWER, master):
            self._become(Role.FOLLOWER, master)
            self._reset_timer(now_ns)
        self._master_heard_ns = now_ns
        self.due_ns = now_ns + self._timeout_ns

    def become_master(self) -> None:
        self._become(Role.MASTER, self._context.settings.node)

    def stop_voting(self) -> None:
        """Leave elections: the node is recovering its vote, has failed, or is stopping."""
        self._become(Role.OUT, 0)

    def _become(self, role: Role, master: int) -> None:
        self._pre_votes = self._votes = None
        changed = (role, master) != (self.role, self.master)
        self.role, self.master = role, master
        if changed:
            self._context.barrier.emit(RoleChanged(role, self._context.hard_state.regime, master))

    def _reset_timer(self, now_ns: int) -> None:
        """Restart the election timer with a new random time-out, so that nodes rarely campaign at the same time. A sign
        of the master restarts the timer with the same time-out.
        """
        election_ns = self._context.settings.election_ns
        self._timeout_ns = election_ns + self._context.chance.randrange(election_ns)
        self.due_ns = now_ns + self._timeout_ns

    # Proof of election.

    def check_proof(self, node: int, proof: ElectionProof) -> None:
        """Check the signed votes that a node shows as proof of its election. A proof is checked once in a regime."""
        context = self._context
        if proof.regime < context.hard_state.regime or self.is_proven(node, proof.regime):
            return
        candidacy = self._candidacy(proof.regime, node)
        for quorum in context.electorates if context.may_be_master(node) else ():
            if proves_election(quorum, candidacy, proof.votes, context.key_of):
                self.proven = (proof.regime, node)
                return
        if self._reported_unproven != (proof.regime, node):  # a master repeats its proof
            self._reported_unproven = (proof.regime, node)
            context.report("election not proven", node, regime=proof.regime, votes=str(sorted(proof.votes)))

    def is_proven(self, node: int, regime: int) -> bool:
        """True if this node knows that `node` is the master of `regime`.

        An agreed message of the regime proves its master, too, because a quorum stored it and knew the master. A node
        needs that after a restart if the serializers that voted have been replaced since.
        """
        if (regime, node) == self._context.log.agreed_by:
            self.proven = (regime, node)
        return (regime, node) == self.proven

    # Signs of the master and of other regimes.

    def hears_master(self, now_ns: int) -> bool:
        """True if the master sent something within `election_ns`, and its connection is open."""
        if self.role is Role.MASTER:
            return True
        recent = now_ns - self._master_heard_ns < self._context.settings.election_ns
        return self.master != 0 and self.master in self._context.connected and recent

    def peer_disconnected(self, now_ns: int, node: int) -> None:
        """A connection was closed. If it was the master's, start a campaign within `news_ns`."""
        if node == self.master and self.role is Role.FOLLOWER:
            self._master_lost_ns = now_ns
            self.due_ns = min(self.due_ns, now_ns + self._context.chance.randrange(self._context.settings.news_ns))

    def note_regime(self, node: int, regime: int) -> None:
        """A node reports its regime. Remember it, so that the next campaign goes beyond it."""
        if self._context.may_be_master(node) and regime - self._context.hard_state.regime <= LEAP_MAX:
            self._highest_regime_seen = max(self._highest_regime_seen, regime)

    def can_be_master(self) -> bool:
        """True if this node may campaign: sound, no gap in the log, disk space, not stopping, and a voter."""
        context = self._context
        able = context.hard_state.sound and context.log.has_no_gap and context.has_space and not context.stopping
        return able and context.settings.node in context.quorum.voters

    def woken(self, now_ns: int) -> None:
        if self.role in (Role.FOLLOWER, Role.CANDIDATE) and now_ns >= self.due_ns:
            if self.can_be_master():
                self._begin_pre_vote(now_ns)
            else:
                self._reset_timer(now_ns)

    # Pre-vote.

    def _begin_pre_vote(self, now_ns: int) -> None:
        """Ask all voters whether they would vote for this node, without entering a regime. A node that is cut off
        therefore does not raise the regime again and again, and does not depose a healthy master when it returns
        (Raft's pre-vote).
        """
        context = self._context
        self._become(Role.CANDIDATE, 0)
        self._reset_timer(now_ns)
        self._campaign_regime = max(context.hard_state.regime, self._highest_regime_seen) + 1
        self._pre_votes = AckTally(context.quorum)
        index, ballot = context.log.last()
        context.barrier.send_now_to_all(context.other_voters, Canvass(self._campaign_regime, index, ballot))
        self._count_pre_vote(context.settings.node)

    def on_canvass(self, now_ns: int, node: int, message: Canvass) -> None:
        """Answer a pre-vote request. The answer binds neither node."""
        context = self._context
        granted = (
            context.hard_state.sound
            and context.may_be_master(node)
            and message.regime > context.hard_state.regime
            and (message.index, message.ballot) >= context.log.last()
            and not self.hears_master(now_ns)
        )
        if granted and self.role is Role.FOLLOWER:
            # This node waits a heartbeat with its own campaign: two candidates at once would split the votes.
            self.due_ns = max(self.due_ns, now_ns + context.settings.heartbeat_ns)
        context.barrier.send_now(node, Canvassed(message.regime, granted, context.hard_state.regime))
        known = message.index if message.ballot == KNOWN_AGREED else message.index - 1
        if context.log.agreed > known:
            context.barrier.send_now(
                node, MarkHeard(context.hard_state.regime, context.log.last()[0], context.log.agreed)
            )

    def on_canvassed(self, now_ns: int, node: int, message: Canvassed) -> None:
        self.note_regime(node, message.promised)
        if message.regime != self._campaign_regime:
            return
        if message.granted:
            self._count_pre_vote(node)
        elif self._pre_votes is not None and now_ns - self._master_lost_ns < self._context.settings.election_ns:
            # The master's connection to this node is closed. The node that refused may notice the same in a moment.
            self._retry_soon(now_ns)

    def _count_pre_vote(self, node: int) -> None:
        if self._pre_votes is None:
            return
        self._pre_votes.add(node, 0, {})
        if self._pre_votes.reached({}) and self._campaign_regime > self._context.hard_state.regime:
            self._begin_election(handover=False)

    def on_handover(self, now_ns: int) -> None:
        """The master hands over to this node: campaign without a pre-vote, because the master is about to leave."""
        if self.role is Role.FOLLOWER and self.can_be_master():
            self._become(Role.CANDIDATE, 0)
            self._reset_timer(now_ns)
            self._campaign_regime = self._context.hard_state.regime + 1
            self._begin_election(handover=True)

    # Vote.

    def _begin_election(self, handover: bool) -> None:
        """Enter the campaign's regime and vote for this node. `on_own_vote_synced` continues after the sync."""
        self._pre_votes = None
        self._handover = handover
        # Votes must be counted against the configuration that belongs to the log position in the request. A message
        # that becomes agreed during the campaign may change the quorum, so both are fixed here.
        self._campaign = (self._context.quorum, self._context.log.last())
        self._context.hard_state.enter_regime(self._campaign_regime, self._context.settings.node)
        # The candidate asks for votes only after its own vote is on disk: if it crashed before that, it could vote for
        # another candidate in the same regime.
        self._context.barrier.write((), OwnVoteSynced(self._campaign_regime))

    def on_own_vote_synced(self, proof: OwnVoteSynced) -> None:
        """The vote for this node is on disk: count it, and ask the other voters."""
        context = self._context
        if self.role is not Role.CANDIDATE or proof.regime != context.hard_state.regime:
            return
        quorum, (index, ballot) = self._campaign
        self._votes = AckTally(quorum)
        self._votes.add(context.settings.node, context.hard_state.now.incarnation, context.hard_state.now.incarnations)
        self._signed_votes = {
            context.settings.node: sign_vote(self._identity, self._candidacy(proof.regime, context.settings.node))
        }
        for peer in quorum.voters:
            if peer != context.settings.node:
                context.barrier.send_now(peer, AskVote(proof.regime, index, ballot, self._handover))

    def on_ask_vote(self, now_ns: int, node: int, message: AskVote) -> None:
        """Grant or refuse a vote."""
        context = self._context
        self.note_regime(node, message.regime)
        if self._may_grant(now_ns, node, message):
            if message.regime > context.hard_state.regime:
                context.hard_state.enter_regime(message.regime, node)
                self.become_follower(now_ns)
            now, signature = context.hard_state.now, sign_vote(self._identity, self._candidacy(message.regime, node))
            vote = Vote(message.regime, True, now.regime, now.incarnation, now.incarnations, signature)
            # The vote leaves after it is on disk. A node that forgot its vote in a crash could vote again in this
            # regime, and two masters could be elected.
            context.barrier.send_after_sync(node, vote)
        else:
            context.barrier.send_now(node, Vote(message.regime, False, context.hard_state.regime, 0, {}))

    def _candidacy(self, regime: int, candidate: int) -> Candidacy:
        return Candidacy(self._context.settings.genesis, regime, candidate)

    def _may_grant(self, now_ns: int, node: int, message: AskVote) -> bool:
        now = self._context.hard_state.now
        # Refusing candidates with a shorter log preserves every agreed message: the quorum that agreed on it shares a
        # node with every quorum that elects a master (Raft's election restriction).
        if not self._context.hard_state.sound or (message.index, message.ballot) < self._context.log.last():
            return False
        if not self._context.may_be_master(node) or message.regime - now.regime > LEAP_MAX:
            return False
        if message.regime == now.regime:
            # One vote in a regime. The same candidate may ask again, because the answer may be lost.
            return now.vote == node
        return message.regime > now.regime and (message.handover or not self.hears_master(now_ns))

    def on_vote(self, now_ns: int, node: int, message: Vote) -> None:
        self.note_regime(node, message.promised)
        if self._votes is None or message.regime != self._context.hard_state.regime:
            return
        if message.granted:
            self._count_vote(node, message)
        elif message.promised >= message.regime:
            # Another candidate is in the same regime or a later one: the votes may be split.
            self._retry_soon(now_ns)

    def _count_vote(self, node: int, message: Vote) -> None:
        """Count a vote if its signature is valid. A proof with an invalid signature would convince no node."""
        context, votes = self._context, self._votes
        assert votes is not None
        candidacy = self._candidacy(message.regime, context.settings.node)
        if is_vote_valid(context.key_of(node), candidacy, message.signature):
            votes.add(node, message.life, message.lives)
            self._signed_votes[node] = message.signature
        else:
            context.report("vote with an invalid signature", node, regime=message.regime)

    def _retry_soon(self, now_ns: int) -> None:
        """Campaign again after a short random time, so that two candidates do not collide again."""
        beat_ns = self._context.settings.heartbeat_ns
        self.due_ns = min(self.due_ns, now_ns + beat_ns // 4 + self._context.chance.randrange(beat_ns))

    def won(self) -> bool:
        """True if a quorum has voted for this node in its current regime."""
        return self._votes is not None and self._votes.reached(self._context.hard_state.now.incarnations)

    def proof(self) -> ElectionProof:
        """The signed votes for this node, which other nodes check before they follow it."""
        return ElectionProof(self._context.hard_state.regime, self._signed_votes)
