"""The gossip core: events, membership and queries of gossip.txt, over the sessions of the mesh.

`step` dispatches; each rule is next to its data: `membership` (who is a member), `connectivity` (sessions,
anti-entropy, reconnecting after a partition), `failure_detector` (silence), `dissemination` (how messages spread),
`query`, `rotation`.

It knows nothing about sockets, seals or the time of day. Malformed or forged input becomes a `Report` that names the
peer.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import assert_never

from chaplain import __version__
from chaplain.core import Stopping, Woken
from chaplain.errors import Malformed
from chaplain.gossip import codec, payloads
from chaplain.gossip.acknowledgements import Acknowledgements
from chaplain.gossip.codec import (
    Accuse,
    Action,
    Body,
    Cards,
    Compare,
    DiscoveredAck,
    GossipMessage,
    Have,
    LeaveMessage,
    MessageType,
    OtherVersion,
    WantMessages,
)
from chaplain.gossip.connectivity import Connectivity
from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.events import (
    ALL,
    BUILT_IN,
    Acknowledged,
    AskQuery,
    EventId,
    EventSeen,
    Fire,
    FiredEvent,
    GiveAnswer,
    GossipEffect,
    GossipInput,
    GossipParcel,
    HeardFrom,
    JoinThrough,
    KeyConfirmed,
    LeaveCluster,
    MembersConfigured,
    MemberView,
    RegisterQuestion,
    RotateKey,
    UnregisterQuestion,
)
from chaplain.gossip.failure_detector import FailureDetector
from chaplain.gossip.member_record import INCARNATION_MAX, VERSION, GossipSigner, Verify
from chaplain.gossip.members import MemberList
from chaplain.gossip.membership import Membership
from chaplain.gossip.payloads import UserEvent
from chaplain.gossip.query import QueryService
from chaplain.gossip.rotation import Rotation
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import verify
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Expel
from chaplain.units import SECOND_NS


class GossipCore:
    def __init__(  # noqa: PLR0917  the order of all cores: identity, instance, URI, settings, randomness, time
        self,
        identity: GossipSigner,
        instance: bytes,
        uri: str,
        settings: GossipSettings,
        rng: random.Random,
        now_ns: int,
        *,
        incarnation: int | None = None,
        software: str = __version__,
        check: Verify = verify,
        members: MemberList | None = None,
    ) -> None:
        """`incarnation` should be higher than in every earlier run of this node; the clock gives such a number. If it
        is too low, other nodes return the later card, and this node continues above that. Cores of a simulation may
        share `members`.
        """
        assert identity.identifier != ALL, "identifier 0 means all nodes: make another key"
        incarnation = max(1, now_ns) if incarnation is None else incarnation
        assert 0 < incarnation <= INCARNATION_MAX
        self._instance = instance
        self._settings = settings
        self._members = MemberList(settings, check) if members is None else members
        self._dissemination = Dissemination(identity, check, settings, rng, self._members)
        self._dissemination.now_ns = now_ns
        self._detector = FailureDetector(settings)
        self._membership = Membership(self._dissemination, self._detector, uri, incarnation)
        self._connectivity = Connectivity(self._dissemination, self._detector, self._membership)
        self._rotation = Rotation(self._dissemination, lambda: self._connectivity.cluster_nodes)
        self._started_ns = now_ns
        built_in = {
            "version": software.encode,
            "uptime": lambda: b"%d min" % ((self._dissemination.now_ns - self._started_ns) // (60 * SECOND_NS)),
            "members": lambda: self._members.digest().hex().encode(),
        }
        assert tuple(built_in) == BUILT_IN
        self._questions = QueryService(self._dissemination, built_in)
        self._acknowledgements = Acknowledgements(self._dissemination)
        self._refused: dict[bytes, None] = {}
        """Instances that were already reported for another protocol version."""
        self._last_ns = now_ns
        self._offset_ns = 0
        """Added to the host's clock, so that a clock that was set back does not stop ours."""
        self._tick_ns = now_ns + settings.tick_ns

    @property
    def counts(self) -> Counter[str]:
        return self._dissemination.counts

    @property
    def identifier(self) -> int:
        return self._dissemination.identifier

    @property
    def incarnation(self) -> int:
        return self._membership.card.incarnation

    def members(self) -> list[MemberView]:
        """The list as this node sees it: present members by identifier, then remembered members that have left."""
        return [
            self._membership.member(record)
            for identifier in [*self._members.present, *self._members.left()]
            if (record := self._members.get(identifier)) is not None
        ]

    def member(self, identifier: int) -> MemberView | None:
        record = self._members.get(identifier)
        return None if record is None else self._membership.member(record)

    def digest(self) -> bytes:
        """Equal on nodes with the same present members."""
        return self._members.digest()

    def deadline(self) -> int:
        return self._due_ns() - self._offset_ns

    def step(self, now_ns: int, event: GossipInput) -> list[GossipEffect]:
        self._advance_clock(now_ns)
        match event:
            case Woken():
                pass
            case Stopping():
                self._membership.leave()
            case LeaveCluster():
                self._membership.leave()
                self._connectivity.forget_all()
            case Entered():
                self._on_entered(event.peer)
            case Exited():
                self._membership.on_exited(event.peer, wanted=self._connectivity.wants(event.peer.identifier))
            case Expel():
                self._membership.expel(event.keys)
            case GossipParcel():
                self._on_parcel(event)
            case HeardFrom():
                self._membership.on_heard(event.identifier)
            case JoinThrough():
                if self._membership.join(event.uri):
                    self._connectivity.add_seed(event.uri)
            case MembersConfigured():
                if not self._membership.has_left:
                    self._connectivity.set_cluster_nodes(event.nodes, event.gone)
            case Fire():
                self._on_fire(event)
            case AskQuery():
                self._questions.ask(event)
            case RegisterQuestion():
                self._questions.register(event.question)
            case UnregisterQuestion():
                self._questions.unregister(event.question)
            case GiveAnswer():
                self._questions.on_answer_given(event)
            case RotateKey():
                self._rotation.start(event)
            case KeyConfirmed():
                self._rotation.on_step_done(event)
            case _:
                assert_never(event)
        return self._finish()

    def _advance_clock(self, now_ns: int) -> None:
        """Take the time, detect a pause of this process, and run the tick when it is due."""
        self._offset_ns = max(self._offset_ns, self._last_ns - now_ns)
        now_ns += self._offset_ns
        gap_ns = now_ns - max(self._last_ns, self._due_ns())
        self._last_ns = self._dissemination.now_ns = now_ns
        if gap_ns > self._settings.silence_ns // 2:
            self._detector.on_pause(gap_ns, now_ns)
            self._dissemination.report("slept", self.identifier, milliseconds=gap_ns // 1_000_000)
        if now_ns >= self._due_ns():
            self._tick()

    def _due_ns(self) -> int:
        dues = (self._tick_ns, self._questions.due_ns(), self._acknowledgements.due_ns())
        return min(due_ns for due_ns in dues if due_ns is not None)

    def _tick(self) -> None:
        self._tick_ns = self._dissemination.now_ns + self._settings.tick_ns
        if not self._membership.has_left:
            self._membership.retry_join()
            self._membership.apply_detector()
            self._connectivity.on_tick()
        self._questions.on_tick()
        self._acknowledgements.on_tick()
        self._rotation.on_tick()

    def _finish(self) -> list[GossipEffect]:
        if not self._membership.has_left:
            self._connectivity.update_sessions()
        effects, self._dissemination.out = self._dissemination.out, []
        return effects

    def _on_entered(self, peer: Peer) -> None:
        if peer.client or peer.instance == self._instance:
            return
        if peer.identifier == self.identifier:
            self._dissemination.report("identity_used_twice", peer.identifier, endpoint=peer.endpoint)
            return
        if self._membership.has_left:
            self._dissemination.sessions[peer.identifier] = peer.instance
            return
        self._membership.on_entered(peer)
        if peer.identifier in self._dissemination.sessions:
            self._connectivity.compare_with(peer.identifier)

    def _on_parcel(self, received: GossipParcel) -> None:
        peer = received.peer
        if self._membership.has_left or self._dissemination.sessions.get(peer.identifier) != peer.instance:
            self._dissemination.counts["strays"] += 1
            return
        self._membership.record_heard(peer.identifier)
        if received.parcel.node != peer.identifier:
            self._dissemination.report("parcel_forged", peer.identifier, node=received.parcel.node)
            return
        try:
            self._dispatch_body(codec.decode(received.parcel.body), peer.identifier)
        except OtherVersion as other:
            self._refuse(peer, other)
        except Malformed as error:
            self._dissemination.report("gossip_malformed", peer.identifier, why=str(error))

    def _refuse(self, peer: Peer, other: OtherVersion) -> None:
        self._dissemination.counts["versions_refused"] += 1
        if peer.instance not in self._refused:
            if len(self._refused) >= self._settings.strangers_max:
                self._refused.clear()
            self._refused[peer.instance] = None
            ours, theirs = "{}.{}".format(*VERSION), "{}.{}".format(*other.version)
            self._dissemination.report("version_refused", peer.identifier, ours=ours, theirs=theirs)

    def _dispatch_body(self, body: Body, sender: int) -> None:
        match body:
            case GossipMessage():
                if self._dissemination.accept(body, sender):
                    self._dissemination.forward(body, sender)
                    if body.target in (ALL, self.identifier):
                        self._dispatch_message(body, sender)
            case LeaveMessage():
                if self._dissemination.accept(body, sender):
                    self._dissemination.forward(body, sender)
                    self._membership.on_leave(body)
            case DiscoveredAck():
                self._membership.on_acknowledge(body, sender)
            case Cards():
                self._membership.on_cards(body, sender)
            case Compare():
                self._connectivity.on_compare(body, sender)
            case Have():
                self._dissemination.on_have(sender, body)
            case WantMessages():
                self._dissemination.on_want(sender, body)
            case Accuse():
                self._membership.on_accuse(body, sender)
            case _:
                assert_never(body)

    def _dispatch_message(self, message: GossipMessage, sender: int) -> None:
        """Process a message for this node.

        A message of an unknown type was forwarded, which is all that this version can do.
        """
        match message.type:
            case MessageType.DISCOVERED:
                self._membership.on_discovered(message, sender)
            case MessageType.JOINED:
                self._membership.on_joined(message, sender)
            case MessageType.HEALTH:
                self._membership.on_health(message)
            case MessageType.STATUS:
                self._membership.on_status(message)
            case MessageType.REFUTED:
                self._membership.on_refuted(message, sender)
            case MessageType.QUERY:
                self._questions.on_query(message)
            case MessageType.ANSWER:
                self._on_answer(message)
            case MessageType.USER:
                user = payloads.take_user(message.content)
                self._emit_event(message.id, user, message.target)
                self._acknowledgements.acknowledge(message)
            case MessageType.KEY:
                self._rotation.on_key(message)
            case MessageType.KEY_CONFIRMED:
                self._rotation.on_confirmed(message)
            case _:
                self._dissemination.counts["types_unknown"] += 1

    def _on_answer(self, message: GossipMessage) -> None:
        """An ANSWER belongs to a query, or to an event that asked for acknowledgements; its id tells which."""
        response = payloads.take_response(message.content)
        self._acknowledgements.on_acknowledged(message.id.origin, response.query)
        self._questions.on_response(message.id.origin, response)

    def _on_fire(self, fire: Fire) -> None:
        if not payloads.is_name(fire.type):
            raise ValueError(f"an event's type has 1 to {payloads.NAME_BYTES_MAX} octets of UTF-8")
        if len(fire.content) > self._settings.content_bytes_max:
            raise ValueError(f"an event holds at most {self._settings.content_bytes_max} octets")
        if not 0 <= fire.target < 1 << 32:
            raise ValueError(f"an identifier has 32 bits, unlike {fire.target}")
        if fire.call is not None and self._acknowledgements.is_full:
            self._dissemination.out.append(Acknowledged(fire.call, (), (), fired=False))
            return
        user = UserEvent(fire.type, fire.content)
        action = Action.NONE if fire.call is None else Action.ACKNOWLEDGE
        message = self._dissemination.fire(
            MessageType.USER, payloads.put_user(user), action=action, target=fire.target, urgent=False
        )
        if fire.target in (ALL, self.identifier):
            self._emit_event(message.id, user, fire.target)
        if fire.call is not None:
            self._acknowledgements.expect(fire.call, message.id, fire.target, fire.timeout_ns)

    def _emit_event(self, event_id: EventId, user: UserEvent, target: int) -> None:
        self._dissemination.out.append(EventSeen(FiredEvent(event_id, user.type, user.content, target)))
