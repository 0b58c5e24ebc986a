"""Catch-up: which peer a node asks for the messages that it lacks."""

from __future__ import annotations

import pytest

from chaplain.core import Woken
from chaplain.journal.consensus.events import Received, Role
from chaplain.journal.messages.consensus import Fetch, MarkHeard, Supply, decode
from tests.support.consensus_cluster import SECOND, Cluster, ConsensusHost

MESSAGES = 150


class Fetches:
    """The fetches that one node receives from another."""

    def __init__(self, patch: pytest.MonkeyPatch, to: ConsensusHost, asker: int) -> None:
        self.count = 0
        self._asker, self._step = asker, to.step
        patch.setattr(to, "step", self.step)

    def step(self, event: object) -> None:
        if isinstance(event, Received) and event.node == self._asker and isinstance(decode(event.message), Fetch):
            self.count += 1
        self._step(event)


def test_silent_peer_is_asked_once_while_the_answers_of_others_are_useful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a node that is far behind waits `retry_ns` for it again and again (seed 58 of `indexonly`)."""
    cluster = Cluster(5)
    cluster.run(3)
    silent, late = cluster.master().node, cluster.followers()[0]
    cluster.kill(late)
    for _ in range(MESSAGES):
        cluster.arrive()
        cluster.settle()
    cluster.cut.add((silent, late))
    fetches = Fetches(monkeypatch, cluster[silent], late)
    cluster.restart(late)
    cluster.run(6)
    assert cluster[late].core.agreed == cluster.master().core.agreed
    assert cluster[late].core.role is not Role.MASTER
    assert fetches.count == 1


def test_silent_peer_is_asked_again_once_the_others_have_nothing_new() -> None:
    """It may be the only one that has the message, and have been busy."""
    cluster = Cluster(3)
    cluster.run(3)
    host = cluster[cluster.followers()[0]]
    silent, other = (node for node in cluster.nodes if node != host.node)
    agreed = host.core.agreed[0]
    host.hear(other, MarkHeard(host.core.regime, agreed + 1, agreed + 1))
    asked: list[int] = []
    for _ in range(12):
        to = [node for node in (silent, other) if any(isinstance(message, Fetch) for message in host.said(node))]
        asked += to
        for node in (silent, other):
            cluster.wires[host.node, node].clear()
        if other in to:
            host.hear(other, Supply(agreed + 1, agreed + 1, ()))
        cluster.now_ns += SECOND
        host.step(Woken())
    assert asked.count(silent) > 1
    assert asked.count(other) > 1
