"""Who is master: pre-vote, vote, and when to try.

Decides which regime a node is in, whom it votes for, and when it campaigns. Refuses to know what a master does.

    follower  ──silence of the master, or its connection closed──▶  canvass (pre-vote; binds nobody)
    canvass   ──a quorum would vote──▶  stand: enter the regime, vote for oneself, on disk, then ask for votes
    stand     ──a quorum voted──▶  master
    any       ──a master of a later regime proves its election and speaks──▶  follower

Invariants: at most one vote a regime, signed, and on disk before it leaves; nobody votes for a log behind its own; a
node that hears its master, and whose connection to it stands, helps nobody to replace it; a node that is not sound
neither votes nor campaigns. A node that has no vote, as far as it knows, does not campaign, but votes if a serializer
asks: whoever counts may know more. A node votes only for serializers and nominated ones, and only what those say about
regimes is heeded: a member without a vote cannot raise regimes. A master is followed only when its election is proven.
"""

from __future__ import annotations

from chaplain.journal.consensus.acks import AckTally
from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.election_proof import Candidacy, is_vote_valid, proves_election, sign_vote
from chaplain.journal.consensus.events import Role, RoleChanged, Stood
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
"""Regimes further off than this were not reached by elections: whoever names one is mistaken, or wants to use them up.
A master that proves its election is followed into any regime."""


class Election:
    def __init__(self, bench: ConsensusContext, identity: Identity) -> None:
        """The identity signs this node's votes."""
        self._bench = bench
        self._identity = identity
        self.role = Role.OUT
        self.master = 0
        self._seen = 0
        """The highest regime that anybody has named: the next campaign goes beyond it."""
        self.due_ns = 0
        """When to campaign, if nothing happens before."""
        self._heard_ns = 0
        self._lost_ns = 0
        """When a connection to our master was closed last."""
        self._asked = 0
        self._canvass: AckTally | None = None
        self._votes: AckTally | None = None
        self._signed: SignedVotes = {}
        """The votes for us in the regime that we stand for."""
        self.proven = (0, 0)
        """The last regime whose election was proven to us, and its master."""
        self._unproven = (0, 0)
        """The last regime whose election was not proven by what its master showed, and that master."""
        self._handover = False
        self._claim: tuple[Quorum, tuple[int, int]] = (bench.quorum, (0, 0))

    # Becoming something.

    def rest(self, now_ns: int) -> None:
        """Follow nobody for now."""
        self._be(Role.FOLLOWER, 0)
        self._postpone(now_ns)

    def follow(self, now_ns: int, master: int, regime: int) -> None:
        """A master of our regime, or of a later one, has spoken."""
        keeper = self._bench.keeper
        assert regime >= keeper.regime, "a master of an earlier regime was followed"
        if regime > keeper.regime:
            keeper.enter(regime, master)
        self._be(Role.FOLLOWER, master)
        self._heard_ns = now_ns
        self._postpone(now_ns)

    def take_office(self) -> None:
        self._be(Role.MASTER, self._bench.settings.node)

    def leave(self) -> None:
        self._be(Role.OUT, 0)

    def _be(self, role: Role, master: int) -> None:
        self._canvass = self._votes = None
        changed = (role, master) != (self.role, self.master)
        self.role, self.master = role, master
        if changed:
            self._bench.quill.say(RoleChanged(role, self._bench.keeper.regime, master))

    def _postpone(self, now_ns: int) -> None:
        election_ns = self._bench.settings.election_ns
        self.due_ns = now_ns + election_ns + self._bench.chance.randrange(election_ns)

    # Who is master.

    def shown(self, node: int, proof: ElectionProof) -> None:
        """A node shows the votes that made it master; they are checked once a regime."""
        bench = self._bench
        if proof.regime < bench.keeper.regime or self.is_proven(node, proof.regime):
            return
        candidacy = self._candidacy(proof.regime, node)
        for quorum in bench.electorates if bench.may_be_master(node) else ():
            if proves_election(quorum, candidacy, proof.votes, bench.key_of):
                self.proven = (proof.regime, node)
                return
        if self._unproven != (proof.regime, node):  # it is shown again and again
            self._unproven = (proof.regime, node)
            bench.report("election not proven", node, regime=proof.regime, votes=str(sorted(proof.votes)))

    def is_proven(self, node: int, regime: int) -> bool:
        """Whether this node is known to be the master of this regime.

        An agreed message of the regime proves it, too: a quorum held it, and knew its master. A node needs that after
        a restart, if serializers were replaced since they voted.
        """
        if (regime, node) == self._bench.log.agreed_by:
            self.proven = (regime, node)
        return (regime, node) == self.proven

    # What happens around us.

    def hears_master(self, now_ns: int) -> bool:
        if self.role is Role.MASTER:
            return True
        recent = now_ns - self._heard_ns < self._bench.settings.election_ns
        return self.master != 0 and self.master in self._bench.up and recent

    def lost(self, now_ns: int, node: int) -> None:
        """A connection was closed. If it was the master's, that is news."""
        if node == self.master and self.role is Role.FOLLOWER:
            self._lost_ns = now_ns
            self.due_ns = min(self.due_ns, now_ns + self._bench.chance.randrange(self._bench.settings.news_ns))

    def hear_of(self, node: int, regime: int) -> None:
        """The node says that it is in this regime."""
        if self._bench.may_be_master(node) and regime - self._bench.keeper.regime <= LEAP_MAX:
            self._seen = max(self._seen, regime)

    def fit(self) -> bool:
        """Whether we could be master."""
        bench = self._bench
        able = bench.keeper.sound and bench.log.has_no_gap and bench.room and not bench.leaving
        return able and bench.settings.node in bench.quorum.voters

    def woken(self, now_ns: int) -> None:
        if self.role in (Role.FOLLOWER, Role.CANDIDATE) and now_ns >= self.due_ns:
            if self.fit():
                self._begin_canvass(now_ns)
            else:
                self._postpone(now_ns)

    # Canvassing.

    def _begin_canvass(self, now_ns: int) -> None:
        bench = self._bench
        self._be(Role.CANDIDATE, 0)
        self._postpone(now_ns)
        self._asked = max(bench.keeper.regime, self._seen) + 1
        self._canvass = AckTally(bench.quorum)
        index, ballot = bench.log.last()
        bench.quill.tell_all(bench.voters, Canvass(self._asked, index, ballot))
        self._count_canvass(bench.settings.node)

    def asked_canvass(self, now_ns: int, node: int, message: Canvass) -> None:
        bench = self._bench
        granted = (
            bench.keeper.sound
            and bench.may_be_master(node)
            and message.regime > bench.keeper.regime
            and (message.index, message.ballot) >= bench.log.last()
            and not self.hears_master(now_ns)
        )
        if granted and self.role is Role.FOLLOWER:
            # Whoever asks first goes first: two who stand at once would split the votes.
            self.due_ns = max(self.due_ns, now_ns + bench.settings.heartbeat_ns)
        bench.quill.tell(node, Canvassed(message.regime, granted, bench.keeper.regime))
        known = message.index if message.ballot == KNOWN_AGREED else message.index - 1
        if bench.log.agreed > known:
            bench.quill.tell(node, MarkHeard(bench.keeper.regime, bench.log.last()[0], bench.log.agreed))

    def canvassed(self, now_ns: int, node: int, message: Canvassed) -> None:
        self.hear_of(node, message.promised)
        if message.regime != self._asked:
            return
        if message.granted:
            self._count_canvass(node)
        elif self._canvass is not None and now_ns - self._lost_ns < self._bench.settings.election_ns:
            # We saw the master's connection close; whoever refuses may see it in a moment.
            self._try_soon(now_ns)

    def _count_canvass(self, node: int) -> None:
        if self._canvass is None:
            return
        self._canvass.add(node, 0, {})
        if self._canvass.reached({}) and self._asked > self._bench.keeper.regime:
            self._stand(handover=False)

    def called(self, now_ns: int) -> None:
        """The master hands over to us: no need to ask whether it is gone."""
        if self.role is Role.FOLLOWER and self.fit():
            self._be(Role.CANDIDATE, 0)
            self._postpone(now_ns)
            self._asked = self._bench.keeper.regime + 1
            self._stand(handover=True)

    # Voting.

    def _stand(self, handover: bool) -> None:
        self._canvass = None
        self._handover = handover
        # Who votes and what we hold belong together: later knowledge must not change one of them alone.
        self._claim = (self._bench.quorum, self._bench.log.last())
        self._bench.keeper.enter(self._asked, self._bench.settings.node)
        self._bench.quill.write((), Stood(self._asked))

    def stood(self, proof: Stood) -> None:
        """Our own vote is on disk: it counts, and others may be asked."""
        bench = self._bench
        if self.role is not Role.CANDIDATE or proof.regime != bench.keeper.regime:
            return
        quorum, (index, ballot) = self._claim
        self._votes = AckTally(quorum)
        self._votes.add(bench.settings.node, bench.keeper.now.life, bench.keeper.now.lives)
        self._signed = {
            bench.settings.node: sign_vote(self._identity, self._candidacy(proof.regime, bench.settings.node))
        }
        for peer in quorum.voters:
            if peer != bench.settings.node:
                bench.quill.tell(peer, AskVote(proof.regime, index, ballot, self._handover))

    def asked_vote(self, now_ns: int, node: int, message: AskVote) -> None:
        bench = self._bench
        self.hear_of(node, message.regime)
        if self._grants(now_ns, node, message):
            if message.regime > bench.keeper.regime:
                bench.keeper.enter(message.regime, node)
                self.rest(now_ns)
            now, signature = bench.keeper.now, sign_vote(self._identity, self._candidacy(message.regime, node))
            bench.quill.promise(node, Vote(message.regime, True, now.regime, now.life, now.lives, signature))
        else:
            bench.quill.tell(node, Vote(message.regime, False, bench.keeper.regime, 0, {}))

    def _candidacy(self, regime: int, candidate: int) -> Candidacy:
        return Candidacy(self._bench.settings.genesis, regime, candidate)

    def _grants(self, now_ns: int, node: int, message: AskVote) -> bool:
        now = self._bench.keeper.now
        if not self._bench.keeper.sound or (message.index, message.ballot) < self._bench.log.last():
            return False
        if not self._bench.may_be_master(node) or message.regime - now.regime > LEAP_MAX:
            return False
        if message.regime == now.regime:
            return now.vote == node
        return message.regime > now.regime and (message.handover or not self.hears_master(now_ns))

    def voted(self, now_ns: int, node: int, message: Vote) -> None:
        self.hear_of(node, message.promised)
        if self._votes is None or message.regime != self._bench.keeper.regime:
            return
        if message.granted:
            self._count_vote(node, message)
        elif message.promised >= message.regime:
            # Somebody else stood at the same time, and the votes may be split.
            self._try_soon(now_ns)

    def _count_vote(self, node: int, message: Vote) -> None:
        """Count a vote that everybody can check: with another in the proof nobody would follow us."""
        bench, votes = self._bench, self._votes
        assert votes is not None
        candidacy = self._candidacy(message.regime, bench.settings.node)
        if is_vote_valid(bench.key_of(node), candidacy, message.signature):
            votes.add(node, message.life, message.lives)
            self._signed[node] = message.signature
        else:
            bench.report("vote with an invalid signature", node, regime=message.regime)

    def _try_soon(self, now_ns: int) -> None:
        """Campaign again, at another moment than others."""
        beat_ns = self._bench.settings.heartbeat_ns
        self.due_ns = min(self.due_ns, now_ns + beat_ns // 4 + self._bench.chance.randrange(beat_ns))

    def won(self) -> bool:
        """A quorum has voted for us in the regime that we are in."""
        return self._votes is not None and self._votes.reached(self._bench.keeper.now.lives)

    def proof(self) -> ElectionProof:
        """The votes for us, to be shown to those who are to follow."""
        return ElectionProof(self._bench.keeper.regime, self._signed)
