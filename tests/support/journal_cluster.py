"""Three journals in memory, joined by queues that a test may cut, and clients that keep what they are told."""

from __future__ import annotations

import random
from collections import deque
from hashlib import sha256

from chaplain.core import Drained, Halt, Persist, Persisted, Report, Woken
from chaplain.gossip.events import MembersConfigured
from chaplain.journal.consensus.events import ConsensusStarted, LogRead, ReadLog, Role, RoleChanged
from chaplain.journal.core import JournalCore
from chaplain.journal.events import Admitted, FileRead, JournalParcel, ReadFile, Verified, Verify
from chaplain.journal.messages import client as client_messages
from chaplain.journal.messages.client import (
    ClientMessage,
    Decided,
    NodeMessage,
    NotWritten,
    Receipts,
    Run,
    SubmitPetition,
    Write,
)
from chaplain.journal.messages.cluster import ConfigEntry, genesis
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import Wrapping, holds
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.settings import ConsensusSettings, JournalSettings
from chaplain.journal.snapshots.checkpoint import checkpoint_name
from chaplain.journal.storage.log import hard_state_name, records_between, sync_hint_name
from chaplain.journal.tree.service import signed_file
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.segment.layout import parse_name
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel
from simulator.world.disk import apply
from tests.support.execution_stage import ADMIN, ADMIN_ACL, CLUSTER, NODES, founding, lease

MILLISECOND = 10**6
SEGMENT_BYTES = 64 * 1024


class Node:
    """One process: a core, and the host that performs its effects."""

    def __init__(self, cluster: Cluster, number: int, life: int) -> None:
        self.cluster = cluster
        self.number = number
        self.files = cluster.disks[number]
        self.peer = Peer(bytes((number, life)) * 8, number, NODES[number].key, f"tcp://127.0.0.1:{7000 + number}")
        settings = cluster.settings(number)
        order = settings.order
        self.core = JournalCore(
            settings,
            cluster.founding,
            random.Random(number * 1000 + life),
            identity=NODES[number],
            identifier=number,
            segments=segments_of(self.files),
            sync_hint=_read(self.files, sync_hint_name(order)),
            hard_state=_read(self.files, hard_state_name(order)),
            ingest=_read(self.files, settings.ingest_file),
            checkpoint=_read(self.files, checkpoint_name(order)),
            signed=_read(self.files, signed_file(settings)),
            wrapping=cluster.wrapping,
        )
        self.reports: list[Report] = []
        self.halts: list[Halt] = []
        self.admitted: Admitted | None = None
        self.assembled: MembersConfigured | None = None
        self.role = Role.OUT
        self.verifies = 0
        self.inbox: deque = deque([ConsensusStarted()])

    def take(self, event) -> None:
        for effect in self.core.step(self.cluster.now_ns, event):
            self._perform(effect)

    def _perform(self, effect) -> None:
        match effect:
            case Whisper():
                self.cluster.carry(self, effect)
            case Persist():
                for operation in effect.operations:
                    apply(self.files, operation)
                self.inbox.append(Persisted(effect.ticket))
            case Verify():
                self.verifies += 1
                self.inbox.append(Verified(effect.ticket, tuple(map(holds, effect.items))))
            case ReadLog():
                files = [data for _, data in segments_of(self.files)]
                self.inbox.append(LogRead(effect.token, records_between(files, effect.start, effect.end)))
            case ReadFile():
                self.inbox.append(FileRead(effect.token, _read(self.files, effect.file)))
            case Admitted():
                self.admitted = effect
            case MembersConfigured():
                self.assembled = effect
            case RoleChanged():
                self.role = effect.role
            case Report():
                self.reports.append(effect)
            case Halt(again=True):
                self.cluster.again.append(self.number)
            case Halt():
                assert effect.removed, effect.reason
                self.halts.append(effect)

    def work(self) -> bool:
        """Everything that waits, then one tick."""
        if not self.inbox:
            return False
        for _ in range(len(self.inbox)):
            self.take(self.inbox.popleft())
        self.take(Drained())
        return True


class Client:
    def __init__(self, cluster: Cluster, identity: Identity = ADMIN, acl: bytes = ADMIN_ACL, name: str = "default"):
        self.cluster = cluster
        self.identity = identity
        self.acl = acl
        cluster.clients_made += 1
        instance = b"client %9d" % cluster.clients_made
        self.peer = Peer(instance, identity.identifier, identity.key, client=name)
        self.node: int = 0
        self.inbox: list[tuple[NodeMessage, bytes]] = []
        self.calls = 0

    def connect(self, number: int) -> Client:
        self.disconnect()
        self.node = number
        self.cluster.clients[self.peer.instance] = self
        self.cluster.nodes[number].inbox.append(Entered(self.peer, {}))
        return self

    def disconnect(self) -> None:
        if self.node in self.cluster.nodes:
            self.cluster.nodes[self.node].inbox.append(Exited(self.peer, "done"))
        self.node = 0

    def say(self, message: ClientMessage, payload: bytes = b"") -> None:
        said = Parcel(self.identity.identifier, Layer.JOURNAL, client_messages.encode(message), payload)
        self.cluster.nodes[self.node].inbox.append(JournalParcel(self.peer, said))

    def ask(self, message: ClientMessage, payload: bytes = b"") -> tuple[NodeMessage, bytes]:
        """Say it, and wait for what comes back with the call."""
        self.say(message, payload)
        self.cluster.settle()
        found = [one for one in self.inbox if getattr(one[0], "call", None) == message.call]  # type: ignore[union-attr]
        assert found, f"no answer to {message}"
        return found[-1]

    def petition(self, entry: ConfigEntry) -> Decided:
        self.calls += 1
        self.say(SubmitPetition(self.calls, entry.entry_type, entry.stage), entry.data)
        self.cluster.until(lambda: self.told(Decided) and self.told(Decided)[-1].call == self.calls)
        return self.told(Decided)[-1]

    def lease(self, nonce: bytes = b"n" * 16) -> int:
        decided = self.petition(lease(self.identity, self.acl, nonce))
        assert decided.kind == "applied", decided
        return decided.client_id

    def write(self, *entries: IngestEntry) -> None:
        for entry in entries:
            self.say(Write(entry.stream), bytes(entry.raw))

    def told(self, kind: type) -> list:
        return [message for message, _ in self.inbox if isinstance(message, kind)]

    @property
    def runs(self) -> list[Run]:
        return [run for receipts in self.told(Receipts) for run in receipts.runs]


class Cluster:
    def __init__(
        self,
        count: int = 3,
        policy: ExecutionPolicy | None = None,
        *,
        wrapping: Wrapping | None = None,
        copies: int = 0,
        order: dict[str, int] | None = None,
        **settings: object,
    ) -> None:
        """With copies, the first three serialize and are index-only. `order` are settings of the order."""
        self.now_ns = 1_000_000_000_000
        self.numbers = tuple(range(1, count + 1))
        self.wrapping = wrapping
        serializers = self.numbers[:3] if copies else self.numbers
        wrapping_id = wrapping.id if wrapping else b""
        self.founding = founding(policy, wrapping_id, serializers, count=max(3, count), copies=copies)
        self.swapped: set[int] = set()
        """Whose disk is another than the one it was founded with."""
        self._settings: dict = settings
        self._order: dict = {"segment_bytes": SEGMENT_BYTES, **(order or {})}
        self.disks: dict[int, dict[str, bytearray]] = {number: {} for number in NODES}
        self.nodes: dict[int, Node] = {}
        self.lives = dict.fromkeys(NODES, 0)
        self.clients: dict[bytes, Client] = {}
        self.clients_made = 0
        self.cut: set[tuple[int, int]] = set()
        """Directions in which nothing arrives."""
        self.again: list[int] = []
        """Who wants to start again."""
        self.spoil = None
        """Called with (from, to, parcel); what it says is true of is lost."""
        for number in self.numbers:
            self.start(number)

    def settings(self, number: int) -> JournalSettings:
        order = ConsensusSettings(
            node=number,
            genesis=genesis(CLUSTER),
            disk=bytes((number,)) * 16 if number not in self.swapped else bytes(16),
            founding_disk=bytes((number,)) * 16,
            boot=b"boot".ljust(16),
            **self._order,
        )
        return JournalSettings(order, **self._settings)

    def start(self, number: int) -> Node:
        self.lives[number] += 1
        node = self.nodes[number] = Node(self, number, self.lives[number])
        for other in self.nodes.values():
            if other is not node:
                other.inbox.append(Entered(node.peer, {}))
                node.inbox.append(Entered(other.peer, {}))
        return node

    def kill(self, number: int) -> None:
        dead = self.nodes.pop(number)
        for other in self.nodes.values():
            other.inbox.append(Exited(dead.peer, "gone"))

    def wipe(self, number: int) -> None:
        """Somebody puts an empty disk in; the node must not run."""
        self.disks[number].clear()
        self.swapped.add(number)

    def carry(self, sender: Node, effect: Whisper) -> None:
        said = parcel.decode(effect.content)
        assert said.layer == Layer.JOURNAL
        client = self.clients.get(effect.instance)
        if client is not None:
            if client.node == sender.number:
                client.inbox.append((client_messages.decode_node(said.body), said.payload))
            return
        for node in self.nodes.values():
            way = (sender.number, node.number)
            if node.peer.instance != effect.instance or way in self.cut:
                continue
            if self.spoil is None or not self.spoil(*way, said):
                node.inbox.append(JournalParcel(sender.peer, said))

    def settle(self, rounds: int = 10_000) -> None:
        """Until nobody has anything to do at this moment."""
        for _ in range(rounds):
            worked = [node.work() for node in list(self.nodes.values())]
            if not any(worked):
                return
            while self.again:
                self.kill(self.again[-1])
                self.start(self.again.pop())
        raise AssertionError("never came to rest")

    def until(self, condition, limit_ns: int = 60 * 10**9) -> None:
        """Let time pass until the condition holds."""
        end_ns = self.now_ns + limit_ns
        self.settle()
        while not condition():
            due = [when for node in self.nodes.values() if (when := node.core.deadline()) is not None]
            assert due, "nobody wants to do anything"
            assert self.now_ns < end_ns, "the condition never held"
            self.now_ns = max(self.now_ns + 1, min(due))
            for node in self.nodes.values():
                when = node.core.deadline()
                if when is not None and when <= self.now_ns:
                    node.take(Woken())
                    node.take(Drained())
            self.settle()

    def rest(self, time_ns: int) -> None:
        """Let so much time pass."""
        end_ns = self.now_ns + time_ns
        self.until(lambda: self.now_ns >= end_ns)

    @property
    def master(self) -> int:
        return next((number for number, node in self.nodes.items() if node.role is Role.MASTER), 0)

    def elect(self) -> int:
        self.until(lambda: self.master != 0)
        self.until(lambda: len({node.core.execution.applied_index for node in self.nodes.values()}) == 1)
        return self.master

    def agree(self) -> None:
        """Until all have executed the same."""
        self.until(lambda: len({node.core.execution.applied_index for node in self.nodes.values()}) == 1)
        assert len({node.core.execution.fingerprint() for node in self.nodes.values()}) == 1


def others(cluster: Cluster, number: int) -> list[int]:
    return [node for node in cluster.numbers if node != number]


def refused(client: Client, *entries) -> list[tuple[str, int]]:
    before = len(client.told(NotWritten))
    client.write(*entries)
    client.cluster.settle()
    return [(one.kind, one.first_id) for one in client.told(NotWritten)[before:]]


def segments_of(files: dict[str, bytearray]) -> list[tuple[int, bytes]]:
    names = sorted(name for name in files if name.endswith(".segment"))
    return [(parse_name(name)[1], bytes(files[name])) for name in names]


def _read(files: dict[str, bytearray], name: str) -> bytes | None:
    return bytes(files[name]) if name in files else None


def digest(data: bytes) -> bytes:
    return sha256(data).digest()
