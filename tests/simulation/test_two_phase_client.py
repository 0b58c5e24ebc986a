"""The simulated writer of batches counts a batch as committed only if its own commit was applied."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from chaplain.journal.execution.two_phase import TRANSACTIONS
from chaplain.journal.messages.client import Receipts, Run
from simulator.actors.two_phase_client import SimSink


class _World:
    now_ns = 1
    hosts: dict[str, Any] = {}  # noqa: RUF012


@pytest.mark.parametrize(("stream", "committed"), [(TRANSACTIONS, [0]), ("orders", [])])
def test_batch_counts_as_committed_unless_a_thief_took_the_id_of_its_commit(monkeypatch, stream, committed):
    workload = SimpleNamespace(rng=Random(1), founding=SimpleNamespace(cluster="c"), made=[])
    sink = SimSink(workload, "sink", bytes(32), b"acl", ("orders",))
    monkeypatch.setattr(sink, "_say", lambda *_: None)
    monkeypatch.setattr(sink.rng, "random", lambda: 0.5)  # neither killed nor early
    sink.lane = 1
    while not sink._commit_id:
        sink.outbox.clear()  # the nodes have answered everything so far
        sink._write(_World())
    run = Run(1, 1, sink._commit_id, stream, 0, sink._commit_id, 1, 1, 0, bytes(32))
    sink.hear(_World(), Receipts((run,)))
    sink._write(_World())
    assert [*sink.committed] == committed
