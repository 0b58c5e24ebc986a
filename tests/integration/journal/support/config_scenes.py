"""Clusters that change their own nodes under load: who joins, who leaves, who serializes, who is master."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from chaplain import Client
from chaplain.cli.support.member_changes import ChangeFollower
from chaplain.link.auth.identity import KEY_BYTES, from_text
from chaplain.runtime.cluster.join import list_node, make_folder, unlist_node
from chaplain.runtime.exit_codes import REMOVED
from tests.integration.journal.support.history import Attempt
from tests.integration.journal.support.scenes import Load, status
from tests.support.process_cluster import PATIENCE_S, Cluster, Node, until

ALL = ("executor", "ingest", "config")


class Reshaping:
    """An admin at work on a cluster that others write to."""

    def __init__(self, load: Load, admin: Client) -> None:
        self.load = load
        self.cluster = load.cluster
        self.stages: list[str] = []
        self._admin = admin
        self._changes = ChangeFollower(admin, self.stages.append)

    def join(self, number: int, roles: Sequence[str] = ALL) -> None:
        newcomer = make_folder(self.cluster.directory, number, "", "")
        key = from_text(newcomer.node.key, KEY_BYTES, "a node's key")
        self.load.blow()
        opened = self._admin.add_node(number, roles[0], newcomer.node.endpoint, key, newcomer.disk)
        list_node(self.cluster.directory, newcomer.node)
        node = self.cluster.nodes[number] = Node(number, newcomer.folder, newcomer.node.http, ())
        node.start()
        until(node.ready, f"{node} serves")
        self._changes.follow(opened)
        for role in roles[1:]:
            self.give(number, role)

    def give(self, number: int, role: str) -> None:
        self.load.blow()
        self._changes.follow(self._admin.add_node(number, role))
        self.load.await_progress()

    def serializers(self, *numbers: int) -> None:
        self.load.blow()
        self._changes.follow(self._admin.new_serializers(numbers))
        self.load.await_progress()
        until(lambda: bool(status(self.cluster[numbers[0]]).get("master")), f"node {numbers[0]} is master")

    def take(self, number: int, role: str) -> None:
        self.load.blow()
        self._changes.follow(self._admin.remove_node(number, role))
        self.load.await_progress()

    def dismiss(self, number: int) -> Node:
        """The node is gone: it says so itself, and goes."""
        node = self.cluster[number]
        assert node.process is not None
        assert node.process.wait(PATIENCE_S) == REMOVED
        assert node.lines("removed from the cluster")
        node.process = None
        unlist_node(self.cluster.directory, number)
        return self.cluster.nodes.pop(number)


def stall_s(histories: Sequence[Sequence[Attempt]]) -> float:
    """The longest time in which nobody got an answer."""
    moments = sorted(one.acked_s for history in histories for one in history if one.offset is not None)
    return max((after - before for before, after in itertools.pairwise(moments)), default=0.0)


def replace_one(cluster: Cluster) -> tuple[dict[str, int], list[str], float]:
    """A node joins, takes the place of one, and becomes master; the other leaves for good."""
    load = Load(cluster, timeout_s=PATIENCE_S / 2)
    with Client.connect(cluster.directory, timeout=PATIENCE_S) as admin:
        reshaping = Reshaping(load, admin)
        reshaping.join(4, ("executor", "ingest"))
        reshaping.serializers(4, 1, 2)
        reshaping.take(3, "ingest")
        reshaping.take(3, "executor")
        reshaping.dismiss(3)
    longest_s = stall_s(load.histories())
    return load.finish()[0], reshaping.stages, longest_s


def grow_and_shrink(cluster: Cluster) -> tuple[dict[str, int], list[str], float]:
    """From 3 to 5 serializers, one replaced, back to 3; an ingest node and an executor come and go; masters move."""
    load = Load(cluster)
    with Client.connect(cluster.directory, timeout=PATIENCE_S) as admin:
        reshaping = Reshaping(load, admin)
        reshaping.join(4)
        reshaping.join(5)
        reshaping.serializers(1, 2, 3, 4, 5)
        reshaping.join(6, ("executor",))
        reshaping.serializers(5, 1, 3, 4, 6)
        reshaping.serializers(4, 1, 3)
        reshaping.take(5, "ingest")
        reshaping.take(5, "executor")
        reshaping.dismiss(5)
        reshaping.give(6, "ingest")
        reshaping.take(6, "ingest")
        reshaping.take(6, "executor")
        reshaping.dismiss(6)
        reshaping.serializers(2, 1, 3)
    longest_s = stall_s(load.histories())
    return load.finish()[0], reshaping.stages, longest_s
