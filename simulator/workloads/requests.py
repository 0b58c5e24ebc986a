"""The whole journal: five nodes over plain connections, clients that write and retry, and a rogue member.

The node is a `JournalCore` in a minimal adapter: it dials every peer and begins each frame with its number. Clients are
not processes of the world; their messages reach a node late, twice or never.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import Any, ClassVar

from chaplain.core import (
    Arrived,
    Persist,
    Send,
)
from chaplain.gossip.events import MembersConfigured
from chaplain.journal.clients import sessions
from chaplain.journal.consensus import follower, repair, unconfirmed
from chaplain.journal.consensus.events import ConsensusStarted, LogRead, ReadLog
from chaplain.journal.core import JournalCore
from chaplain.journal.events import Admitted, JournalParcel, Verified, Verify
from chaplain.journal.execution import state_machine as execution
from chaplain.journal.execution import two_phase
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest import admission, signature_queue
from chaplain.journal.ingest import core as ingest
from chaplain.journal.messages import ingest as ingest_message
from chaplain.journal.messages import peer as peer_messages
from chaplain.journal.messages.cluster import genesis
from chaplain.journal.messages.config import acl_id
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.peer import ForwardConfigRequest
from chaplain.journal.messages.signing import holds
from chaplain.journal.model.bootstrap import (
    ALL_STREAMS,
    BootstrapClient,
    BootstrapMember,
    ClusterBootstrap,
    ExecutionPolicy,
)
from chaplain.journal.model.epochs import EpochBounds
from chaplain.journal.model.log_entry import AgreedEntry, Decision
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.settings import ConsensusSettings, JournalSettings
from chaplain.journal.snapshots.checkpoint import checkpoint_name
from chaplain.journal.storage import records
from chaplain.journal.storage.last_known_members import LAST_KNOWN_MEMBERS_FILE
from chaplain.journal.storage.log import hard_state_name, records_between, sync_hint_name
from chaplain.journal.tree.service import signed_file
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.units import SECOND_NS
from chaplain.wire import parcel
from simulator.actors.journal_clients import Rogue, SimClient
from simulator.actors.two_phase_client import SimSink
from simulator.adapters.core_adapter import CoreAdapter
from simulator.adapters.delayed_answers import DelayedAnswers
from simulator.adapters.dialer import Dialer
from simulator.checkers import execution_oracle, requests
from simulator.checkers.requests import MessageSent, RequestChecker, Settling
from simulator.checkers.tree import TreeChecker
from simulator.faults.disk_faults import BAD_DISKS, SYNCS_FAIL, damage, fail_syncs
from simulator.faults.plan import CLOCK, NETWORK, PROCESS, Fault
from simulator.memo import Pure
from simulator.workloads import Workload
from simulator.world.disk import apply, segments_of
from simulator.world.machine import BEGUN_NOT_WRITTEN, SYNCED_NOT_TOLD, WRITTEN_NOT_SYNCED, CrashPoint
from simulator.world.world import World

CLUSTER = "simulated"
NODES = 5
_SEGMENT_BYTES = 64 * 1024


def _seed(name: str) -> bytes:
    return sha256(name.encode()).digest()


def _identity(name: str) -> Identity:
    return Identity(_seed(name))


class JournalNode(CoreAdapter):
    """A journal that a host can run."""

    def __init__(self, workload: Requests, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> None:
        self._workload = workload
        self._rng = rng
        self.routing_id = b"\x01" + rng.randbytes(16)
        self.number = workload.number(name)
        settings = workload.settings(name)
        self._files = {file: bytearray(data) for file, data in disk.items()}
        self._told: list[Settling] = []
        self.journal = JournalCore(
            settings,
            workload.founding,
            rng,
            identity=workload.identity(self.number),
            identifier=self.number,
            segments=segments_of(disk),
            sync_hint=disk.get(sync_hint_name(settings.order)),
            hard_state=disk.get(hard_state_name(settings.order)),
            ingest=disk.get(settings.ingest_file),
            checkpoint=disk.get(checkpoint_name(settings.order)),
            last_known_members=disk.get(LAST_KNOWN_MEMBERS_FILE),
            signed=disk.get(signed_file(settings)),
        )
        self._shadow: JournalExecution | None = None
        self._shadows = name == workload.shadowed
        self._listen()
        self._started = False
        peers = (peer for peer in workload.numbers if peer != self.number)
        super().__init__(self.journal, Dialer(peers, workload.endpoint_of, rng, now_ns))
        self._delayed = DelayedAnswers(rng)

    def _listen(self) -> None:
        """Show the checker the result of executing each message."""
        execution = self.journal.execution
        settle, watch = execution.apply, execution._on_applied
        executed: list[AppliedMessage] = []

        def watched(one: AppliedMessage) -> None:
            executed.append(one)
            assert watch is not None
            watch(one)

        def settled(message: AgreedEntry, /) -> Decision:
            decision = settle(message)
            tree = execution.state.tree
            consumers = execution.state.consumers.export()
            ended = (execution.fingerprint(), tree.size, tree.root(), consumers)
            self._told.append(Settling(message, executed.pop(), *ended))
            if self._shadows:
                self._shadowed(message)
            return decision

        execution._on_applied = watched
        execution.apply = settled  # type: ignore[method-assign]

    def _shadowed(self, message: AgreedEntry) -> None:
        """An execution that started from a snapshot must continue like the one that the snapshot was taken of."""
        execution = self.journal.execution
        if self._shadow is not None:
            self._shadow.apply(message)
            assert self._shadow.fingerprint() == execution.fingerprint(), "a snapshot does not go on alike"
        if self._shadow is None or self._rng.random() < 0.05:
            self._shadow = JournalExecution(self._workload.founding, snapshot=execution.state.export())

    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        effects: list[Any] = []
        if not self._started:
            self._started = True
            self._feed(now_ns, ConsensusStarted(), effects)
        effects += super().step(now_ns, event)
        told, self._told = self._told, []
        return [*told, *effects]

    def _due(self) -> Iterable[int]:
        return self._delayed.due()

    def _up(self, now_ns: int, peer: int, effects: list[Any]) -> None:
        self._feed(now_ns, Entered(self._workload.peer(peer), {}), effects)

    def _arrived(self, now_ns: int, event: Arrived, effects: list[Any]) -> None:
        number = self._dialer.arrived(event)
        self._feed(now_ns, JournalParcel(self._workload.peer(number), parcel.decode(event.frame[1:])), effects)

    def _down(self, now_ns: int, peer: int, reason: str, effects: list[Any]) -> None:
        self._feed(now_ns, Exited(self._workload.peer(peer), reason), effects)

    def _late(self, now_ns: int) -> Iterable[Any]:
        return self._delayed.take(now_ns)

    def _feed(self, now_ns: int, event: Any, effects: list[Any]) -> None:
        """Step the journal, and carry out the effects that a host does not know."""
        for effect in self.journal.step(now_ns, event):
            match effect:
                case Whisper():
                    self._whisper(effect, effects)
                case ReadLog():
                    files = [data for _, data in segments_of(self._files)]
                    read = LogRead(effect.token, records_between(files, effect.start, effect.end))
                    self._feed(now_ns, read, effects)
                case Verify():
                    answer = Verified(effect.ticket, tuple(map(holds, effect.items)))
                    self._delayed.add(now_ns, answer)
                case Persist():
                    for operation in effect.operations:
                        apply(self._files, operation)
                    effects.append(effect)
                case Admitted() | MembersConfigured():
                    pass  # clients need no admission here, and nodes dial each other without checks
                case _:
                    effects.append(effect)

    def _whisper(self, effect: Whisper, effects: list[Any]) -> None:
        dial = self._dialer.to.get(self._workload.node_of(effect.instance))
        if dial is not None:
            effects.append(Send(dial, bytes((self.number,)) + effect.content))
            return
        effects.append(MessageSent(effect.instance, effect.content))


class Requests(Workload):
    kinds: ClassVar[Sequence[str]] = (*NETWORK, *PROCESS, *CLOCK, "slow disk")
    rare_kinds: ClassVar[Sequence[str]] = ("EIO", SYNCS_FAIL, *BAD_DISKS)
    points: ClassVar[Sequence[CrashPoint]] = (
        WRITTEN_NOT_SYNCED,
        SYNCED_NOT_TOLD,
        BEGUN_NOT_WRITTEN,
        CrashPoint("after an answer", lambda effect: isinstance(effect, MessageSent)),
        CrashPoint("after settling", lambda effect: isinstance(effect, Settling)),
    )

    memoized_functions: ClassVar[Sequence[Pure]] = (
        (parcel, "decode"),
        (peer_messages, "decode"),
        (ingest_message, "decode"),
        *((module, "decode_body") for module in (follower, records, repair, unconfirmed)),
        *((module, "decode_pack") for module in (two_phase, requests, execution_oracle)),
        *((module, "read_heading") for module in (sessions, execution, ingest, admission)),
        *((module, "request_digest") for module in (execution, admission)),
        *((module, "holds") for module in (signature_queue, execution, sys.modules[__name__])),
    )

    people: ClassVar[Sequence[tuple[str, tuple[str, ...], bool]]] = (
        ("default", ALL_STREAMS, True),
        ("bob", ("bob-*",), False),
        ("carol", ALL_STREAMS, False),
        ("sink", ALL_STREAMS, False),
    )
    """Names of the clients, the streams that they may write, and whether they are admins."""
    padding_bytes: ClassVar[int] = 0
    """Padding after every value."""
    drops: ClassVar[bool] = False
    """True if files may begin after the first offset."""
    wiped: Sequence[str] = ()
    """The nodes whose disks were wiped or damaged."""
    damaged: Sequence[str] = ()
    """Those of them whose disks lied or have unreadable sectors, and still hold the rest."""
    copies = 0
    """How many nodes hold a payload before it is ordered, if serializers are index-only."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.numbers = tuple(range(1, self.draw_size(rng) + 1))
        self.names = tuple(f"j{number}" for number in self.numbers)
        self.shadowed = rng.choice(self.names)
        """The one node that a second execution accompanies: all nodes execute the same."""
        self.thief = rng.random() < 0.3
        """True if an attacker has a copy of the clients' keys."""
        self.made: list[IngestEntry] = []
        """Every pack that was signed."""
        self.signed: list[ForwardConfigRequest] = []
        """Every configuration request that a client signed."""
        rogue = self.numbers[-1] + 1
        self._keys = {number: _identity(f"node {number}") for number in (*self.numbers, rogue)}
        self.founding = ClusterBootstrap(
            CLUSTER,
            tuple(
                BootstrapMember(number, key.key, self.endpoint_of(number), self._disk(number))
                for number, key in self._keys.items()
            ),
            tuple(
                BootstrapClient(name, _identity(name).key, writes, ALL_STREAMS, admin)
                for name, writes, admin in self.people
            ),
            self.policy(rng),
            serializers=self.serializers,
            copies=self.copies,
        )
        self._peers = {
            number: Peer(bytes((number,)) * 16, number, key.key, self.endpoint_of(number))
            for number, key in self._keys.items()
        }
        self._boots = dict.fromkeys(self.names, 0)
        self.clients = [
            self.make_client(name, _seed(name), acl_id(0, 0, number))
            for number, (name, _, _) in enumerate(self.people, 1)
        ]
        self.rogue = Rogue(self, self._keys[rogue])
        self._checker = RequestChecker(self)
        self._tree_checker = TreeChecker(self)

    def make_client(self, name: str, seed: bytes, acl: bytes) -> SimClient:
        streams = {"default": ("orders", "audit"), "bob": ("bob-1", "bob-2"), "carol": ("orders", "bob-1")}
        streams["sink"] = ("orders", "landed")
        return (SimSink if name == "sink" else SimClient)(self, name, seed, acl, streams[name])

    def draw_size(self, rng: Random) -> int:
        return NODES

    @property
    def serializers(self) -> tuple[int, ...]:
        return self.numbers

    @property
    def client_nodes(self) -> list[str]:
        """The nodes that clients try."""
        return sorted(self.names)

    def enough(self, names: Sequence[str]) -> bool:
        """True if these are a quorum."""
        return 2 * sum(self.number(name) in self.serializers for name in names) > len(self.serializers)

    def demands(self, healed: Sequence[str], voting: Sequence[str], forgetful: Sequence[str] = ()) -> bool:
        """True if the healed nodes must make progress, given that these of them have a vote.

        A node whose log is in doubt has no vote until a quorum of others confirms its state, so it may have to wait for
        a node that was not healed. If all were healed, all of them together suffice, unless one has forgotten more than
        its last record: a node that was wiped, or lost data from its disk (`forgetful`), needs a quorum, too.
        """
        suspects = {*self.wiped, *forgetful}
        forgotten = [name for name in suspects if self.number(name) in self.serializers and name not in voting]
        return self.enough(voting) or (len(healed) == len(self.names) and not forgotten)

    def policy(self, rng: Random) -> ExecutionPolicy:
        idle_ns, bounds = rng.choice((15, 60, 10_000)) * SECOND_NS, EpochBounds(3, rng.choice((30, 300)), 8)
        return ExecutionPolicy(remembered_packs=3, lane_idle_ns=idle_ns, epochs=bounds)

    def number(self, name: str) -> int:
        return self.numbers[self.names.index(name)]

    def endpoint_of(self, number: int) -> str:
        return f"tcp://10.0.0.{number}:7171"

    @staticmethod
    def _disk(number: int) -> bytes:
        return b"disk of node %3d" % number

    def _disk_now(self, name: str) -> bytes:
        """The node's current disk."""
        return self._disk(self.number(name))

    def identity(self, number: int) -> Identity:
        return self._keys[number]

    def peer(self, number: int) -> Peer:
        return self._peers[number]

    def node_of(self, instance: bytes) -> int:
        """The node with this instance; 0 if there is none."""
        number = instance[0]
        return number if number in self._peers and self._peers[number].instance == instance else 0

    def settings(self, name: str) -> JournalSettings:
        number = self.number(name)
        order = ConsensusSettings(
            node=number,
            genesis=genesis(CLUSTER),
            disk=self._disk_now(name),
            founding_disk=self._disk(number),
            boot=b"%16d" % self._boots[name],
            segment_bytes=_SEGMENT_BYTES,
            recent_bytes_max=4096,
            supply_bytes_max=16384,
        )
        return JournalSettings(order, batch_bytes_max=1024, window_bytes=8192, checks_inline_max=1)

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> JournalNode:
        return JournalNode(self, name, rng, disk, now_ns)

    def power_lost(self, name: str) -> None:
        self._boots[name] += 1

    def checkers(self) -> list[Any]:
        return [self._checker, self._tree_checker]

    def inject_fault(self, world: World, fault: Fault) -> None:
        """Fail syncs on all disks; let a disk lie or fail to read on one node in a run."""
        if fault.kind == SYNCS_FAIL:
            fail_syncs(world)
            return
        host = world.hosts[fault.nodes[0]]
        if self.may_damage(host.name):
            self.damaged = self.wiped
            damage(world, host, fault.kind, self.rng)

    def may_damage(self, name: str) -> bool:
        """True if this disk may lose data: only that of the first node that was chosen to lose any."""
        self.wiped = self.wiped or (name,)
        return name in self.wiped

    def begin(self, world: World) -> None:
        self._checker.world = self._tree_checker.world = world
        for client in self.clients:
            client.begin(world)
        self.rogue.begin(world)


WORKLOAD = Requests
