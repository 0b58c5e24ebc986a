"""Collects every signed checkpoint that nodes show while they are killed, for short tests and long campaigns."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from http.client import HTTPException
from itertools import pairwise
from urllib.request import urlopen

from chaplain import Client
from chaplain.config import load_cluster
from chaplain.journal.tree import signed_record
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import compare, policy
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.tiles import node_source
from chaplain.runtime.http.tile_client import http_source
from chaplain.runtime.secret_files import read_public_key
from tests.integration.journal.support.scenes import Load, wait_until_same, wait_until_sound
from tests.support.process_cluster import Cluster, Node, until

LOOK_S = 0.03
KILLS_WITHIN_S = 2.5
"""Checkpoints are signed once a second, so that kills hit every phase of signing."""


class Notes:
    """All checkpoints and signatures seen so far. A contradiction is a failure at once."""

    def __init__(self, cluster: Cluster) -> None:
        file = load_cluster(cluster.directory)
        keys = {node.id: read_public_key(node.key, f"node {node.id}") for node in file.nodes}
        self.policy = policy.parse(policy.cluster_policy(file.cluster, keys).encode())
        self._cluster = cluster
        self._roots: dict[int, bytes] = {}
        self._by_node: dict[tuple[str, int], bytes] = {}
        self.complete: dict[int, SignedCheckpoint] = {}
        self.findings: list[str] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(node,), daemon=True) for node in cluster]
        for thread in self._threads:
            thread.start()

    def _watch(self, node: Node) -> None:
        while not self._ended.wait(LOOK_S):
            with suppress(OSError, HTTPException), urlopen(f"http://{node.http}/checkpoint", timeout=5) as page:
                self.add(checkpoints.parse(page.read()))

    def pause(self, seconds: float) -> None:
        """Wait, while the watchers continue."""
        self._ended.wait(seconds)

    def add(self, signed: SignedCheckpoint) -> None:
        """A complete checkpoint that a node serves."""
        tree = signed.checkpoint
        signers = policy.check(self.policy, signed)
        with self._lock:
            for name in signers.witnesses:
                self._signed(name, tree.size, tree.root)
            self.complete.setdefault(tree.size, signed)

    def add_record(self, node: Node) -> None:
        """What a killed node had on disk about its last two signatures."""
        file = node.folder / "tree" / "signed"
        if file.exists():
            data = file.read_bytes()
            for at in (0, signed_record.SLOT_BYTES):
                record = signed_record.read(data[at : at + signed_record.SLOT_BYTES])
                if record is not None:
                    with self._lock:
                        self._signed(f"node-{node.number}", record.size, record.root)

    def _signed(self, name: str, size: int, root: bytes) -> None:
        if self._by_node.setdefault((name, size), root) != root:
            self.findings.append(f"{name} signed two roots for {size} entries")
        if self._roots.setdefault(size, root) != root:
            self.findings.append(f"{name} signed another root for {size} entries than others")

    def end(self) -> Counter[str]:
        """Compare each complete checkpoint with the one before, from the tiles of the nodes. Returns counts."""
        self._ended.set()
        for thread in self._threads:
            thread.join(30)
        with Client.connect(self._cluster.directory, timeout=60) as client:
            client.journal("last").write(b"covers all")
            newest = client.prove("last", 0).checkpoint
        self.add(newest)
        source = http_source([node.http for node in self._cluster])
        for size, other in pairwise(sorted(self.complete)):
            old, new = self.complete[size], self.complete[other]
            found = compare.compare(old, new, self.policy, node_source(other, source))
            assert found.new_size == other
        assert not self.findings, self.findings
        signatures = Counter(name for name, _ in self._by_node)
        assert len(signatures) == len(list(self._cluster)), f"every node signed: {signatures}"
        return Counter({"checkpoints": len(self.complete), "signatures": len(self._by_node), "forks": 0})


def kill_everybody(load: Load, notes: Notes, chance: random.Random) -> None:
    """Kill every node, each at a moment of its own, then start all again."""
    victims = list(load.cluster)
    moments = sorted((chance.uniform(0, KILLS_WITHIN_S), node.number) for node in victims)
    began_s = time.monotonic()
    load.blow()
    for moment_s, number in moments:
        left_s = began_s + moment_s - time.monotonic()
        if left_s > 0:
            notes.pause(left_s)
        load.cluster[number].kill()
        notes.add_record(load.cluster[number])
    for node in victims:
        node.start()
    until(lambda: all(node.ready() for node in victims), "the killed nodes serve again")
    load.await_progress()
    wait_until_sound(load.cluster)


def sign_through_kills(cluster: Cluster, rounds: int, seed: int) -> Counter[str]:
    """Kill every node `rounds` times under load. No node ever signs two roots for one size."""
    chance = random.Random(seed)
    notes = Notes(cluster)
    load = Load(cluster)
    for _ in range(rounds):
        kill_everybody(load, notes, chance)
    counts, _ = load.finish()
    wait_until_same(cluster)
    found = notes.end()
    return found + Counter({"kills": rounds * len(list(cluster)), "acknowledged": counts["acknowledged"]})
