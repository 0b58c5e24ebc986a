"""Whole nodes with journals in the made-up world: who was removed from the cluster has no part in anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from chaplain.client_service.events import RotationWanted
from chaplain.core import Drained, Frozen, Halt, Persist, Report
from chaplain.gossip.events import AskQuery, EventSeen, Fire, GossipParcel, MemberChanged, MemberState, QueryDecided
from chaplain.gossip.layer_api import LayerCore
from chaplain.gossip.settings import GossipSettings
from chaplain.journal.consensus.events import LogRead, ReadLog, Role
from chaplain.journal.core import JournalCore
from chaplain.journal.events import JournalParcel as Spoken
from chaplain.journal.messages import client
from chaplain.journal.messages.client import SubmitPetition
from chaplain.journal.messages.cluster import ConfigEntry, genesis
from chaplain.journal.messages.config import ConfigMessage
from chaplain.journal.messages.membership import AddNode, EntryType, NewSet, RemoveNode
from chaplain.journal.settings import ConsensusSettings, JournalSettings
from chaplain.journal.storage.log import hard_state_name, records_between, sync_hint_name
from chaplain.link.auth.identity import new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.events import Peer
from chaplain.link.settings import LinkSettings
from chaplain.mesh.events import Entered, Exited, JoinPool, Shout, Shouted, Whisper
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore
from chaplain.node.keyring_store import KEYRING_FILE
from chaplain.node.settings import NodeSettings
from chaplain.segment.layout import parse_name
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel
from simulator.checkers.base import Watcher
from simulator.trace import Trace
from simulator.world.disk import apply
from simulator.world.world import World
from tests.support.execution_stage import ADMIN, CLUSTER, NODES, founding, petition

SECOND = 10**9
OLD_RING = KeyRing(b"k" * 32)
CLIENT = Peer(b"c" * 16, ADMIN.identifier, ADMIN.key, client="default")
ADDRESS_OF = {1: 1, 2: 2, 3: 3, 4: 3}
"""Node 4 is made anew on the machine that was node 3's."""
NEWCOMER = AddNode(EntryType.ADD_EXECUTOR_NODE, 4, "tcp://10.0.0.3:7000", NODES[4].key, b"\4" * 16)
OUT = (
    NewSet((1, 2)),
    RemoveNode(EntryType.REMOVE_INGEST_NODE, 3),
    RemoveNode(EntryType.REMOVE_EXECUTOR_NODE, 3),
)


class Petition(Frozen, frozen=True):
    """A client asks this node for a change."""

    entry: ConfigEntry


class Talker(LayerCore):
    """A layer above gossip that greets its like, and keeps what it is told."""

    def __init__(self, identifier: int, layer: Layer = Layer.GRAPH) -> None:
        self.counts: Counter[str] = Counter()
        self._hello = parcel.encode(Parcel(identifier, layer, b"hello"))
        self.here: dict[bytes, Peer] = {}
        self.told_by: list[int] = []

    def step(self, now_ns: int, event: Any) -> list[Any]:
        match event:
            case Entered():
                self.here[event.peer.instance] = event.peer
            case Exited():
                del self.here[event.peer.instance]
            case GossipParcel():
                self.told_by.append(event.peer.identifier)
            case MemberChanged():
                return [Whisper(instance, self._hello) for instance in self.here]
        return []

    def say(self, node: NodeCore) -> None:
        node._work.extend((node._mesh, Whisper(instance, self._hello)) for instance in self.here)

    def deadline(self) -> int | None:
        return None

    def status(self) -> dict[str, object]:
        return {}


class Patient(Talker):
    """One that others have to agree with before they can do without it."""

    serves_removed_nodes = True


class Whole(NodeCore):
    """Does for itself what a host's other threads do; one that is stubborn stops for nobody."""

    stubborn = False
    files: dict[str, bytearray]

    def step(self, now_ns: int, event: Any) -> list[Any]:
        if isinstance(event, Petition):
            self._ask_journal(event.entry)
            event = Drained()
        effects: list[Any] = []
        for effect in super().step(now_ns, event):
            if isinstance(effect, ReadLog):
                names = sorted(name for name in self.files if name.endswith(".segment"))
                records = records_between([bytes(self.files[name]) for name in names], effect.start, effect.end)
                effects += self.step(now_ns, LogRead(effect.token, records))
                continue
            if isinstance(effect, Persist):
                for operation in effect.operations:
                    apply(self.files, operation)
            if not (self.stubborn and isinstance(effect, Halt)):
                effects.append(effect)
        return effects

    def _ask_journal(self, entry: ConfigEntry) -> None:
        assert self._journal is not None
        said = client.encode(SubmitPetition(1, entry.entry_type, entry.stage))
        told = Spoken(CLIENT, Parcel(CLIENT.identifier, Layer.JOURNAL, said, entry.data))
        self._work.extend([(self._journal, Entered(CLIENT, {})), (self._journal, told)])


class Watch(Watcher):
    """Notes who halted, and what was reported."""

    def __init__(self) -> None:
        self.halts: list[tuple[str, Halt]] = []
        self.reports: list[tuple[str, str]] = []

    def observe(self, time_ns: int, host: Any, event: object, effects: Any, /) -> None:
        self.halts += [(host.name, effect) for effect in effects if isinstance(effect, Halt)]
        self.reports += [(host.name, effect.event) for effect in effects if isinstance(effect, Report)]


class Trio:
    def __init__(self) -> None:
        self.founding = founding()
        self.stubborn: set[int] = set()
        self.talkers: dict[int, Talker] = {}
        self.patients: dict[int, Patient] = {}
        self.heard: dict[int, list[object]] = {}
        """What each node showed its clients of pools, events and questions."""
        self.petitions = 0
        self.watch = Watch()
        checkers: Any = [self.watch]
        self.world = World("removed", self._make, Trace(), checkers)
        for number in (1, 2, 3):
            self.world.start(self.world.add(str(number), self._endpoint(number)))
        self.run(10, lambda: self.master and all(self.alive(one) == {1, 2, 3} for one in (1, 2, 3)))

    def _endpoint(self, number: int) -> str:
        return f"tcp://10.0.0.{ADDRESS_OF[number]}:7000"

    def _make(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> NodeCore:
        number = int(name)
        own = bytes((number,)) * 16
        order = ConsensusSettings(number, genesis(CLUSTER), disk=own, founding_disk=own, boot=b"b" * 16)
        files = {file: bytearray(data) for file, data in disk.items()}
        segments = [(parse_name(file)[1], bytes(files[file])) for file in sorted(files) if file.endswith(".segment")]
        journal = JournalCore(
            JournalSettings(order),
            self.founding,
            rng,
            identity=NODES[number],
            identifier=NODES[number].identifier,
            segments=segments,
            sync_hint=disk.get(sync_hint_name(order)),
            hard_state=disk.get(hard_state_name(order)),
            ingest=disk.get(JournalSettings(order).ingest_file),
        )
        talker = self.talkers[number] = Talker(NODES[number].identifier)
        patient = self.patients[number] = Patient(NODES[number].identifier, Layer.SEQUENCE)
        neighbours = tuple(self._endpoint(one) for one in (1, 2, 3) if ADDRESS_OF[one] != ADDRESS_OF[number])
        node = Whole(
            NodeSettings(
                LinkSettings(cluster=CLUSTER, endpoint=self._endpoint(number)),
                MeshSettings(cluster=CLUSTER),
                GossipSettings(),
                neighbours=neighbours,
                node_ids={identity.identifier: number for number, identity in NODES.items()},
            ),
            NODES[number],
            KeyRing.parse(disk[KEYRING_FILE].decode()) if KEYRING_FILE in disk else KeyRing(b"k" * 32),
            clients={},
            rng=rng,
            instance=new_instance(rng),
            now_ns=now_ns,
            journal=journal,
            uppers={Layer.GRAPH: talker, Layer.SEQUENCE: patient},
        )
        node.files, node.stubborn = files, number in self.stubborn
        heard = self.heard[number] = []
        node._mesh.route(heard.append, Shouted)
        node._gossip.route(heard.append, EventSeen, QueryDecided)
        return node

    def __getitem__(self, number: int) -> NodeCore:
        core = self.world.hosts[str(number)].core
        assert isinstance(core, NodeCore)
        return core

    @property
    def running(self) -> list[int]:
        return [int(name) for name, host in self.world.hosts.items() if host.core is not None]

    @property
    def master(self) -> int:
        return next((number for number in self.running if self[number].role.role is Role.MASTER), 0)

    def alive(self, number: int) -> set[int]:
        """Whom this node holds for alive."""
        node = self[number]
        return {node.node_id(one.identifier) for one in node.gossip.members() if one.state is MemberState.ALIVE}

    def tell(self, number: int, event: object) -> None:
        self.world.tell(self.world.hosts[str(number)], event)

    def run(self, seconds: float, done: Any = None) -> None:
        self.world.run(self.world.now_ns + int(seconds * SECOND), done and (lambda: bool(done())))
        assert done is None or done(), "it did not come about"

    def change(self, *messages: ConfigMessage) -> None:
        for message in messages:
            self.run(30, lambda: self.master)
            self.petitions += 1
            self.tell(self.master, Petition(petition(message, nonce=b"%016d" % self.petitions)))
            self.run(30, self._is_over)

    def _is_over(self) -> bool:
        if not self.master:
            return False
        changes = self[self.master].journal.execution.cluster_config.changes  # type: ignore[union-attr]
        return len(changes) == self.petitions and not any(one.open for one in changes)


@pytest.fixture
def trio() -> Trio:
    return Trio()


def assert_nobody_counts(trio: Trio, removed: int, *others: int) -> None:
    for number in others:
        assert removed not in trio.alive(number), number
        assert {peer.identifier for peer in trio.talkers[number].here.values()} == {
            NODES[one].identifier for one in others if one != number
        }


def test_removed_node_reports_its_removal_and_stops_while_others_continue(trio: Trio) -> None:
    trio.change(*OUT)
    trio.run(1)
    assert_nobody_counts(trio, 3, 1, 2)
    trio.run(6)
    assert [(name, halt.removed) for name, halt in trio.watch.halts] == [("3", True)]
    assert "member add" in trio.watch.halts[0][1].reason, "it says what to do"
    assert trio.watch.reports.count(("3", "removed from the cluster")) == 1
    assert trio.running == [1, 2], "nobody starts it again"
    assert_nobody_counts(trio, 3, 1, 2)
    for number in "123":
        trio.world.crash(trio.world.hosts[number], power=False)
    trio.world.start(trio.world.hosts["3"])
    trio.run(2)
    assert trio.running == [], "it knows what became of it with nobody there to tell it"


def test_node_removed_while_away_is_informed_and_stops(trio: Trio) -> None:
    trio.world.crash(trio.world.hosts["3"], power=False)
    trio.run(12)
    trio.change(*OUT)
    trio.world.start(trio.world.hosts["3"])
    trio.run(7)
    assert [name for name, _ in trio.watch.halts] == ["3"]
    assert trio.running == [1, 2]
    assert_nobody_counts(trio, 3, 1, 2)


def test_removed_node_that_continues_is_ignored_by_all_layers(trio: Trio) -> None:
    trio.world.crash(trio.world.hosts["3"], power=False)
    trio.stubborn.add(3)
    trio.world.start(trio.world.hosts["3"])
    trio.run(10, lambda: all(trio.alive(one) == {1, 2, 3} for one in (1, 2, 3)))
    for number in (1, 2, 3):
        trio.tell(number, JoinPool("red"))
    trio.change(*OUT)
    trio.run(12)
    assert 3 in trio.running
    for number in (1, 2, 3):
        trio.talkers[number].told_by.clear()
        trio.patients[number].told_by.clear()
        trio.patients[number].say(trio[number])
        trio.heard[number].clear()
    trio.tell(1, Shout("red", b"of 1"))
    trio.tell(3, Shout("red", b"of 3"))
    for number in (1, 3):
        trio[number]._work.append((trio[number]._gossip, Fire("news", b"of %d" % number)))
    trio[1]._work.append((trio[1]._gossip, AskQuery(7, "version", SECOND)))
    trio[2]._rotate(RotationWanted(1))
    trio.run(15)
    assert_nobody_counts(trio, 3, 1, 2)
    for number in (1, 2):
        assert NODES[3].identifier not in (*trio.talkers[number].told_by, *trio.patients[number].told_by)
        assert not [one for one in trio.heard[number] if b"of 3" in repr(one).encode()]
    assert not [one for one in trio.heard[3] if b"of 1" in repr(one).encode()]
    (answer,) = [one.answer for one in trio.heard[1] if isinstance(one, QueryDecided)]
    assert (answer.decided, answer.votes, answer.members) == (True, 2, 2)
    rings = [trio[number]._keyring.ring.ids for number in (1, 2)]
    assert rings[0] == rings[1] != OLD_RING.ids
    assert trio[3]._keyring.ring.ids == OLD_RING.ids, "the new key is not for it"


def test_sequence_keeps_its_session_with_a_removed_node_until_it_stops(trio: Trio) -> None:
    trio.change(*OUT)
    for number in (1, 2, 3):
        trio.patients[number].told_by.clear()
    others, removed = {NODES[1].identifier, NODES[2].identifier}, NODES[3].identifier
    trio.run(3)
    assert {peer.identifier for peer in trio.patients[1].here.values()} == {NODES[2].identifier, removed}
    for number in (1, 2, 3):
        trio.patients[number].say(trio[number])
    trio.run(1)
    assert [set(trio.patients[number].told_by) for number in (1, 3)] == [{NODES[2].identifier, removed}, others]
    trio.run(3)
    assert {peer.identifier for peer in trio.patients[1].here.values()} == {NODES[2].identifier}


def test_node_that_missed_its_removal_is_informed_when_it_sends(trio: Trio) -> None:
    """It never hears that it was removed, and has no reason to say anything in the journal."""
    token = trio.world.network.conditions.block([("1", "3"), ("2", "3")])
    trio.world.network.conditions_changed()
    trio.change(*OUT)
    trio.world.network.conditions.unblock(token)
    trio.world.network.conditions_changed()
    trio.run(15)
    assert [name for name, _ in trio.watch.halts] == ["3"]
    assert_nobody_counts(trio, 3, 1, 2)


def test_machine_of_a_removed_node_returns_as_another_node(trio: Trio) -> None:
    trio.change(*OUT)
    trio.run(6, lambda: trio.running == [1, 2])
    trio.world.start(trio.world.add("4", trio._endpoint(4)))
    trio.change(NEWCOMER)
    trio.run(10, lambda: all(trio.alive(one) == {1, 2, 4} for one in (1, 2, 4)))
    trio.run(10)
    assert trio.running == [1, 2, 4]
    assert_nobody_counts(trio, 3, 1, 2, 4)
