"""Client sessions of one node's journal: identifies clients, and dispatches their messages to the parts that answer.

Decides which identity a session has: the active identity, as executed here, of the key that the session proved. The
parts decide everything else.

Invariant: a client without an active identity is never served.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, assert_never

from chaplain.core import soonest
from chaplain.journal.clients.config_requests import ConfigRequestEffect, ConfigRequests
from chaplain.journal.clients.queries import ClientQueries, QueryEffect
from chaplain.journal.clients.receipts import LaneSubscriptions
from chaplain.journal.clients.subscriptions import SubscriptionEffect, Subscriptions
from chaplain.journal.consensus.events import Role, RoleChanged
from chaplain.journal.events import Admitted, Locate, PackWritten, Part
from chaplain.journal.execution.local_roles import LocalRoles
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.admission import refuse
from chaplain.journal.ingest.commit_replay import CommitReplay, ReplayEffect
from chaplain.journal.ingest.core import IngestCore
from chaplain.journal.messages.client import (
    AskConsumers,
    AskLane,
    AskPaid,
    AskProof,
    AskTree,
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
from chaplain.journal.messages.peer import ForwardConfigRequest
from chaplain.journal.messages.signing import Wrapping
from chaplain.journal.messages.write_request import client_id_of, read_heading
from chaplain.journal.model.reason import REASONS, kind_of
from chaplain.journal.model.records import ClientIdentity, IdentityStatus
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.peers import members_of
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.verdict import Reason
from chaplain.journal.tree.service import TreeService
from chaplain.link.events import Peer
from chaplain.rights import NO_ROLE, NOT_EXECUTOR, RequiredRight, Right, may_read, refusal
from chaplain.segment.record import Record

LINGER_NS = 200_000_000
"""Sessions of a removed or compromised identity stay open for this time. The client gets an answer that names the
reason."""
_LogReader: TypeAlias = Subscriptions | ClientQueries | CommitReplay
SessionEffect: TypeAlias = ConfigRequestEffect | SubscriptionEffect | QueryEffect | ReplayEffect


class ClientSessions:
    """Sessions by instance, and the parts that serve them."""

    def __init__(
        self,
        settings: JournalSettings,
        execution: JournalExecution,
        ingest: IngestCore,
        *,
        config_requests: ConfigRequests,
        subscriptions: Subscriptions,
        queries: ClientQueries,
        commit_replay: CommitReplay,
    ) -> None:
        self._settings = settings
        self._execution = execution
        self._ingest = ingest
        self.config_requests = config_requests
        self.subscriptions = subscriptions
        self.queries = queries
        self.commit_replay = commit_replay
        self._log_readers: dict[Part, _LogReader] = {
            Part.SUBSCRIPTIONS: subscriptions,
            Part.QUERIES: queries,
            Part.COMMIT_REPLAY: commit_replay,
        }
        self._parts = {Part.CONFIG_REQUESTS: config_requests, **self._log_readers}
        self._roles = LocalRoles(settings, execution)
        self._lane_subscriptions = LaneSubscriptions()
        self._closed = False
        """The cluster removed this node: it serves no client."""
        self.peers: dict[bytes, Peer] = {}
        """Clients with a session, by instance."""
        self._active: dict[bytes, str] = {}
        """Names of the active clients by key, as last admitted."""
        self._lingering: dict[bytes, tuple[str, int]] = {}
        """Ended identities by key: the name, and when their sessions end."""
        self._master_regime = 0
        """The regime in which this node is master; 0 if it is not."""
        self._members = MembersAre((), ())
        """The members that were last sent to clients."""

    def take_effects(self) -> list[tuple[Part, SessionEffect]]:
        """Remove and return the effects of all parts, each with its part."""
        if not (
            self.config_requests.effects
            or self.subscriptions.effects
            or self.queries.effects
            or self.commit_replay.effects
        ):
            return []  # the common case
        effects: list[tuple[Part, SessionEffect]] = []
        for name, part in self._parts.items():
            if part.effects:
                effects += [(name, effect) for effect in part.effects]
                part.effects.clear()
        return effects

    def close(self) -> None:
        """The cluster removed this node: from now on it serves no client."""
        self._closed = True

    def on_log_read(self, part: Part, token: int, records: Sequence[Record]) -> None:
        """A read of the log that a part requested is complete."""
        self._log_readers[part].on_log_read(token, records)

    def on_log_synced(self) -> None:
        """More of the log may be on disk: parts that wait to read it try again."""
        if self.subscriptions.unwritten:
            self.subscriptions.retry_unwritten()
        self.queries.on_log_synced()
        if self._execution.state.staged_packs.committed:
            self.commit_replay.replay_next()

    def entered(self, peer: Peer) -> Iterator[tuple[bytes, NodeMessage]]:
        """A client opened a session."""
        self.peers[peer.instance] = peer
        yield from self._send_members((peer.instance,))

    def exited(self, instance: bytes) -> bool:
        """A session ended. Return False if it was not known."""
        if self.peers.pop(instance, None) is None:
            return False
        self._lane_subscriptions.unsubscribe(instance)
        self.subscriptions.session_closed(instance)
        self.config_requests.session_closed(instance)
        return True

    @property
    def due_ns(self) -> int | None:
        """When a lingering session ends, or a configuration request is sent again."""
        if not self._lingering and not self.config_requests.pending:
            return None
        return soonest((*(until_ns for _, until_ns in self._lingering.values()), self.config_requests.due_ns))

    def woken(self, now_ns: int) -> list[Admitted]:
        self.config_requests.woken(now_ns)
        self.commit_replay.woken(now_ns)
        over = any(until_ns <= now_ns for _, until_ns in self._lingering.values())
        return [self.admitted_clients(now_ns)] if over else []

    def admitted_clients(self, now_ns: int) -> Admitted:
        """The clients that may have a session: all active ones, and for `LINGER_NS` those that no longer are."""
        clients = () if self._closed else self._execution.state.clients.values()
        active = {client.key: client.name for client in clients if client.status == IdentityStatus.ACTIVE}
        ended = {key: (name, now_ns + LINGER_NS) for key, name in self._active.items() if key not in active}
        kept = {key: kept for key, kept in self._lingering.items() if key not in active and kept[1] > now_ns}
        self._active, self._lingering = active, {**ended, **kept}
        return Admitted({**active, **{key: name for key, (name, _) in self._lingering.items()}})

    def role_changed(self, now_ns: int, changed: RoleChanged) -> Iterator[tuple[bytes, NodeMessage]]:
        """The node's role or its master changed. Inform clients whether this node is master, so that they may prefer
        it.
        """
        self.config_requests.role_changed(now_ns, changed)
        self.commit_replay.role_changed(now_ns, changed)
        regime = changed.regime if changed.role is Role.MASTER else 0
        if regime != self._master_regime:
            self._master_regime = regime
            yield from ((instance, Leads(regime)) for instance in self.peers)

    def members_changed(self) -> Iterator[tuple[bytes, NodeMessage]]:
        """The members or their roles changed: send clients the new list, so that they find other nodes."""
        members = members_of(self._execution.cluster_config)
        if members != self._members:
            self._members = members
            yield from self._send_members(self.peers)

    def _send_members(self, instances: Iterable[bytes]) -> Iterator[tuple[bytes, NodeMessage]]:
        yield from ((instance, self._members) for instance in instances if self._identity(instance) is not None)

    def on_applied(self, executed: AppliedMessage) -> Iterator[tuple[bytes, NodeMessage]]:
        """A message was executed: return the messages to clients, besides the effects of the parts."""
        yield from self._lane_subscriptions.answers(executed)
        if self.config_requests.pending:
            self.config_requests.on_applied(executed)
        self.subscriptions.on_applied(executed)
        if self._execution.state.staged_packs.committed:
            self.commit_replay.replay_next()
        if executed.clients_changed:
            self.subscriptions.end_forbidden(self._may_read)

    def _may_read(self, instance: bytes, stream: str) -> bool:
        client = self._identity(instance)
        return client is not None and may_read(client, stream)

    def _identity(self, instance: bytes) -> ClientIdentity | None:
        client = self._execution.client_of_key(self.peers[instance].key)
        return client if client is not None and client.status == IdentityStatus.ACTIVE else None

    def write(self, peer: Peer, message: Write, payload: bytes) -> PackWritten | NodeMessage:
        """Handle a pack of a client. Returns the input of ingest, or a refusal."""
        client = self._identity(peer.instance)
        if client is None:
            return self._refuse_identity(peer, message, payload)
        self._subscribe_lane(peer.instance, client, client_id_of(payload))
        return PackWritten(peer.instance, client.acl, message.stream, payload, message.check)

    def dispatch(self, now_ns: int, peer: Peer, message: ClientMessage, payload: bytes) -> Iterator[NodeMessage]:
        """Handle any other message of a client. Returns direct answers; the parts add effects of their own."""
        client = self._identity(peer.instance)
        if client is None:
            yield self._refuse_identity(peer, message, payload)
            return
        instance = peer.instance
        match message:
            case Write():
                raise AssertionError("handled by `write`")
            case Open():
                names = (self._settings.node, self._execution.cluster, client.acl, client.name)
                bound, reserved = self._settings.pack_bytes_max, self._roles.accepted_clients
                credit, epoch = self._ingest.credit_of(instance), self._execution.state.epochs.token
                yield Opened(message.call, *names, credit, bound, self._master_regime, reserved, epoch)
            case SubmitPetition():
                petition = ForwardConfigRequest(message.entry_type, message.stage, payload)
                self.config_requests.submit(now_ns, (instance, message.call), client.acl, petition)
            case AskLane():
                self._subscribe_lane(instance, client, message.client_id)
                self.queries.lane(instance, client, message)
            case Read():
                if not self._roles.answers_reads:
                    yield Ended(message.call, NOT_EXECUTOR, NO_ROLE, message.offset)
                elif may_read(client, message.stream):
                    self.subscriptions.begin(instance, client.acl, message)
                else:
                    why = refusal(RequiredRight(Right.READ, message.stream))
                    yield Failed(message.call, kind_of(Reason.NO_RIGHT), why)
            case Grant():
                self.subscriptions.grant(instance, message)
            case StopReading():
                self.subscriptions.stop(instance, message.call)
            case AskProof():
                self.queries.proof(instance, message)
            case WrapSecret():
                self.queries.wrap(instance, message, payload, client)
            case ListStreams():
                self.queries.streams(instance, message, client)
            case AskTree():
                self.queries.tree(instance, message)
            case ListNodes():
                self.queries.nodes(instance, message.call)
            case AskConsumers():
                self.queries.consumers(instance, message, client)
            case AskPaid():
                self.queries.replay_progress(instance, message.call)
            case ListClients():
                self.queries.clients(instance, message.call, client)
            case _:
                assert_never(message)

    def _subscribe_lane(self, instance: bytes, client: ClientIdentity, client_id: int) -> None:
        """Send the receipts of this lane to the session, if the lane belongs to the client."""
        lane = self._execution.state.lanes.get(client_id)
        if lane is not None and lane.acl == client.acl:
            self._lane_subscriptions.subscribe(instance, client_id)

    def _refuse_identity(self, peer: Peer, message: ClientMessage, payload: bytes) -> NodeMessage:
        """Answer a client whose identity is unknown, removed or compromised according to the executed messages."""
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


def make_client_sessions(
    settings: JournalSettings,
    execution: JournalExecution,
    ingest: IngestCore,
    *,
    streams: StreamIndex,
    locate: Locate,
    chance: random.Random,
    wrapping: Wrapping | None,
    is_backfilling: Callable[[], bool],
    tree: TreeService,
    tokens: Iterator[int],
) -> ClientSessions:
    """Build the sessions with all their parts. `locate` finds messages in the log, `is_backfilling` is that of
    `Subscriptions`, and `tokens` numbers reads of the log and signature checks.
    """
    return ClientSessions(
        settings,
        execution,
        ingest,
        config_requests=ConfigRequests(settings, execution, tokens),
        subscriptions=Subscriptions(settings, streams, locate, is_backfilling, tokens),
        queries=ClientQueries(execution, chance, wrapping, locate, streams, tree=tree, tokens=tokens),
        commit_replay=CommitReplay(settings, execution, locate, tokens),
    )
