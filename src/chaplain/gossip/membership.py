"""Who is here: joining, leaving, being asked about, coming back. gossip.txt's rules, as acts on list, clocks and voice.

Invariants:
- this node's incarnation is raised here and nowhere else, by one, when somebody holds it for silent or gone;
- a member leaves the list only by its own signed message, by this node's own timer, by another node's report that this
  node's timer has been ready to believe for T/2 (`FailureDetector.may_lose`), or by an agreed removal (`expel`);
  a single liar evicts nobody;
- nobody is added but by a card their own key signed.
"""

from __future__ import annotations

from chaplain.gossip import codec, payloads
from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import Accuse, Action, Cards, DiscoveredAck, GossipMessage, LeaveMessage, MessageType
from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.events import ALL, EventId, MemberChanged, MemberState, MemberView
from chaplain.gossip.failure_detector import FailureDetector, Move
from chaplain.gossip.member_record import INCARNATION_MAX, MemberRecord
from chaplain.gossip.members import BELIEVED, MemberEntry, MemberList, RecordVerdict
from chaplain.gossip.payloads import Health, LastHeard
from chaplain.link.events import Peer
from chaplain.units import MILLISECOND_NS

CARDS_PER_BODY = 32
WELCOME_CARDS_MAX = 256
REFUTE_PAUSE_NS = 100 * MILLISECOND_NS
_AGE_MAX_MS = 0xFFFFFFFF


class Membership:
    def __init__(self, voice: Dissemination, suspicion: FailureDetector, uri: str, incarnation: int) -> None:
        self._voice = voice
        self._members: MemberList = voice.members
        self._suspicion = suspicion
        self._uri = uri
        self._refuted_ns = -REFUTE_PAUSE_NS
        self._joins: dict[str, None] = {}
        """URIs to join through, until somebody acknowledges."""
        self._join_ns = 0
        self._owed: dict[int, EventId] = {}
        """Acknowledgements for newcomers that we have no session with yet."""
        self.absent = False
        """We said good-bye."""
        self.card = cards.make(voice.signer, uri, incarnation)
        voice.epoch = incarnation
        self._members.admit(self.card, contacted=True)
        self._members.contact(voice.identifier)

    def member(self, record: MemberEntry) -> MemberView:
        card = record.card
        me = card.identifier == self._voice.identifier
        heard_ns = self._voice.now_ns if me else self._suspicion.known_ns(card.identifier)
        graceful = record.proof is not None
        return MemberView(
            card.identifier, card.uri, card.key, card.incarnation, record.state, graceful, heard_ns, card.version
        )

    @property
    def joined(self) -> bool:
        """Nobody is left whom we wait for to acknowledge us."""
        return not self._joins

    # Joining.

    def join(self, uri: str) -> bool:
        """Begin to join; true if there is somebody to meet."""
        if self.absent:
            self.absent = False
            self._raise(self.card.incarnation)
        if uri == self._uri:
            return False
        self._joins[uri] = None
        self._join_ns = self._voice.now_ns + self._voice.settings.join_retry_ns
        return True

    def entered(self, peer: Peer) -> None:
        """A session with another node is up: show our card, and take it as heard."""
        record = self._members.get(peer.identifier)
        if record is not None and record.card.key != peer.key:
            self._voice.report("key_conflict", peer.identifier)
            return
        self._voice.sessions[peer.identifier] = peer.instance
        self._members.contact(peer.identifier)
        if self._members.is_present(peer.identifier):
            self._suspicion.watch(peer.identifier, self._voice.now_ns)
        self.heard(peer.identifier)
        self._voice.say(peer.identifier, Cards((self.card,)))
        if self._joins:
            self._discover()
        owed = self._owed.pop(peer.identifier, None)
        if owed is not None:
            self._voice.say(peer.identifier, DiscoveredAck(owed, self.card))

    def exited(self, peer: Peer, *, wanted: bool) -> None:
        """The connection broke. A new instance's session is not touched by the end of the old one's."""
        if self._voice.sessions.get(peer.identifier) != peer.instance:
            return
        del self._voice.sessions[peer.identifier]
        if not wanted:
            self._suspicion.release(peer.identifier)
        if self._members.is_present(peer.identifier) and self._suspicion.broke(peer.identifier, self._voice.now_ns):
            self._suspect(peer.identifier)

    def retry(self) -> None:
        """Say again that we are here, while nobody has acknowledged."""
        if self._joins and self._voice.now_ns >= self._join_ns:
            self._join_ns = self._voice.now_ns + self._voice.settings.join_retry_ns
            if self._voice.sessions:
                self._discover()

    def _discover(self) -> None:
        self._voice.fire(MessageType.DISCOVERED, payloads.put_card(self.card), action=Action.ACKNOWLEDGE)

    def on_discovered(self, message: GossipMessage, sender: int) -> None:
        """Acknowledge straight to the newcomer; who it contacted itself also tells it who else is here."""
        card = payloads.take_card(message.content)
        origin = message.id.origin
        if card.identifier != origin:
            self._voice.report("message_forged", sender, origin=origin)
            return
        self.on_card(card, sender)
        if not self._members.is_present(origin):
            return
        if not self._voice.say(origin, DiscoveredAck(message.id, self.card)) and len(self._owed) < WELCOME_CARDS_MAX:
            self._owed[origin] = message.id
        if sender == origin:
            self._welcome(origin)

    def on_acknowledge(self, acknowledge: DiscoveredAck, sender: int) -> None:
        if acknowledge.card.identifier != sender:
            self._voice.report("card_refused", sender, why="an acknowledgement carries its sender's own card")
            return
        self.on_card(acknowledge.card, sender)
        if acknowledge.id.origin == self._voice.identifier and self._joins:
            self._joins.clear()
            self._voice.report("joined", sender, members=len(self._members))

    def on_joined(self, message: GossipMessage, sender: int) -> None:
        self.on_card(payloads.take_card(message.content), sender)

    def _welcome(self, newcomer: int) -> None:
        others = [identifier for identifier in self._members.present if identifier != newcomer]
        if len(others) > WELCOME_CARDS_MAX:
            others = self._voice.rng.sample(others, WELCOME_CARDS_MAX)
        held = [record.card for identifier in others if (record := self._members.get(identifier)) is not None]
        self.show(newcomer, held)

    def show(self, identifier: int, held: list[MemberRecord], leaves: tuple[LeaveMessage, ...] = ()) -> None:
        """Send cards, a few to a body, and good-byes with the last."""
        while len(held) > CARDS_PER_BODY:
            self._voice.say(identifier, Cards(tuple(held[:CARDS_PER_BODY])))
            held = held[CARDS_PER_BODY:]
        if held or leaves:
            self._voice.say(identifier, Cards(tuple(held), leaves))

    # Cards.

    def on_cards(self, body: Cards, sender: int) -> None:
        for card in body.cards:
            self.on_card(card, sender)
        for leave in body.leaves:
            if not leave.graceful or leave.subject == self._voice.identifier or not self._is_news(leave):
                continue
            if codec.is_genuine(leave, self._voice.check):
                self._farewell(leave)
            else:
                self._voice.report("message_forged", sender, origin=leave.subject)

    def on_card(self, card: MemberRecord, sender: int) -> RecordVerdict:
        """Believe a card or not, whoever brought it."""
        if card.identifier == self._voice.identifier:
            return self._on_own_card(card, sender)
        record = self._members.get(card.identifier)
        old = None if record is None else record.state
        contacted = card.identifier in self._voice.sessions
        verdict = self._members.admit(card, contacted=contacted)
        if verdict in BELIEVED:
            self._believed(card.identifier, old, by_contact=verdict is RecordVerdict.NEW and sender == card.identifier)
        elif verdict in (RecordVerdict.STALE, RecordVerdict.LEFT) and sender == card.identifier:
            self._put_right(card.identifier)
        elif verdict in (RecordVerdict.FORGED, RecordVerdict.CONFLICT, RecordVerdict.FULL):
            self._voice.report("card_refused", sender, why=verdict.value, subject=card.identifier)
        return verdict

    def _believed(self, identifier: int, old: MemberState | None, *, by_contact: bool) -> None:
        if identifier in self._voice.sessions:
            self._members.contact(identifier)
            self._suspicion.watch(identifier, self._voice.now_ns)
        self._suspicion.renewed(identifier)
        self._changed(identifier, old)
        if by_contact:
            record = self._members.get(identifier)
            assert record is not None
            self._suspicion.heard(identifier, self._voice.now_ns)
            self._voice.fire(MessageType.JOINED, payloads.put_card(record.card), action=Action.UPDATE)

    def _on_own_card(self, card: MemberRecord, sender: int) -> RecordVerdict:
        if card.incarnation <= self.card.incarnation:
            return RecordVerdict.KNOWN
        if card.key != self._voice.signer.key or not cards.is_genuine(card, self._voice.check):
            self._voice.report("card_refused", sender, why=RecordVerdict.FORGED.value, subject=card.identifier)
            return RecordVerdict.FORGED
        # A run of ours before this one went further than our clock let us guess.
        self._raise(card.incarnation)
        self._voice.epoch = max(self._voice.epoch, self.card.incarnation)
        return RecordVerdict.NEWER

    def _put_right(self, identifier: int) -> None:
        """Its owner shows an outdated card: show the one we hold, and tell if it is held for gone."""
        record = self._members.get(identifier)
        assert record is not None
        self._voice.say(identifier, Cards((record.card,)))
        if record.state is MemberState.LEFT:
            self._voice.say(identifier, Accuse(record.card.incarnation))

    # Being here.

    def heard(self, identifier: int) -> None:
        """Something came from this node over a session of its own. If it is held for gone, it should know."""
        self.note(identifier)
        record = self._members.get(identifier)
        if record is not None and record.state is MemberState.LEFT and record.proof is None:
            self._voice.say(identifier, Accuse(record.card.incarnation))

    def note(self, identifier: int) -> None:
        if self._suspicion.heard(identifier, self._voice.now_ns):
            self._clear(identifier)

    def on_accuse(self, accuse: Accuse, sender: int) -> None:
        self._defend(accuse.incarnation, sender)

    def on_refuted(self, message: GossipMessage, sender: int) -> None:
        card = payloads.take_card(message.content)
        if card.identifier != message.id.origin:
            self._voice.report("message_forged", sender, origin=message.id.origin)
        elif self.on_card(card, sender) in (RecordVerdict.NEW, RecordVerdict.NEWER, RecordVerdict.KNOWN):
            self._vouched(card.identifier, self._voice.now_ns)

    def on_health(self, message: GossipMessage) -> None:
        """Say when we heard the subject ourselves; the subject itself refutes, which overrides all of us."""
        health = payloads.take_health(message.content)
        origin = message.id.origin
        if health.subject == self._voice.identifier:
            self._defend(health.incarnation, origin)
            return
        record = self._members.get(health.subject)
        if record is None or record.state is MemberState.LEFT:
            return
        age_ns = self._suspicion.direct_age_ns(health.subject, self._voice.now_ns)
        if age_ns is not None:
            status = LastHeard(health.subject, record.card.incarnation, min(age_ns // MILLISECOND_NS, _AGE_MAX_MS))
            self._voice.fire(MessageType.STATUS, payloads.put_status(status), target=origin)
        elif health.incarnation == record.card.incarnation and not self._suspicion.is_watched(health.subject):
            self._accused(health.subject, lost=False)

    def on_status(self, message: GossipMessage) -> None:
        status = payloads.take_status(message.content)
        record = self._members.get(status.subject)
        if record is None or not self._members.is_present(message.id.origin):
            return
        self._vouched(status.subject, self._voice.now_ns - status.age_ms * MILLISECOND_NS)

    def _vouched(self, identifier: int, heard_ns: int) -> None:
        if self._suspicion.vouched(identifier, heard_ns, self._voice.now_ns):
            self._clear(identifier)

    def judge(self) -> None:
        """Act on what the clocks call for."""
        for move, identifier in self._suspicion.moves(self._voice.now_ns):
            match move:
                case Move.SUSPECT:
                    self._suspect(identifier)
                case Move.ASK:
                    self._ask(identifier)
                case Move.CLEAR | Move.DROP:
                    self._suspicion.unwatch(identifier)
                    self._clear(identifier)
                case Move.LOSE:
                    self._lose(identifier)

    def _suspect(self, identifier: int) -> None:
        if self._members.suspect(identifier):
            self._changed(identifier, MemberState.ALIVE)
        self._ask(identifier)

    def _ask(self, identifier: int) -> None:
        record = self._members.get(identifier)
        if record is not None and record.state is not MemberState.LEFT:
            health = Health(identifier, record.card.incarnation)
            self._voice.fire(MessageType.HEALTH, payloads.put_health(health), action=Action.STATUS)

    def _clear(self, identifier: int) -> None:
        if self._members.clear(identifier):
            self._changed(identifier, MemberState.SUSPECT)

    def on_claim(self, identifier: int, incarnation: int) -> None:
        """Somebody's list has this member as gone, at this incarnation."""
        if identifier == self._voice.identifier:
            self._defend(incarnation, ALL)
        elif not self._voice.say(identifier, Accuse(incarnation)):
            health = Health(identifier, incarnation)
            self._voice.fire(MessageType.HEALTH, payloads.put_health(health), action=Action.STATUS, target=identifier)
            self._accused(identifier, lost=True)

    def _accused(self, identifier: int, *, lost: bool) -> None:
        """Somebody else's word against a member we do not hear: wait T for its own before we believe it."""
        if self._suspicion.accuse(identifier, self._voice.now_ns, lost=lost) and self._members.suspect(identifier):
            self._changed(identifier, MemberState.ALIVE)

    def _defend(self, incarnation: int, accuser: int) -> None:
        if self.absent:
            return
        if incarnation < self.card.incarnation:
            content = payloads.put_card(self.card)
            self._voice.fire(MessageType.REFUTED, content, action=Action.UPDATE, target=accuser)
        elif incarnation == self.card.incarnation:
            if self._voice.now_ns - self._refuted_ns >= REFUTE_PAUSE_NS:
                self._refuted_ns = self._voice.now_ns
                self._raise(incarnation)
        else:
            # No card of ours says so: a claim is no reason to climb, or a liar could drive us to the end of numbers.
            self._voice.counts["claims_ignored"] += 1

    def _raise(self, above: int) -> None:
        if above >= INCARNATION_MAX:
            self._voice.report("incarnation_exhausted", self._voice.identifier, advice="give this node a new identity")
            return
        assert above >= self.card.incarnation
        self.card = cards.make(self._voice.signer, self._uri, above + 1)
        self._members.admit(self.card, contacted=True)
        self._voice.fire(MessageType.REFUTED, payloads.put_card(self.card), action=Action.UPDATE)

    # Leaving.

    def leave(self) -> None:
        """Say good-bye to everybody."""
        if not self.absent:
            self.absent = True
            self._joins.clear()
            self._voice.fire_leave(self._voice.identifier, self.card.incarnation)

    def on_leave(self, leave: LeaveMessage) -> None:
        if leave.subject == self._voice.identifier:
            self._defend(leave.incarnation, leave.id.origin)
        elif leave.graceful:
            self._farewell(leave)
        elif self._members.is_present(leave.id.origin):
            self._on_leave_on_behalf(leave)

    def expel(self, keys: frozenset[bytes]) -> None:
        """These were removed from the cluster: they are taken off the list, whatever they or others say."""
        self._members.expelled = keys
        for identifier in list(self._members.present):
            record = self._members.get(identifier)
            assert record is not None
            if record.card.key in keys:
                self._take_off(identifier, record)

    def _is_news(self, leave: LeaveMessage) -> bool:
        """Of a member we know that has not said good-bye yet."""
        record = self._members.get(leave.subject)
        return record is not None and record.proof is None

    def _farewell(self, leave: LeaveMessage) -> None:
        record = self._members.get(leave.subject)
        old = MemberState.LEFT if record is None else record.state
        if self._members.bid_farewell(leave, self._voice.now_ns):
            self._suspicion.unwatch(leave.subject)
            self._changed(leave.subject, old)

    def _on_leave_on_behalf(self, leave: LeaveMessage) -> None:
        record = self._members.get(leave.subject)
        if record is None or record.state is MemberState.LEFT or leave.incarnation != record.card.incarnation:
            return
        if self._suspicion.may_lose(leave.subject, self._voice.now_ns):
            self._take_off(leave.subject, record)
        else:
            self._voice.counts["leaves_refused"] += 1
            self._accused(leave.subject, lost=True)

    def _lose(self, identifier: int) -> None:
        record = self._members.get(identifier)
        if record is None or record.state is MemberState.LEFT:
            self._suspicion.unwatch(identifier)
            return
        ours = self._suspicion.is_watched(identifier)
        self._take_off(identifier, record)
        if ours:
            self._voice.fire_leave(identifier, record.card.incarnation)

    def _take_off(self, identifier: int, record: MemberEntry) -> None:
        old = record.state
        self._members.lose(identifier, record.card.incarnation, self._voice.now_ns)
        self._suspicion.unwatch(identifier)
        self._changed(identifier, old)

    def _changed(self, identifier: int, old: MemberState | None) -> None:
        record = self._members.get(identifier)
        assert record is not None
        self._voice.counts[f"members_{record.state}"] += 1
        self._voice.out.append(MemberChanged(self.member(record), old))
