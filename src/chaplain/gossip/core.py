"""Gossip as a core: gossip.txt's events, membership and queries over the mesh's sessions.

`step` is the table of contents; each rule lives beside its data: `membership` (who is here), `company` (whom to meet,
comparing, healing), `suspicion` (clocks), `spread` (how messages travel), `query`, `rotation`.

Decides nothing about sockets, seals or time of day. Hostile bytes become a `Report` that names the peer.
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
    Assembled,
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
    def __init__(  # noqa: PLR0917  the same order as the other cores: who, which run, where, then settings, chance and time
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
        """`incarnation` is a guess above that of every run before; the clock is one. If it is too low, the others say
        so. `members` may be a list shared by cores of a simulation.
        """
        assert identity.identifier != ALL, "identifier 0 means everybody: make another key"
        incarnation = max(1, now_ns) if incarnation is None else incarnation
        assert 0 < incarnation <= INCARNATION_MAX
        self._instance = instance
        self._settings = settings
        self._members = MemberList(settings, check) if members is None else members
        self._voice = Dissemination(identity, check, settings, rng, self._members)
        self._voice.now_ns = now_ns
        self._suspicion = FailureDetector(settings)
        self._membership = Membership(self._voice, self._suspicion, uri, incarnation)
        self._company = Connectivity(self._voice, self._suspicion, self._membership)
        self._rotation = Rotation(self._voice, lambda: self._company.belonging)
        self._born_ns = now_ns
        built_in = {
            "version": software.encode,
            "uptime": lambda: b"%d min" % ((self._voice.now_ns - self._born_ns) // (60 * SECOND_NS)),
            "members": lambda: self._members.digest().hex().encode(),
        }
        assert tuple(built_in) == BUILT_IN
        self._questions = QueryService(self._voice, built_in)
        self._acknowledgements = Acknowledgements(self._voice)
        self._refused: dict[bytes, None] = {}
        """Instances already reported for speaking another version."""
        self._last_ns = now_ns
        self._offset_ns = 0
        """What is added to the host's clock, so that a clock set back does not stop ours."""
        self._tick_ns = now_ns + settings.tick_ns

    @property
    def counts(self) -> Counter[str]:
        return self._voice.counts

    @property
    def identifier(self) -> int:
        return self._voice.identifier

    @property
    def incarnation(self) -> int:
        return self._membership.card.incarnation

    def members(self) -> list[MemberView]:
        """The list as this node sees it: those present by identifier, then those remembered after leaving."""
        return [
            self._membership.member(record)
            for identifier in [*self._members.present, *self._members.left()]
            if (record := self._members.get(identifier)) is not None
        ]

    def member(self, identifier: int) -> MemberView | None:
        record = self._members.get(identifier)
        return None if record is None else self._membership.member(record)

    def digest(self) -> bytes:
        """Equal on nodes with equal members present."""
        return self._members.digest()

    def deadline(self) -> int:
        return self._due_ns() - self._offset_ns

    def step(self, now_ns: int, event: GossipInput) -> list[GossipEffect]:
        self._wake(now_ns)
        match event:
            case Woken():
                pass
            case Stopping():
                self._membership.leave()
            case LeaveCluster():
                self._membership.leave()
                self._company.abandon()
            case Entered():
                self._entered(event.peer)
            case Exited():
                self._membership.exited(event.peer, wanted=self._company.wants(event.peer.identifier))
            case Expel():
                self._membership.expel(event.keys)
            case GossipParcel():
                self._told(event)
            case HeardFrom():
                self._membership.heard(event.identifier)
            case JoinThrough():
                if self._membership.join(event.uri):
                    self._company.knock(event.uri)
            case Assembled():
                if not self._membership.absent:
                    self._company.belong(event.nodes, event.gone)
            case Fire():
                self._fire(event)
            case AskQuery():
                self._questions.ask(event)
            case RegisterQuestion():
                self._questions.register(event.question)
            case UnregisterQuestion():
                self._questions.unregister(event.question)
            case GiveAnswer():
                self._questions.give(event)
            case RotateKey():
                self._rotation.start(event)
            case KeyConfirmed():
                self._rotation.confirm(event)
            case _:
                assert_never(event)
        return self._finish()

    def _wake(self, now_ns: int) -> None:
        """Take the time; notice if we slept; do what the tick is for."""
        self._offset_ns = max(self._offset_ns, self._last_ns - now_ns)
        now_ns += self._offset_ns
        gap_ns = now_ns - max(self._last_ns, self._due_ns())
        self._last_ns = self._voice.now_ns = now_ns
        if gap_ns > self._settings.silence_ns // 2:
            self._suspicion.slept(gap_ns, now_ns)
            self._voice.report("slept", self.identifier, milliseconds=gap_ns // 1_000_000)
        if now_ns >= self._due_ns():
            self._tick()

    def _due_ns(self) -> int:
        dues = (self._tick_ns, self._questions.due_ns(), self._acknowledgements.due_ns())
        return min(due_ns for due_ns in dues if due_ns is not None)

    def _tick(self) -> None:
        self._tick_ns = self._voice.now_ns + self._settings.tick_ns
        if not self._membership.absent:
            self._membership.retry()
            self._membership.judge()
            self._company.tend()
        self._questions.tend()
        self._acknowledgements.tend()
        self._rotation.tend()

    def _finish(self) -> list[GossipEffect]:
        if not self._membership.absent:
            self._company.settle()
        effects, self._voice.out = self._voice.out, []
        return effects

    def _entered(self, peer: Peer) -> None:
        if peer.client or peer.instance == self._instance:
            return
        if peer.identifier == self.identifier:
            self._voice.report("identity_used_twice", peer.identifier, endpoint=peer.endpoint)
            return
        if self._membership.absent:
            self._voice.sessions[peer.identifier] = peer.instance
            return
        self._membership.entered(peer)
        if peer.identifier in self._voice.sessions:
            self._company.compare_with(peer.identifier)

    def _told(self, told: GossipParcel) -> None:
        peer = told.peer
        if self._membership.absent or self._voice.sessions.get(peer.identifier) != peer.instance:
            self._voice.counts["strays"] += 1
            return
        self._membership.note(peer.identifier)
        if told.parcel.node != peer.identifier:
            self._voice.report("parcel_forged", peer.identifier, node=told.parcel.node)
            return
        try:
            self._take(codec.decode(told.parcel.body), peer.identifier)
        except OtherVersion as other:
            self._refuse(peer, other)
        except Malformed as error:
            self._voice.report("gossip_malformed", peer.identifier, why=str(error))

    def _refuse(self, peer: Peer, other: OtherVersion) -> None:
        self._voice.counts["versions_refused"] += 1
        if peer.instance not in self._refused:
            if len(self._refused) >= self._settings.strangers_max:
                self._refused.clear()
            self._refused[peer.instance] = None
            ours, theirs = "{}.{}".format(*VERSION), "{}.{}".format(*other.version)
            self._voice.report("version_refused", peer.identifier, ours=ours, theirs=theirs)

    def _take(self, body: Body, sender: int) -> None:
        match body:
            case GossipMessage():
                if self._voice.accept(body, sender):
                    self._voice.pass_on(body, sender)
                    if body.target in (ALL, self.identifier):
                        self._act(body, sender)
            case LeaveMessage():
                if self._voice.accept(body, sender):
                    self._voice.pass_on(body, sender)
                    self._membership.on_leave(body)
            case DiscoveredAck():
                self._membership.on_acknowledge(body, sender)
            case Cards():
                self._membership.on_cards(body, sender)
            case Compare():
                self._company.on_compare(body, sender)
            case Have():
                self._voice.on_have(sender, body)
            case WantMessages():
                self._voice.on_want(sender, body)
            case Accuse():
                self._membership.on_accuse(body, sender)
            case _:
                assert_never(body)

    def _act(self, message: GossipMessage, sender: int) -> None:
        """Do what the message expects of us. A type we do not know was passed on, and that is all we can do."""
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
                self._see(message.id, user, message.target)
                self._acknowledgements.give(message)
            case MessageType.KEY:
                self._rotation.on_key(message)
            case MessageType.KEY_CONFIRMED:
                self._rotation.on_confirmed(message)
            case _:
                self._voice.counts["types_unknown"] += 1

    def _on_answer(self, message: GossipMessage) -> None:
        """To a question, or to an event that asked for an acknowledgement: whichever has the id."""
        response = payloads.take_response(message.content)
        self._acknowledgements.take(message.id.origin, response.query)
        self._questions.count(message.id.origin, response)

    def _fire(self, fire: Fire) -> None:
        if not payloads.is_name(fire.type):
            raise ValueError(f"an event's type has 1 to {payloads.NAME_BYTES_MAX} octets of UTF-8")
        if len(fire.content) > self._settings.content_bytes_max:
            raise ValueError(f"an event holds at most {self._settings.content_bytes_max} octets")
        if not 0 <= fire.target < 1 << 32:
            raise ValueError(f"an identifier has 32 bits, unlike {fire.target}")
        if fire.call is not None and self._acknowledgements.is_full:
            self._voice.out.append(Acknowledged(fire.call, (), (), fired=False))
            return
        user = UserEvent(fire.type, fire.content)
        action = Action.NONE if fire.call is None else Action.ACKNOWLEDGE
        message = self._voice.fire(
            MessageType.USER, payloads.put_user(user), action=action, target=fire.target, urgent=False
        )
        if fire.target in (ALL, self.identifier):
            self._see(message.id, user, fire.target)
        if fire.call is not None:
            self._acknowledgements.expect(fire.call, message.id, fire.target, fire.timeout_ns)

    def _see(self, event_id: EventId, user: UserEvent, target: int) -> None:
        self._voice.out.append(EventSeen(FiredEvent(event_id, user.type, user.content, target)))
