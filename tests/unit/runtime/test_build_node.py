"""Nodes as they are put together from their files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from chaplain.config import NODE_FILE, load_node
from chaplain.core import Drained, Persist, Persisted, Requested, Settled, Woken
from chaplain.graph.core import GraphCore
from chaplain.graph.events import EventsRead, ReadEvents
from chaplain.graph.messages import client
from chaplain.graph.messages.client import Append, Page, ReadSnapshot, decode_answer
from chaplain.journal.messages.membership import Stage
from chaplain.link.auth.identity import identifier_of
from chaplain.node.core import NodeCore
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.layers.node import make_node
from chaplain.sequence.messages.peer import SequenceState
from chaplain.sequence.service import SequenceLayer
from chaplain.wire.parcel import Layer

SECOND = 10**9
CHANGED = 9


def made(directory: Path, count: int, number: int) -> NodeCore:
    """A node of so many that has beacons, and no list of neighbours."""
    make_cluster(directory, count, "none", None)
    file = directory / f"node-{number}" / NODE_FILE
    lines = ["neighbours = []" if line.startswith("neighbours") else line for line in file.read_text().splitlines()]
    file.write_text("\n".join([*lines, "[beacon]", 'address = "127.255.255.255"', ""]))
    return make_node(load_node(file), "tcp://127.0.0.1:1", bytes(16), SECOND)


def test_sequence_list_follows_the_configuration_stream(tmp_path: Path) -> None:
    node = made(tmp_path / "cluster", 3, 3)
    sequence = node.uppers[Layer.SEQUENCE]
    assert isinstance(sequence, SequenceLayer)
    assert node.journal is not None
    cluster_config = node.journal.execution.cluster_config
    first, second, _ = (identifier_of(placed.key) for placed in cluster_config.nodes)
    assert sequence.core.discovery.listed() == sorted((first, second))
    gone = msgspec.structs.replace(cluster_config.nodes[0], executor=Stage.NONE, ingest=Stage.NONE, config=Stage.NONE)
    without = msgspec.structs.replace(cluster_config, nodes=(gone, *cluster_config.nodes[1:]), serializers=(2, 3))
    node.journal.execution.state.cluster_config = without
    assert sequence.core.discovery.listed() == [second]


def test_graph_members_follow_the_configuration_stream(tmp_path: Path) -> None:
    """A founder that was removed is in the file of each node still, and was counted again after a restart."""
    node = made(tmp_path / "cluster", 3, 1)
    graph = node.uppers[Layer.GRAPH]
    assert isinstance(graph, GraphCore)
    assert node.journal is not None
    cluster_config = node.journal.execution.cluster_config
    assert list(graph.context.members) == [placed.key for placed in cluster_config.nodes]
    bare = {"executor": Stage.NONE, "ingest": Stage.NONE, "config": Stage.NONE}
    alone = replace(
        cluster_config, nodes=(cluster_config.nodes[0], *(replace(one, **bare) for one in cluster_config.nodes[1:]))
    )
    node.journal.execution.state.cluster_config = replace(alone, serializers=(1,))
    _written(graph)
    assert list(graph.context.members) == [cluster_config.nodes[0].key]
    assert graph.context.read_at == 0


@pytest.mark.parametrize(("count", "state"), [(1, SequenceState.WRK), (2, SequenceState.DSC), (3, SequenceState.DSC)])
def test_only_a_node_configured_alone_starts_a_history_alone(tmp_path: Path, count: int, state: SequenceState) -> None:
    sequence = made(tmp_path / "cluster", count, count).uppers[Layer.SEQUENCE]
    assert isinstance(sequence, SequenceLayer)
    for second in range(2, 62):
        sequence.step(second * SECOND, Woken())
        sequence.step(second * SECOND, Drained())
    assert sequence.core.context.state is state


def test_layers_use_node_ids_of_the_configuration_stream(tmp_path: Path) -> None:
    """It gives ids to nodes that no file knew when this one started."""
    node = made(tmp_path / "cluster", 1, 1)
    sequence, graph = node.uppers[Layer.SEQUENCE], node.uppers[Layer.GRAPH]
    assert isinstance(graph, GraphCore)
    raw = _written(graph)
    sequence.step(2 * SECOND, Drained())
    assert (_work_set(node), _author(graph, raw)) == ([1], 1)
    assert node.journal is not None
    state = node.journal.execution.state
    [placed] = state.cluster_config.nodes
    state.cluster_config = replace(state.cluster_config, nodes=(replace(placed, node=CHANGED),))
    assert (_work_set(node), _author(graph, raw)) == ([CHANGED], CHANGED)
    assert node.node_id(node.identifier) == CHANGED


def _work_set(node: NodeCore) -> object:
    told = node.uppers[Layer.SEQUENCE].status()["sequence"]
    assert isinstance(told, dict)
    return told["work_set"]


def _written(graph: GraphCore) -> bytes:
    """An event of the node's own."""
    graph.step(2 * SECOND, Requested(1, "ann", client.encode(Append("notes")), b"hello"))
    [persist] = [one for one in graph.step(2 * SECOND, Drained()) if isinstance(one, Persist)]
    graph.step(2 * SECOND, Persisted(persist.ticket))
    raw = graph.context.recent(graph.streams["notes"].model.id_of(0))
    assert raw is not None
    return raw


def _author(graph: GraphCore, raw: bytes) -> int:
    effects = graph.step(2 * SECOND, Requested(2, "ann", client.encode(ReadSnapshot("notes")), b""))
    for read in [one for one in effects if isinstance(one, ReadEvents)]:
        effects += graph.step(2 * SECOND, EventsRead(read.token, (raw,)))
    [settled] = [one for one in effects if isinstance(one, Settled)]
    return decode_answer(settled.payload, Page).rows[0].author
