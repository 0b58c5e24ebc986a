"""A cluster of serializers under a test's own hands: nothing moves unless the test says so."""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from random import Random

from chaplain.core import Drained, Halt, Persist, Persisted, Report, Woken
from chaplain.journal.consensus.core import SerializerCore
from chaplain.journal.consensus.election_proof import Candidacy, sign_vote
from chaplain.journal.consensus.events import (
    Agreed,
    ConsensusStarted,
    LogRead,
    NeedPayload,
    PayloadArrived,
    PeerDown,
    PeerUp,
    ReadLog,
    Received,
    Role,
    SendMessage,
)
from chaplain.journal.messages.cluster import Reference, genesis
from chaplain.journal.messages.consensus import ElectionProof, OrderMessage, decode, encode
from chaplain.journal.settings import ConsensusSettings
from chaplain.journal.storage.log import hard_state_name, records_between, sync_hint_name
from simulator.adapters.consensus_node import CountingExecution, identity_of, segments_of
from simulator.world.disk import apply

MILLISECOND = 10**6
SECOND = 10**9
START_NS = 1_800_000_000 * SECOND


class ConsensusHost:
    """One serializer, its files, and what it wants."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.files: dict[str, bytearray] = {}
        self.disk = self.founding = sha256(b"disk %d" % node).digest()[:16]
        self.boot = b"boot            "
        self.persists: deque[Persist] = deque()
        self.core: SerializerCore
        self.start()

    @property
    def settings(self) -> ConsensusSettings:
        return ConsensusSettings(
            self.node,
            genesis("tested"),
            self.disk,
            self.founding,
            self.boot,
            segment_bytes=64 * 1024,
            recent_bytes_max=2048,
            supply_bytes_max=4096,
        )

    def start(self) -> None:
        files = {name: bytes(data) for name, data in self.files.items()}
        self.agreed: list[Agreed] = []
        self.needs: list[NeedPayload] = []
        self.reports: list[Report] = []
        self.halted = ""
        self.persists.clear()
        self.execution = CountingExecution(self.cluster.members, self.cluster.founders)
        self.core = SerializerCore(
            self.settings,
            identity_of(self.node),
            Random(f"{self.node}"),
            self.execution,
            segments=segments_of(files),
            sync_hint=files.get(sync_hint_name(self.settings)),
            hard_state=files.get(hard_state_name(self.settings)),
        )

    def step(self, event: object) -> None:
        for effect in self.core.step(self.cluster.now_ns, event):  # type: ignore[arg-type]
            match effect:
                case SendMessage():
                    self.cluster.wires[self.node, effect.node].append(effect.message)
                case Persist():
                    self.persists.append(effect)
                case Agreed():
                    self.agreed.append(effect)
                case NeedPayload():
                    self.needs.append(effect)
                case Report():
                    self.reports.append(effect)
                case Halt():
                    self.halted = effect.reason
                case ReadLog():
                    files = [data for _, data in segments_of(self.files)]
                    self.step(LogRead(effect.token, records_between(files, effect.start, effect.end)))
                case _:
                    pass

    def write(self) -> None:
        """The disk performs the oldest ticket, and tells."""
        persist = self.persists.popleft()
        for operation in persist.operations:
            apply(self.files, operation)
        self.step(Persisted(persist.ticket))

    def said(self, to: int) -> list[OrderMessage]:
        """What is under way to another node."""
        return [decode(message) for message in self.cluster.wires[self.node, to]]

    def hear(self, sender: int, message: OrderMessage) -> None:
        self.step(Received(sender, encode(message, sender)))

    def hear_proof(self, master: int, regime: int, *voters: int) -> None:
        """These nodes have elected that master of the regime, and it shows their votes."""
        self.hear(master, election_proof(regime, master, *voters))


def vote(regime: int, candidate: int, voter: int) -> bytes:
    """The signature of the voter's vote."""
    return sign_vote(identity_of(voter), Candidacy(genesis("tested"), regime, candidate))


def election_proof(regime: int, candidate: int, *voters: int) -> ElectionProof:
    return ElectionProof(regime, {voter: vote(regime, candidate, voter) for voter in voters})


class Cluster:
    def __init__(self, size: int = 3, founders: tuple[int, ...] = (), strangers: int = 0) -> None:
        self.now_ns = START_NS
        self.members = tuple(range(1, size + 1))
        self.nodes = tuple(range(1, size + strangers + 1))
        self.founders = founders
        """Those that serialize at first; all, if none is named."""
        self.wires: dict[tuple[int, int], deque[bytes]] = {
            (a, b): deque() for a in self.nodes for b in self.nodes if a != b
        }
        self.cut: set[tuple[int, int]] = set()
        self.hosts = {node: ConsensusHost(self, node) for node in self.nodes}
        self.down: set[int] = set()
        self.payloads = 0
        for host in self.hosts.values():
            self.rise(host)

    def __getitem__(self, node: int) -> ConsensusHost:
        return self.hosts[node]

    def rise(self, host: ConsensusHost) -> None:
        self.down.discard(host.node)
        host.step(ConsensusStarted())
        for other in self.nodes:
            if other != host.node and other not in self.down:
                host.step(PeerUp(other))
                self.hosts[other].step(PeerUp(host.node))

    def kill(self, node: int, told: bool = True) -> None:
        self.down.add(node)
        for pair in self.wires:
            if node in pair:
                self.wires[pair].clear()
        for other in self.nodes:
            if told and other not in self.down:
                self.hosts[other].step(PeerDown(node))

    def restart(self, node: int) -> None:
        self.hosts[node].start()
        self.rise(self.hosts[node])

    def up(self) -> list[ConsensusHost]:
        return [host for node, host in self.hosts.items() if node not in self.down]

    def followers(self) -> list[int]:
        return [node for node in self.nodes if node != self.master().node]

    def move(self) -> bool:
        """Deliver one message on every wire, let every disk write, drain."""
        moved = False
        for (sender, receiver), wire in self.wires.items():
            while wire:
                message = wire.popleft()
                moved = True
                if receiver not in self.down and (sender, receiver) not in self.cut:
                    self.hosts[receiver].step(Received(sender, message))
        for host in self.up():
            while host.persists and not host.halted:
                host.write()
                moved = True
            host.step(Drained())
            moved = moved or (bool(host.persists) and not host.halted)
        return moved or any(self.wires.values())

    def settle(self) -> None:
        for _ in range(1000):
            if not self.move():
                return
        raise AssertionError("the cluster never comes to rest")

    def run(self, seconds: float) -> None:
        """Let time pass, in steps of ten milliseconds."""
        self.settle()
        for _ in range(int(seconds * 100)):
            self.now_ns += 10 * MILLISECOND
            for host in self.up():
                due = host.core.deadline()
                if due is not None and due <= self.now_ns:
                    host.step(Woken())
            self.settle()

    def master(self) -> ConsensusHost:
        masters = [host for host in self.up() if host.core.role is Role.MASTER]
        assert len(masters) == 1, masters
        return masters[0]

    def arrive(self, *nodes: int, size_bytes: int = 0) -> PayloadArrived:
        """A payload comes in from ingest node 9, at these nodes or all."""
        self.payloads += 1
        payload = (b"payload %d " % self.payloads * 20).ljust(size_bytes)
        arrived = PayloadArrived(Reference(9, 1, self.payloads), sha256(payload).digest(), payload)
        for host in self.up():
            if not nodes or host.node in nodes:
                host.step(arrived)
        return arrived


def elected() -> Cluster:
    """Three that have a master."""
    made = Cluster(3)
    made.run(3)
    return made
