"""The clients of one node's journal: their sessions, who they are, and which part answers what they say.

Decides who somebody is: the active identity, as executed here, of the key that the session has proven. Everything else
is decided in the parts it hands messages to.

Invariant: nobody without an active identity is served, neither at once nor later.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, assert_never

from chaplain.core import soonest
from chaplain.journal.clients.config_requests import ConfigRequests, PetitionEffect
from chaplain.journal.clients.queries import ClientQueries, ServiceEffect
from chaplain.journal.clients.receipts import LaneSubscriptions
from chaplain.journal.clients.subscriptions import ReadingEffect, Subscriptions
from chaplain.journal.events import Admitted, Locate, PackWritten
from chaplain.journal.execution.local_roles import LocalRoles
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.admission import refuse
from chaplain.journal.ingest.commit_replay import CommitReplay, PromotionEffect
from chaplain.journal.ingest.core import IngestCore
from chaplain.journal.messages.client import (
    AskLane,
    AskPaid,
    AskProof,
    ClientMessage,
    Ended,
    Failed,
    Grant,
    Leads,
    ListClients,
    ListNodes,
    ListStreams,
    MembersAre,
    NodeMessage,
    Open,
    Opened,
    Read,
    StopReading,
    SubmitPetition,
    WrapSecret,
    Write,
)
from chaplain.journal.messages.peer import PassPetition
from chaplain.journal.messages.signing import Wrapping
from chaplain.journal.messages.write_request import client_id_of, read_heading
from chaplain.journal.model.reason import REASONS, kind_of
from chaplain.journal.model.records import ClientIdentity, IdentityStatus
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.peers import members_of
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.verdict import Reason
from chaplain.link.events import Peer
from chaplain.rights import NO_ROLE, NOT_EXECUTOR, RequiredRight, Right, may_read, refusal
from chaplain.segment.record import Record

LINGER_NS = 200_000_000
"""Sessions of an identity that has ended are kept for so long: it is owed an answer that says why."""
_LogReader: TypeAlias = Subscriptions | ClientQueries | CommitReplay
ClienteleEffect: TypeAlias = PetitionEffect | ReadingEffect | ServiceEffect | PromotionEffect


class ClientSessions:
    def __init__(
        self,
        settings: JournalSettings,
        execution: JournalExecution,
        ingest: IngestCore,
        *,
        petitions: ConfigRequests,
        reading: Subscriptions,
        service: ClientQueries,
        promotion: CommitReplay,
    ) -> None:
        self._settings = settings
        self._execution = execution
        self._ingest = ingest
        self.petitions = petitions
        self.reading = reading
        self.service = service
        self.promotion = promotion
        self._log_readers: dict[str, _LogReader] = {"reading": reading, "service": service, "promotion": promotion}
        self._parts: dict[str, ConfigRequests | _LogReader] = {"petitions": petitions, **self._log_readers}
        self._seat = LocalRoles(settings, execution)
        self._attendance = LaneSubscriptions()
        self.closed = False
        """The node is no member any more: it serves nobody."""
        self._peers: dict[bytes, Peer] = {}
        self._active: dict[bytes, str] = {}
        self._lingering: dict[bytes, tuple[str, int]] = {}
        self._leads = 0
        """The regime in which this node is master."""
        self._members = MembersAre((), ())
        """What clients were told last."""

    def wanted(self) -> list[tuple[str, ClienteleEffect]]:
        """What the parts want done, each with its name; they want it no more."""
        if not (self.petitions.effects or self.reading.effects or self.service.effects or self.promotion.effects):
            return []  # asked at every step, and seldom so
        wanted: list[tuple[str, ClienteleEffect]] = []
        for name, part in self._parts.items():
            if part.effects:
                wanted += [(name, effect) for effect in part.effects]
                part.effects.clear()
        return wanted

    def read(self, part: str, token: int, records: Sequence[Record]) -> None:
        """Something that a part wanted was read from the log."""
        self._log_readers[part].read(token, records)

    def __contains__(self, instance: bytes) -> bool:
        return instance in self._peers

    def entered(self, peer: Peer) -> Iterator[tuple[bytes, NodeMessage]]:
        self._peers[peer.instance] = peer
        yield from self._tell_members((peer.instance,))

    def exited(self, instance: bytes) -> bool:
        if self._peers.pop(instance, None) is None:
            return False
        self._attendance.leave(instance)
        self.reading.left(instance)
        self.petitions.left(instance)
        return True

    @property
    def due_ns(self) -> int | None:
        """When somebody has lingered long enough, or a petition is to be sent again."""
        petitions_ns = self.petitions.due_ns
        if not self._lingering:
            return petitions_ns
        return soonest((*(until_ns for _, until_ns in self._lingering.values()), petitions_ns))

    def woken(self, now_ns: int) -> list[Admitted]:
        self.petitions.woken(now_ns)
        self.promotion.woken(now_ns)
        over = any(until_ns <= now_ns for _, until_ns in self._lingering.values())
        return [self.admitted(now_ns)] if over else []

    def admitted(self, now_ns: int) -> Admitted:
        """Who may have a session, by key: everybody active, and for a moment those who no longer are."""
        clients = () if self.closed else self._execution.state.clients.values()
        active = {client.key: client.name for client in clients if client.status == IdentityStatus.ACTIVE}
        ended = {key: (name, now_ns + LINGER_NS) for key, name in self._active.items() if key not in active}
        kept = {key: kept for key, kept in self._lingering.items() if key not in active and kept[1] > now_ns}
        self._active, self._lingering = active, {**ended, **kept}
        return Admitted({**active, **{key: name for key, (name, _) in self._lingering.items()}})

    def led(self, regime: int) -> Iterator[tuple[bytes, NodeMessage]]:
        """We became master in a regime, or are none any more: its clients may choose by that."""
        if regime != self._leads:
            self._leads = regime
            yield from ((instance, Leads(regime)) for instance in self._peers)

    def assembled(self) -> Iterator[tuple[bytes, NodeMessage]]:
        """The nodes or their roles changed: clients hear who is there, so that they outlast those whom they know."""
        members = members_of(self._execution.cluster_config)
        if members != self._members:
            self._members = members
            yield from self._tell_members(self._peers)

    def _tell_members(self, instances: Iterable[bytes]) -> Iterator[tuple[bytes, NodeMessage]]:
        yield from ((instance, self._members) for instance in instances if self._identity(instance) is not None)

    def executed(self, executed: AppliedMessage) -> Iterator[tuple[bytes, NodeMessage]]:
        """A message was executed: what there is to say to whom, beside what the parts say themselves."""
        yield from self._attendance.answers(executed)
        self.petitions.executed(executed)
        self.reading.executed(executed)
        self.promotion.pump()
        if executed.clients_changed:
            self.reading.forbid(self._may_read)

    def _may_read(self, instance: bytes, stream: str) -> bool:
        client = self._identity(instance)
        return client is not None and may_read(client, stream)

    def _identity(self, instance: bytes) -> ClientIdentity | None:
        client = self._execution.client_of_key(self._peers[instance].key)
        return client if client is not None and client.status == IdentityStatus.ACTIVE else None

    def said(
        self, now_ns: int, peer: Peer, message: ClientMessage, payload: bytes
    ) -> Iterator[PackWritten | NodeMessage]:
        client = self._identity(peer.instance)
        if client is None:
            yield self._turned_away(peer, message, payload)
            return
        instance = peer.instance
        match message:
            case Write():
                self._attend(instance, client, client_id_of(payload))
                yield PackWritten(instance, client.acl, message.stream, payload, message.check)
            case Open():
                names = (self._settings.node, self._execution.cluster, client.acl, client.name)
                bound, reserved = self._settings.pack_bytes_max, self._seat.accepted_clients
                credit, epoch = self._ingest.credit_of(instance), self._execution.state.epochs.token
                yield Opened(message.call, *names, credit, bound, self._leads, reserved, epoch)
            case SubmitPetition():
                petition = PassPetition(message.entry_type, message.stage, payload)
                self.petitions.submit(now_ns, (instance, message.call), client.acl, petition)
            case AskLane():
                self._attend(instance, client, message.client_id)
                self.service.lane(instance, client, message)
            case Read():
                if not self._seat.answers_reads:
                    yield Ended(message.call, NOT_EXECUTOR, NO_ROLE, message.offset)
                elif may_read(client, message.stream):
                    self.reading.begin(instance, client.acl, message)
                else:
                    why = refusal(RequiredRight(Right.READ, message.stream))
                    yield Failed(message.call, kind_of(Reason.NO_RIGHT), why)
            case Grant():
                self.reading.grant(instance, message)
            case StopReading():
                self.reading.stop(instance, message.call)
            case AskProof():
                self.service.proof(instance, message)
            case WrapSecret():
                self.service.wrap(instance, message, payload, client)
            case ListStreams():
                self.service.streams(instance, message, client)
            case ListNodes():
                self.service.nodes(instance, message.call)
            case AskPaid():
                self.service.paid(instance, message.call)
            case ListClients():
                self.service.clients(instance, message.call, client)
            case _:
                assert_never(message)

    def _attend(self, instance: bytes, client: ClientIdentity, client_id: int) -> None:
        """Answers about one's own lane go to whoever used it here last, and before."""
        lane = self._execution.state.lanes.get(client_id)
        if lane is not None and lane.acl == client.acl:
            self._attendance.attend(instance, client_id)

    def _turned_away(self, peer: Peer, message: ClientMessage, payload: bytes) -> NodeMessage:
        """Somebody who is nobody here any more, or not yet, as far as this node has executed."""
        known = self._execution.client_of_key(peer.key)
        reason = Reason.UNKNOWN_SIGNER
        if known is not None:
            reason = Reason.COMPROMISED if known.status == IdentityStatus.COMPROMISED else Reason.REMOVED
        if not isinstance(message, Write):
            return Failed(message.call, kind_of(reason), REASONS[reason])
        heading = read_heading(payload)
        lane = self._execution.state.lanes.get(heading.client_id)
        mine = known is not None and lane is not None and lane.acl == known.acl
        return refuse(heading, reason, lane if mine else None)


def make_clientele(
    settings: JournalSettings,
    execution: JournalExecution,
    ingest: IngestCore,
    *,
    streams: StreamIndex,
    locate: Locate,
    chance: random.Random,
    wrapping: Wrapping | None,
) -> ClientSessions:
    """With all its parts; `locate` finds messages in the log."""
    return ClientSessions(
        settings,
        execution,
        ingest,
        petitions=ConfigRequests(settings, execution),
        reading=Subscriptions(settings, streams, locate),
        service=ClientQueries(execution, chance, wrapping, locate, streams),
        promotion=CommitReplay(settings, execution, locate),
    )
