"""Membership: joining, leaving, suspicion, refutation and return of members, by the rules of gossip.txt.

It acts on the member list, the failure detector and dissemination.

Invariants:
- only this module raises this node's incarnation, by one, when another node believes that it is silent or has left;
- a member leaves the list only by its own signed message, by this node's own timer, by another node's report if this
  node's own timer confirms it (`FailureDetector.may_lose`), or by an agreed removal (`expel`). A single malicious
  member cannot evict others;
- a member is added only by a card that its own key signed.
"""

from __future__ import annotations

from chaplain.gossip import codec, payloads
from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import (
    Accuse,
    Action,
    Cards,
    DiscoveredAck,
    EntryStanding,
    GossipMessage,
    LeaveMessage,
    MessageType,
)
from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.events import ALL, EventId, MemberChanged, MemberState, MemberView
from chaplain.gossip.failure_detector import DetectorAction, FailureDetector
from chaplain.gossip.member_record import INCARNATION_MAX, MemberRecord
from chaplain.gossip.members import BELIEVED, MemberEntry, MemberList, RecordVerdict
from chaplain.gossip.payloads import Health, LastHeard
from chaplain.link.events import Peer
from chaplain.units import MILLISECOND_NS

CARDS_PER_BODY = 32
"""Cards in one CARDS body."""
WELCOME_CARDS_MAX = 256
"""Cards that a new member gets; of more members, a random sample."""
REFUTE_PAUSE_NS = 100 * MILLISECOND_NS
"""The minimum time between two refutations that raise the incarnation."""
_AGE_MAX_MS = 0xFFFFFFFF


class Membership:
    def __init__(self, dissemination: Dissemination, detector: FailureDetector, uri: str, incarnation: int) -> None:
        self._dissemination = dissemination
        self._members: MemberList = dissemination.members
        self._detector = detector
        self._uri = uri
        self._refuted_ns = -REFUTE_PAUSE_NS
        self._joins: dict[str, None] = {}
        """URIs to join through, until a member acknowledges."""
        self._join_ns = 0
        self._pending_acks: dict[int, EventId] = {}
        """Acknowledgements for new members with which we have no session yet."""
        self.has_left = False
        """This node said good-bye."""
        self.card = cards.make(dissemination.signer, uri, incarnation)
        dissemination.epoch = incarnation
        self._members.admit(self.card, contacted=True)
        self._members.mark_contacted(dissemination.identifier)

    def member(self, record: MemberEntry) -> MemberView:
        card = record.card
        me = card.identifier == self._dissemination.identifier
        heard_ns = self._dissemination.now_ns if me else self._detector.known_ns(card.identifier)
        graceful = record.proof is not None
        failed = record.standing is EntryStanding.LOST and card.key not in self._members.expelled
        return MemberView(
            card.identifier,
            card.uri,
            card.key,
            card.incarnation,
            record.state,
            graceful=graceful,
            heard_ns=heard_ns,
            version=card.version,
            failed=failed,
        )

    @property
    def joined(self) -> bool:
        """Whether no join waits for an acknowledgement."""
        return not self._joins

    # Joining.

    def join(self, uri: str) -> bool:
        """Start to join. Returns True if there is an endpoint to dial."""
        if self.has_left:
            self.has_left = False
            self._raise_incarnation(self.card.incarnation)
        if uri == self._uri:
            return False
        self._joins[uri] = None
        self._join_ns = self._dissemination.now_ns + self._dissemination.settings.join_retry_ns
        return True

    def on_entered(self, peer: Peer) -> None:
        """A session with another node is up: send our card, and record the node as heard."""
        record = self._members.get(peer.identifier)
        if record is not None and record.card.key != peer.key:
            self._dissemination.report("key_conflict", peer.identifier)
            return
        self._dissemination.sessions[peer.identifier] = peer.instance
        self._members.mark_contacted(peer.identifier)
        if self._members.is_present(peer.identifier):
            self._detector.watch(peer.identifier, self._dissemination.now_ns)
        self.on_heard(peer.identifier)
        self._dissemination.send(peer.identifier, Cards((self.card,)))
        if self._joins:
            self._discover()
        pending_ack = self._pending_acks.pop(peer.identifier, None)
        if pending_ack is not None:
            self._dissemination.send(peer.identifier, DiscoveredAck(pending_ack, self.card))

    def on_exited(self, peer: Peer, *, wanted: bool) -> None:
        """A session ended. The end of an old instance's session does not affect the session of a new one."""
        if self._dissemination.sessions.get(peer.identifier) != peer.instance:
            return
        del self._dissemination.sessions[peer.identifier]
        if not wanted:
            self._detector.release(peer.identifier)
        if self._members.is_present(peer.identifier) and self._detector.on_disconnect(
            peer.identifier, self._dissemination.now_ns
        ):
            self._suspect(peer.identifier)

    def retry_join(self) -> None:
        """Send DISCOVERED again, while no member has acknowledged."""
        if self._joins and self._dissemination.now_ns >= self._join_ns:
            self._join_ns = self._dissemination.now_ns + self._dissemination.settings.join_retry_ns
            if self._dissemination.sessions:
                self._discover()

    def _discover(self) -> None:
        self._dissemination.fire(MessageType.DISCOVERED, payloads.put_card(self.card), action=Action.ACKNOWLEDGE)

    def on_discovered(self, message: GossipMessage, sender: int) -> None:
        """Acknowledge directly to the new member. The node that it contacted also sends it the other members."""
        card = payloads.take_card(message.content)
        origin = message.id.origin
        if card.identifier != origin:
            self._dissemination.report("message_forged", sender, origin=origin)
            return
        self.on_card(card, sender)
        if not self._members.is_present(origin):
            return
        if (
            not self._dissemination.send(origin, DiscoveredAck(message.id, self.card))
            and len(self._pending_acks) < WELCOME_CARDS_MAX
        ):
            self._pending_acks[origin] = message.id
        if sender == origin:
            self._send_members(origin)

    def on_acknowledge(self, acknowledge: DiscoveredAck, sender: int) -> None:
        if acknowledge.card.identifier != sender:
            self._dissemination.report("card_refused", sender, why="an acknowledgement carries its sender's own card")
            return
        self.on_card(acknowledge.card, sender)
        if acknowledge.id.origin == self._dissemination.identifier and self._joins:
            self._joins.clear()
            self._dissemination.report("joined", sender, members=len(self._members))

    def on_joined(self, message: GossipMessage, sender: int) -> None:
        self.on_card(payloads.take_card(message.content), sender)

    def _send_members(self, newcomer: int) -> None:
        others = [identifier for identifier in self._members.present if identifier != newcomer]
        if len(others) > WELCOME_CARDS_MAX:
            others = self._dissemination.rng.sample(others, WELCOME_CARDS_MAX)
        cards_held = [record.card for identifier in others if (record := self._members.get(identifier)) is not None]
        self.send_cards(newcomer, cards_held)

    def send_cards(
        self, identifier: int, cards_held: list[MemberRecord], leaves: tuple[LeaveMessage, ...] = ()
    ) -> None:
        """Send cards, `CARDS_PER_BODY` to a body, and leaves with the last one."""
        while len(cards_held) > CARDS_PER_BODY:
            self._dissemination.send(identifier, Cards(tuple(cards_held[:CARDS_PER_BODY])))
            cards_held = cards_held[CARDS_PER_BODY:]
        if cards_held or leaves:
            self._dissemination.send(identifier, Cards(tuple(cards_held), leaves))

    # Cards.

    def on_cards(self, body: Cards, sender: int) -> None:
        for card in body.cards:
            self.on_card(card, sender)
        for leave in body.leaves:
            if not leave.graceful or leave.subject == self._dissemination.identifier or not self._is_news(leave):
                continue
            if codec.is_genuine(leave, self._dissemination.check):
                self._on_graceful_leave(leave)
            else:
                self._dissemination.report("message_forged", sender, origin=leave.subject)

    def on_card(self, card: MemberRecord, sender: int) -> RecordVerdict:
        """Admit a card or refuse it. Any peer may have sent it."""
        if card.identifier == self._dissemination.identifier:
            return self._on_own_card(card, sender)
        record = self._members.get(card.identifier)
        old = None if record is None else record.state
        contacted = card.identifier in self._dissemination.sessions
        verdict = self._members.admit(card, contacted=contacted)
        if verdict in BELIEVED:
            self._on_admitted(
                card.identifier, old, by_contact=verdict is RecordVerdict.NEW and sender == card.identifier
            )
        elif verdict in (RecordVerdict.STALE, RecordVerdict.LEFT) and sender == card.identifier:
            self._correct_owner(card.identifier)
        elif verdict in (RecordVerdict.FORGED, RecordVerdict.CONFLICT, RecordVerdict.FULL):
            self._dissemination.report("card_refused", sender, why=verdict.value, subject=card.identifier)
        return verdict

    def _on_admitted(self, identifier: int, old: MemberState | None, *, by_contact: bool) -> None:
        if identifier in self._dissemination.sessions:
            self._members.mark_contacted(identifier)
            self._detector.watch(identifier, self._dissemination.now_ns)
        self._detector.on_new_record(identifier)
        self._changed(identifier, old)
        if by_contact:
            record = self._members.get(identifier)
            assert record is not None
            self._detector.on_heard(identifier, self._dissemination.now_ns)
            self._dissemination.fire(MessageType.JOINED, payloads.put_card(record.card), action=Action.UPDATE)

    def _on_own_card(self, card: MemberRecord, sender: int) -> RecordVerdict:
        if card.incarnation <= self.card.incarnation:
            return RecordVerdict.KNOWN
        if card.key != self._dissemination.signer.key or not cards.is_genuine(card, self._dissemination.check):
            self._dissemination.report("card_refused", sender, why=RecordVerdict.FORGED.value, subject=card.identifier)
            return RecordVerdict.FORGED
        # An earlier run of this node reached a higher incarnation than the clock suggested.
        self._raise_incarnation(card.incarnation)
        self._dissemination.epoch = max(self._dissemination.epoch, self.card.incarnation)
        return RecordVerdict.NEWER

    def _correct_owner(self, identifier: int) -> None:
        """The owner sent an outdated card: send it the card we have, and an ACCUSE if our list has it as left."""
        record = self._members.get(identifier)
        assert record is not None
        self._dissemination.send(identifier, Cards((record.card,)))
        if record.state is MemberState.LEFT:
            self._dissemination.send(identifier, Accuse(record.card.incarnation))

    # Presence and suspicion.

    def on_heard(self, identifier: int) -> None:
        """A peer's command arrived directly, over this node's session with the peer.

        If the membership list says that the peer is lost, tell the peer, so that it can refute this.
        """
        self.record_heard(identifier)
        record = self._members.get(identifier)
        if record is not None and record.state is MemberState.LEFT and record.proof is None:
            self._dissemination.send(identifier, Accuse(record.card.incarnation))

    def record_heard(self, identifier: int) -> None:
        """Record a sign of life; it may end a suspicion."""
        if self._detector.on_heard(identifier, self._dissemination.now_ns):
            self._clear(identifier)

    def on_accuse(self, accuse: Accuse, sender: int) -> None:
        self._refute(accuse.incarnation, sender)

    def on_refuted(self, message: GossipMessage, sender: int) -> None:
        card = payloads.take_card(message.content)
        if card.identifier != message.id.origin:
            self._dissemination.report("message_forged", sender, origin=message.id.origin)
        elif self.on_card(card, sender) in (RecordVerdict.NEW, RecordVerdict.NEWER, RecordVerdict.KNOWN):
            self._on_vouched(card.identifier, self._dissemination.now_ns)

    def on_health(self, message: GossipMessage) -> None:
        """Report when we last heard the subject. If we are the subject, refute, which overrides all reports."""
        health = payloads.take_health(message.content)
        origin = message.id.origin
        if health.subject == self._dissemination.identifier:
            self._refute(health.incarnation, origin)
            return
        record = self._members.get(health.subject)
        if record is None or record.state is MemberState.LEFT:
            return
        age_ns = self._detector.direct_age_ns(health.subject, self._dissemination.now_ns)
        if age_ns is not None:
            status = LastHeard(health.subject, record.card.incarnation, min(age_ns // MILLISECOND_NS, _AGE_MAX_MS))
            self._dissemination.fire(MessageType.STATUS, payloads.put_status(status), target=origin)
        elif health.incarnation == record.card.incarnation and not self._detector.is_watched(health.subject):
            self._on_accusation(health.subject, lost=False)

    def on_status(self, message: GossipMessage) -> None:
        status = payloads.take_status(message.content)
        record = self._members.get(status.subject)
        if record is None or not self._members.is_present(message.id.origin):
            return
        self._on_vouched(status.subject, self._dissemination.now_ns - status.age_ms * MILLISECOND_NS)

    def _on_vouched(self, identifier: int, heard_ns: int) -> None:
        if self._detector.on_vouched(identifier, heard_ns, self._dissemination.now_ns):
            self._clear(identifier)

    def apply_detector(self) -> None:
        """Apply the actions of the failure detector that are due."""
        for action, identifier in self._detector.due_actions(self._dissemination.now_ns):
            match action:
                case DetectorAction.SUSPECT:
                    self._suspect(identifier)
                case DetectorAction.ASK:
                    self._ask(identifier)
                case DetectorAction.CLEAR | DetectorAction.DROP:
                    self._detector.unwatch(identifier)
                    self._clear(identifier)
                case DetectorAction.LOSE:
                    self._declare_lost(identifier)

    def _suspect(self, identifier: int) -> None:
        if self._members.suspect(identifier):
            self._changed(identifier, MemberState.ALIVE)
        self._ask(identifier)

    def _ask(self, identifier: int) -> None:
        record = self._members.get(identifier)
        if record is not None and record.state is not MemberState.LEFT:
            health = Health(identifier, record.card.incarnation)
            self._dissemination.fire(MessageType.HEALTH, payloads.put_health(health), action=Action.STATUS)

    def _clear(self, identifier: int) -> None:
        if self._members.clear(identifier):
            self._changed(identifier, MemberState.SUSPECT)

    def on_claim(self, identifier: int, incarnation: int) -> None:
        """Process the claim of another node's list that this member is lost, at this incarnation."""
        if identifier == self._dissemination.identifier:
            self._refute(incarnation, ALL)
        elif not self._dissemination.send(identifier, Accuse(incarnation)):
            health = Health(identifier, incarnation)
            self._dissemination.fire(
                MessageType.HEALTH, payloads.put_health(health), action=Action.STATUS, target=identifier
            )
            self._on_accusation(identifier, lost=True)

    def _on_accusation(self, identifier: int, *, lost: bool) -> None:
        """Another node suspects a member that we do not hear ourselves: wait T for a sign of the member before this
        node believes the suspicion.
        """
        if self._detector.accuse(identifier, self._dissemination.now_ns, lost=lost) and self._members.suspect(
            identifier
        ):
            self._changed(identifier, MemberState.ALIVE)

    def _refute(self, incarnation: int, accuser: int) -> None:
        """Answer a claim that this node is silent or has left."""
        if self.has_left:
            return
        if incarnation < self.card.incarnation:
            content = payloads.put_card(self.card)
            self._dissemination.fire(MessageType.REFUTED, content, action=Action.UPDATE, target=accuser)
        elif incarnation == self.card.incarnation:
            if self._dissemination.now_ns - self._refuted_ns >= REFUTE_PAUSE_NS:
                self._refuted_ns = self._dissemination.now_ns
                self._raise_incarnation(incarnation)
        else:
            # No card of ours has this incarnation. A mere claim must not raise ours: an attacker could otherwise drive
            # it to the maximum.
            self._dissemination.counts["claims_ignored"] += 1

    def _raise_incarnation(self, above: int) -> None:
        if above >= INCARNATION_MAX:
            self._dissemination.report(
                "incarnation_exhausted", self._dissemination.identifier, advice="give this node a new identity"
            )
            return
        assert above >= self.card.incarnation
        self.card = cards.make(self._dissemination.signer, self._uri, above + 1)
        self._members.admit(self.card, contacted=True)
        self._dissemination.fire(MessageType.REFUTED, payloads.put_card(self.card), action=Action.UPDATE)

    # Leaving.

    def leave(self) -> None:
        """Announce to all members that this node leaves."""
        if not self.has_left:
            self.has_left = True
            self._joins.clear()
            self._dissemination.fire_leave(self._dissemination.identifier, self.card.incarnation)

    def on_leave(self, leave: LeaveMessage) -> None:
        if leave.subject == self._dissemination.identifier:
            self._refute(leave.incarnation, leave.id.origin)
        elif leave.graceful:
            self._on_graceful_leave(leave)
        elif self._members.is_present(leave.id.origin):
            self._on_leave_on_behalf(leave)

    def expel(self, keys: frozenset[bytes]) -> None:
        """The cluster removed these nodes: remove them from the list, even if they or others claim that they are
        present.
        """
        self._members.expelled = keys
        for identifier in list(self._members.present):
            record = self._members.get(identifier)
            assert record is not None
            if record.card.key in keys:
                self._mark_left(identifier, record)

    def _is_news(self, leave: LeaveMessage) -> bool:
        """Whether the subject is a known member without a graceful leave."""
        record = self._members.get(leave.subject)
        return record is not None and record.proof is None

    def _on_graceful_leave(self, leave: LeaveMessage) -> None:
        record = self._members.get(leave.subject)
        old = MemberState.LEFT if record is None else record.state
        if self._members.leave_gracefully(leave, self._dissemination.now_ns):
            self._detector.unwatch(leave.subject)
            self._changed(leave.subject, old)

    def _on_leave_on_behalf(self, leave: LeaveMessage) -> None:
        record = self._members.get(leave.subject)
        if record is None or record.state is MemberState.LEFT or leave.incarnation != record.card.incarnation:
            return
        if self._detector.may_lose(leave.subject, self._dissemination.now_ns):
            self._mark_left(leave.subject, record)
        else:
            self._dissemination.counts["leaves_refused"] += 1
            self._on_accusation(leave.subject, lost=True)

    def _declare_lost(self, identifier: int) -> None:
        record = self._members.get(identifier)
        if record is None or record.state is MemberState.LEFT:
            self._detector.unwatch(identifier)
            return
        ours = self._detector.is_watched(identifier)
        self._mark_left(identifier, record)
        if ours:
            self._dissemination.fire_leave(identifier, record.card.incarnation)

    def _mark_left(self, identifier: int, record: MemberEntry) -> None:
        old = record.state
        self._members.lose(identifier, record.card.incarnation, self._dissemination.now_ns)
        self._detector.unwatch(identifier)
        self._changed(identifier, old)

    def _changed(self, identifier: int, old: MemberState | None) -> None:
        record = self._members.get(identifier)
        assert record is not None
        self._dissemination.counts[f"members_{record.state}"] += 1
        self._dissemination.out.append(MemberChanged(self.member(record), old))
