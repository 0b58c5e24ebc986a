"""Measures proofs and signed checkpoints: their sizes, the time to make and check them, and the cost of the tree.

    proof    one message of 100 octets of 100 million, in packs of one and of 10,000 messages: octets of the proof file;
             time to make it from tiles and bundles; processor time of tools/check_proof.py, Python's start included
    tree     leaves a second that execution adds to the tree; octets of its open tiles
    path     microseconds of three nodes and a client in one process for a write, with the tree and without, in turns
    writes   real clusters of three nodes, with the tree and without, in turns: `writer()` and one in flight
    covers   full load by `writer()`: from the acknowledgement of a write to a signed checkpoint that covers it
    one      one node under full load by `writer()`: messages a second, and the time until a checkpoint covers the last
    verify   seconds of `chaplain verify` as a command: `--help`, and a log of 503 messages

The log of `proof` exists only where the proof needs it: other hashes are random. Prints lines of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from hashlib import sha256
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import journal_path
from chaplain import Client
from chaplain.client.api import proof_calls
from chaplain.client.api.proof_calls import FoundPack, LeafSearch
from chaplain.config import NODE_FILE, load_cluster
from chaplain.journal.execution import leaves as execution_leaves
from chaplain.journal.messages.signing import SignatureType, sign_pack
from chaplain.journal.model.log_tree import LogTree
from chaplain.link.auth.identity import Identity
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import leaf as leaves
from chaplain.proofs import note, policy, proof
from chaplain.proofs.checkpoint import Checkpoint, SignedCheckpoint
from chaplain.proofs.leaf import PackLeaf
from chaplain.proofs.merkle import HASH_BYTES, SIZE_MAX, leaf_hash, root_at, root_of
from chaplain.proofs.tiles import TILE_HASHES, Tile, encode_bundle, encode_tile, node_source, parse_path
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.probe import get_status
from chaplain.segment.pack import Pack, encode_pack, stated_digest
from support.journal_clusters import ChaplainCluster, until

ROOT = Path(__file__).parents[1]
CLUSTER = "bench"
STREAM = "orders"
MESSAGES = 100_000_000
VALUE = bytes(100)
NODES = 3
PROOFS = 10
LEAVES = 300_000
WRITES = 200
"""Writes in one turn of `path`."""
RUNS = 5
PAIRS = 4
BURST_S = 0.5
"""One turn of `writer()`."""
WITHOUT_TREE = str(Path(__file__).with_name("without_tree.py"))


def show(name: str, **found: Any) -> None:
    print(json.dumps({"bench": name, **found}), flush=True)


# A log of 100 million messages, as far as one proof needs it.


class SparseLog:
    """A tree of packs with the same number of messages each. Only one pack exists; the others have random digests."""

    def __init__(self, messages: int, pack_messages: int, target: int) -> None:
        self.size = messages // pack_messages
        self.target = target // pack_messages
        self._pack_messages = pack_messages
        self._identity = Identity(b"w" * 32)
        values = tuple(b"%099d," % number for number in range(pack_messages))
        slot = bytes(note.SIGNATURE_BYTES)
        pack = Pack(1, self._first_id(self.target), values, signature_type=SignatureType.ED25519, signature=slot)
        raw = sign_pack(encode_pack(pack), CLUSTER, STREAM, self._identity)
        self.pack = FoundPack(raw, self.target * pack_messages, self._message(self.target))
        self._parts: dict[Tile, bytes] = {}

    def _first_id(self, pack: int) -> int:
        return 1 + pack % 1_000_000 * self._pack_messages % (1 << 31)

    def _message(self, pack: int) -> int:
        return 2 + pack

    def leaf(self, pack: int) -> bytes:
        digest = stated_digest(self.pack.raw) if pack == self.target else sha256(b"%d" % pack).digest()
        place = (1, self._message(pack), 1_700_000_000 * 10**9 + pack, STREAM, pack * self._pack_messages)
        ids = (self._pack_messages, 1, self._first_id(pack))
        return leaves.encode(PackLeaf(*place, *ids, self._identity.key, digest))

    def part(self, name: str) -> bytes:
        """A tile or bundle by its name. Hashes above level 0 are random, except those over the target."""
        tile = parse_path(name)
        if tile not in self._parts:
            self._parts[tile] = self._make(tile)
        return self._parts[tile]

    def _make(self, tile: Tile) -> bytes:
        first = tile.index * TILE_HASHES
        numbers = range(first, first + tile.width)
        if tile.level < 0:
            return encode_bundle([self.leaf(number) for number in numbers])
        if tile.level == 0:
            return encode_tile([leaf_hash(self.leaf(number)) for number in numbers])
        return encode_tile([self._subtree(tile.level, number) for number in numbers])

    def _subtree(self, level: int, number: int) -> bytes:
        if self.target >> 8 * level != number:
            return sha256(b"%d/%d" % (level, number)).digest()
        octets = self.part(Tile(level - 1, number).path)
        return root_of([octets[at : at + HASH_BYTES] for at in range(0, len(octets), HASH_BYTES)])

    def checkpoint(self) -> SignedCheckpoint:
        node = node_source(self.size, lambda level, index, width: self.part(Tile(level, index, width).path))
        tree = Checkpoint(checkpoints.origin_of(CLUSTER), self.size, root_at(self.size, node))
        signers = {number: note.signer_of(bytes((number,)) * 32) for number in range(1, NODES // 2 + 2)}
        return checkpoints.assemble(
            tree, {number: checkpoints.sign(tree, number, *found, 1_700_000_000) for number, found in signers.items()}
        )


def make_proof(log: SparseLog, offset: int, signed: SignedCheckpoint) -> proof.Proof:
    """As `Client.prove` does it, without the way to the node."""
    search = LeafSearch(log.pack, STREAM, log.size)
    while (name := search.next_bundle()) is not None:
        search.take(log.part(name))
    at = search.result()
    tiles = {tile: log.part(tile.path) for tile in proof_calls.tiles_needed(at[0], log.size)}
    return proof_calls.assemble(log.pack, at, offset, signed, tiles)


def measure_proof() -> None:
    keys = {number: note.signer_of(bytes((number,)) * 32)[0] for number in range(1, NODES + 1)}
    with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as name:
        folder = Path(name)
        (folder / "policy").write_text(policy.cluster_policy(CLUSTER, keys))
        trusted = policy.parse((folder / "policy").read_bytes())
        for pack_messages in (1, 10_000):
            sizes, made_s, checked_s, in_process_s = [], [], [], []
            chance = random.Random(1)
            for _ in range(PROOFS):
                offset = chance.randrange(MESSAGES)
                log = SparseLog(MESSAGES, pack_messages, offset)
                signed = log.checkpoint()
                make_proof(log, offset, signed)  # creates the parts that a node would have on disk
                began_s = time.process_time()
                found = make_proof(log, offset, signed)
                made_s.append(time.process_time() - began_s)
                sizes.append(found.size)
                found.save(folder / "proof")
                began_s = time.process_time()
                proof.check(proof.parse((folder / "proof").read_bytes()), trusted, stream=STREAM, offset=offset)
                in_process_s.append(time.process_time() - began_s)
                checked_s.append(_processor_s([ROOT / "tools" / "check_proof.py", folder / "proof", folder / "policy"]))
            show(
                "proof",
                messages=MESSAGES,
                messages_a_pack=pack_messages,
                octets_max=max(sizes),
                made_ms_median=round(1000 * median(made_s), 1),
                made_ms_max=round(1000 * max(made_s), 1),
                check_proof_py_cpu_ms_median=round(1000 * median(checked_s), 1),
                check_proof_py_cpu_ms_max=round(1000 * max(checked_s), 1),
                check_in_process_cpu_ms=round(1000 * median(in_process_s), 2),
            )
        show("python", start_cpu_ms=round(1000 * median(_processor_s(["-c", ""]) for _ in range(PROOFS)), 1))


def _processor_s(arguments: list[Any]) -> float:
    """Processor time of one run of Python, its start included."""
    process = subprocess.Popen([sys.executable, "-I", *map(str, arguments)], stdout=subprocess.DEVNULL)
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = code
    assert code == 0, f"exit code {code}"
    return used.ru_utime + used.ru_stime


# The tree in execution.


def measure_tree() -> None:
    tree = LogTree()
    key, digest = bytes(32), bytes(32)
    leaf = leaves.encode(PackLeaf(1, 1, 1, STREAM, 0, 1, 1, 1, key, digest))
    assert tree.size < SIZE_MAX
    began_s = time.process_time()
    for _ in range(LEAVES):
        tree.append((leaf,))
        tree.take_finished()
    seconds = time.process_time() - began_s
    exported = tree.export()
    octets = len(exported.tiles) + sum(map(len, exported.entries))
    show("tree", leaves=LEAVES, leaves_per_cpu_second=round(LEAVES / seconds), open_octets=octets)


@contextmanager
def no_tree() -> Iterator[None]:
    """Execution without leaves."""
    kept = execution_leaves.write_pack, execution_leaves.add_configuration

    def write_pack(draft: Any, entry: Any, heading: Any, key: bytes) -> int:
        return int(draft.write(entry.stream, heading.messages, heading.digest))

    def add_configuration(draft: Any, number: int, entry: Any) -> None:
        pass

    execution_leaves.write_pack, execution_leaves.add_configuration = write_pack, add_configuration
    try:
        yield
    finally:
        execution_leaves.write_pack, execution_leaves.add_configuration = kept


def measure_path(rounds: int) -> None:
    """Processor time of all cores for one write, in turns."""
    with ExitStack() as stack:
        directories = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        on = journal_path.build(directories[0])
        with no_tree():
            off = journal_path.build(directories[1])
        numbers = count(1)
        times: dict[str, list[float]] = {"with": [], "without": []}
        for number in range(rounds):
            for name in ("with", "without") if number % 2 else ("without", "with"):
                network, client = on if name == "with" else off
                with nullcontext() if name == "with" else no_tree():
                    began_s = time.process_time()
                    for _ in range(WRITES):
                        journal_path.write(network, client, next(numbers), VALUE)
                    times[name].append((time.process_time() - began_s) / WRITES)
        show(
            "path",
            with_tree_us=round(1e6 * median(times["with"]), 1),
            without_us=round(1e6 * median(times["without"]), 1),
            ratio_of_medians=round(median(times["with"]) / median(times["without"]), 3),
            ratio_of_bests=round(min(times["with"]) / min(times["without"]), 3),
        )


# Real nodes.


class TreelessCluster(ChaplainCluster):
    """The same nodes, with execution that adds no leaves."""

    name = "without the tree"

    def _run(self, command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
        super()._run([command[0], WITHOUT_TREE, *command[3:]], folder, environment)


def pour(client: Client, seconds: float, stream: str = "many", ended: Callable[[], bool] = lambda: False) -> float:
    """Messages a second by `writer()`."""
    began_s, written = time.monotonic(), 0
    with client.journal(stream).writer() as writer:
        while time.monotonic() < began_s + seconds and not ended():
            for _ in range(1000):
                writer.write(VALUE)
            written += 1000
    return written / (time.monotonic() - began_s)


def measure_writes(rounds: int) -> None:
    """In `PAIRS` pairs of clusters: in a pair, the clients may be connected to other nodes than the masters."""
    bursts: dict[str, list[float]] = {"with": [], "without": []}
    single: dict[str, list[float]] = {"with": [], "without": []}
    busy_s = dict.fromkeys(single, 0.0)
    for _ in range(PAIRS):
        with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as name, ExitStack() as stack:
            clusters: dict[str, ChaplainCluster] = {
                "with": ChaplainCluster(Path(name) / "with"),
                "without": TreelessCluster(Path(name) / "without"),
            }
            clients = {}
            for which, cluster in clusters.items():
                stack.callback(cluster.stop)
                cluster.start()
                clients[which] = stack.enter_context(Client.connect(cluster.address, timeout=30))
                pour(clients[which], 1)
            sizes = {which: client.status()["tree"]["size"] for which, client in clients.items()}
            assert sizes["with"] > 0 == sizes["without"], sizes
            add(bursts, in_turns(rounds, lambda which, clients=clients: pour(clients[which], BURST_S)))
            before = {which: _busy_s(cluster.pids) for which, cluster in clusters.items()}
            add(single, in_turns(WRITES * rounds, lambda which, clients=clients: 1 / _one(clients[which])))
            for which, cluster in clusters.items():
                busy_s[which] += _busy_s(cluster.pids) - before[which]
    show("writes", way="writer()", **compared(bursts))
    cpu = round(busy_s["with"] / busy_s["without"], 3)
    show("writes", way="one in flight", **compared(single), nodes_cpu_ratio=cpu)


def add(found: dict[str, list[float]], more: dict[str, list[float]]) -> None:
    for which, values in more.items():
        found[which] += values


def in_turns(rounds: int, measure: Callable[[str], float]) -> dict[str, list[float]]:
    """Measure with the tree and without, in turns, so that other load meets both alike."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        for which in ("with", "without") if number % 2 else ("without", "with"):
            found[which].append(measure(which))
    return found


def compared(rates: dict[str, list[float]]) -> dict[str, Any]:
    with_, without = rates["with"], rates["without"]
    each = sorted(one / other for one, other in zip(with_, without, strict=True))
    return {
        "turns": len(with_),
        "with_tree": round(median(with_)),
        "without": round(median(without)),
        "ratio_of_medians": round(median(with_) / median(without), 3),
        "ratio_of_means": round(sum(with_) / sum(without), 3),
        "ratio_of_turns": [round(each[len(each) // 4], 3), round(median(each), 3), round(each[3 * len(each) // 4], 3)],
    }


def _one(client: Client) -> float:
    """Seconds of one write."""
    journal = client.journal("alone")
    began_s = time.perf_counter()
    journal.write(VALUE)
    return time.perf_counter() - began_s


def _busy_s(pids: list[int]) -> float:
    """Processor time that all threads of these processes have used, to the nanosecond."""
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure_covers(seconds: float) -> None:
    """Probes by a second client, while a first one writes as fast as it can."""
    with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as name, ExitStack() as stack:
        cluster = ChaplainCluster(Path(name) / "three")
        stack.callback(cluster.stop)
        cluster.start()
        busy, probe = (stack.enter_context(Client.connect(cluster.address, timeout=60)) for _ in range(2))
        ended, rates = threading.Event(), []
        load = threading.Thread(target=lambda: rates.append(pour(busy, 10**6, ended=ended.is_set)))
        load.start()
        covered_s, proven_s = [], []
        try:
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                receipt = probe.journal("probes").write(VALUE)
                began_s = time.monotonic()
                receipt.prove()  # waits until a checkpoint covers the message
                covered_s.append(time.monotonic() - began_s)
                began_s = time.monotonic()
                receipt.prove()
                proven_s.append(time.monotonic() - began_s)
        finally:
            ended.set()
            load.join()
        show(
            "covers",
            load_messages_per_second=round(rates[0]),
            probes=len(covered_s),
            covered_s_p50=round(median(covered_s), 3),
            covered_s_p99=round(quantiles(covered_s, n=100)[98], 3),
            covered_s_max=round(max(covered_s), 3),
            prove_of_a_covered_message_s_p50=round(median(proven_s), 3),
            prove_of_a_covered_message_s_max=round(max(proven_s), 3),
        )


def measure_one(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as name, ExitStack() as stack:
        directory = Path(name) / "one"
        make_cluster(directory, 1, "none", None)
        [node] = load_cluster(directory).nodes
        command = [sys.executable, "-m", "chaplain.cli.main", "node", "run"]
        process = subprocess.Popen(
            [*command, "--config", str(directory / f"node-{node.id}" / NODE_FILE)], stderr=subprocess.DEVNULL
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        until(lambda: bool((get_status(node.http) or {}).get("master")), "the node is master")
        client = stack.enter_context(Client.connect(directory, timeout=60))
        rate = pour(client, seconds)
        status: dict[str, Any] = dict(get_status(node.http) or {})
        tree = status["tree"]
        began_s = time.monotonic()
        until(lambda: client.checkpoint().checkpoint.size >= tree["size"], "a checkpoint covers everything")
        show(
            "one",
            messages_per_second=round(rate),
            leaves=tree["size"],
            leaves_per_second=round(tree["size"] / seconds),
            covered_after_the_last_message_s=round(time.monotonic() - began_s, 3),
            messages_executed=sum(stream["head"] for stream in status["streams"].values()),
        )


def measure_verify(runs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="chaplain-bench-") as name, ExitStack() as stack:
        cluster = ChaplainCluster(Path(name) / "three")
        stack.callback(cluster.stop)
        cluster.start()
        with Client.connect(cluster.address, timeout=30) as client:
            for number in range(503):
                client.journal("sales").write(b"%d apples" % number)
        command = [str(Path(sys.executable).with_name("chaplain")), "verify"]

        def seconds(*options: str) -> float:
            began_s = time.monotonic()
            subprocess.run([*command, *options], check=True, capture_output=True)
            return time.monotonic() - began_s

        address = cluster.address
        show(
            "verify",
            help_s=round(min(seconds("--help") for _ in range(runs)), 2),
            messages_503_s=round(median(seconds("--cluster", address) for _ in range(runs)), 2),
            messages_503_with_signatures_s=round(
                median(seconds("--cluster", address, "--signatures") for _ in range(runs)), 2
            ),
        )


def main() -> None:
    names = ("proof", "tree", "path", "writes", "covers", "one", "verify")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=names, action="append")
    parser.add_argument("--rounds", type=int, default=8, help="turns with the tree and without, in each pair")
    parser.add_argument("--seconds", type=float, default=3.0, help="time of one measurement on real nodes")
    parser.add_argument("--covers-seconds", type=float, default=60.0)
    given = parser.parse_args()
    measures: dict[str, Callable[[], None]] = {
        "proof": measure_proof,
        "tree": measure_tree,
        "path": lambda: measure_path(2 * given.rounds),
        "writes": lambda: measure_writes(given.rounds),
        "covers": lambda: measure_covers(given.covers_seconds),
        "one": lambda: measure_one(3 * given.seconds),
        "verify": lambda: measure_verify(RUNS),
    }
    for name in given.only or names:
        measures[name]()


if __name__ == "__main__":
    main()
