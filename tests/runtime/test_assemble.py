"""Nodes as they are put together from their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaplain.config import NODE_FILE, load_node
from chaplain.core import Drained, Woken
from chaplain.node.core import NodeCore
from chaplain.runtime.assemble import make_node
from chaplain.runtime.founding import make_cluster
from chaplain.sequence.layer import SequenceLayer
from chaplain.sequence.messages import State
from chaplain.wire.parcel import Layer

SECOND = 10**9


def made(directory: Path, count: int, number: int) -> NodeCore:
    """A node of so many that has beacons, and no list of neighbours."""
    make_cluster(directory, count, "none", None)
    file = directory / f"node-{number}" / NODE_FILE
    lines = ["neighbours = []" if line.startswith("neighbours") else line for line in file.read_text().splitlines()]
    file.write_text("\n".join([*lines, "[beacon]", 'address = "127.255.255.255"', ""]))
    return make_node(load_node(file), "tcp://127.0.0.1:1", bytes(16), SECOND)


@pytest.mark.parametrize(("count", "state"), [(1, State.WRK), (2, State.DSC), (3, State.DSC)])
def test_only_who_is_configured_alone_begins_a_history_alone(tmp_path: Path, count: int, state: State) -> None:
    sequence = made(tmp_path / "cluster", count, count).uppers[Layer.SEQUENCE]
    assert isinstance(sequence, SequenceLayer)
    for second in range(2, 62):
        sequence.step(second * SECOND, Woken())
        sequence.step(second * SECOND, Drained())
    assert sequence.core.bench.state is state
