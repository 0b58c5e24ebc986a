"""Proofs of a real cluster: made through it, checked without it, made again after nodes were killed or wiped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from chaplain import Client
from chaplain.errors import Unproven
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import policy, proof
from chaplain.proofs.checkpoint import Checkpoint
from chaplain.runtime.http.witness_server import WitnessServer, WitnessStore
from tests.integration.journal.support import damage
from tests.integration.journal.support.proof_scenes import sign_through_kills
from tests.integration.journal.support.scenes import find_master, three, wait_until_same
from tests.support.process_cluster import PROGRAM, Cluster, shell, until

pytestmark = pytest.mark.timeout(280)

TOOLS = Path(__file__).parents[3] / "tools"
CHECK, REWRITE = TOOLS / "check_proof.py", TOOLS / "rewrite_log.py"
MESSAGES = 700


def check(cluster: Cluster, found: proof.Proof, value: bytes, folder: Path) -> None:
    """With the library, and with the stand-alone program in a process that knows nothing of chaplain."""
    text = shell("checkpoint", "policy", "--cluster", cluster.directory)
    proven = proof.check(found, policy.parse(text.encode()), value=value)
    assert proven.is_signed
    (folder / "cluster.policy").write_text(text)
    found.save(folder / "one.proof")
    done = subprocess.run(
        [sys.executable, "-I", CHECK, folder / "one.proof", folder / "cluster.policy"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"offset {found.offset}: proven" in done.stdout


def no_forks(seen: dict[int, Checkpoint], *signed: checkpoints.SignedCheckpoint) -> None:
    for one in signed:
        assert seen.setdefault(one.checkpoint.size, one.checkpoint) == one.checkpoint


def test_proofs_survive_kills_and_a_wiped_node(tmp_path: Path) -> None:
    seen: dict[int, Checkpoint] = {}
    with three(tmp_path / "three", "\n[journal]\nsegment_bytes = 65536\n") as cluster:
        with Client.connect(cluster.directory, timeout=30) as client:
            journal = client.journal("orders")
            receipts = [journal.write(b"order %d" % number, isolated=number % 2 == 0) for number in range(MESSAGES)]
            journal.write_many([b"together %d" % number for number in range(50)])
            first = client.prove("orders", 0)
            later = client.prove("orders", MESSAGES + 20)
            assert (first.value, later.value) == (b"order 0", b"together 20")
            assert client.prove("orders", receipts[-1].offset).value == b"order %d" % (MESSAGES - 1)
            assert later.size < 4096
            no_forks(seen, first.checkpoint, later.checkpoint, client.checkpoint())
            for one, value in ((first, b"order 0"), (later, b"together 20")):
                check(cluster, one, value, tmp_path)
        for node in cluster:
            node.kill()
        cluster.start()
        until(lambda: all(node.ready() for node in cluster), "all serve")
        find_master(cluster)
        with Client.connect(cluster.directory, timeout=30) as client:
            again = client.prove("orders", 300)
            check(cluster, again, b"order 300", tmp_path)
            no_forks(seen, again.checkpoint)
        wait_until_same(cluster)
        victim = cluster.others(find_master(cluster).number)[0]
        victim.kill()
        damage.wipe(victim)
        for file in sorted((victim.folder / "tree").glob("**/*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        victim.start()
        until(victim.ready, "the wiped node serves")
        wait_until_same(cluster)
        with Client.connect(cluster.directory, timeout=30) as client:
            client.journal("orders").write(b"after the wipe")
            last = client.prove("orders", MESSAGES + 50)
            check(cluster, last, b"after the wipe", tmp_path)
            no_forks(seen, last.checkpoint)
        with Client.connect(cluster.directory, node=victim.number, timeout=30) as client:
            check(cluster, client.prove("orders", 5), b"order 5", tmp_path)
        with urlopen(f"http://{victim.http}/checkpoint", timeout=10) as page:
            no_forks(seen, checkpoints.parse(page.read()))


def test_no_node_signs_two_roots_when_all_are_killed(tmp_path: Path) -> None:
    with three(tmp_path / "three") as cluster:
        found = sign_through_kills(cluster, rounds=2, seed=1)
    assert found["checkpoints"] > 1
    assert found["kills"] == 6


def test_witness_signs_the_checkpoints_of_a_cluster(tmp_path: Path) -> None:
    """A proof satisfies a policy that demands a witness; without the witness, nodes continue to serve checkpoints."""
    with ExitStack() as stack:
        store = WitnessStore(tmp_path / "witness", "auditor.example/witness")
        stack.callback(store.close)
        key = store.secret.verifier.text()
        servers: list[WitnessServer] = []

        def begin(directory: Path) -> None:
            trusted = policy.parse(shell("checkpoint", "policy", "--cluster", directory).encode())
            servers.append(WitnessServer("127.0.0.1", 0, trusted, store))
            stack.callback(servers[0].end)
            for file in directory.glob("node-*/node.toml"):
                urls = f'[witness]\nurls = ["http://{servers[0].endpoint}"]\nkeys = ["{key}"]\n'
                file.write_text(f"{file.read_text()}\n{urls}")

        cluster = stack.enter_context(three(tmp_path / "three", change=begin))
        text = shell("checkpoint", "policy", "--cluster", cluster.directory, "--witness", key)
        trusted = policy.parse(text.encode())
        with Client.connect(cluster.directory, timeout=30) as client:
            for number in range(3):
                found = client.journal("orders").write(b"order %d" % number).prove()
                assert found.value == b"order %d" % number
            until(lambda: is_witnessed(client, trusted), "the witness signed")
            proven = proof.check(client.prove("orders", 2), trusted)
            assert "auditor.example/witness" in proven.signers
            with client.journal("written").writer(receipts=True) as writer:
                for number in range(3):
                    writer.write(b"written %d" % number)
            assert writer.last is not None
            assert writer.last.prove().value == b"written 2"
            assert [receipt.prove().offset for receipt in writer.take_receipts()] == [0, 1, 2]
            servers[0].end()
            client.journal("orders").write(b"without the witness")
            assert client.prove("orders", 3).value == b"without the witness"


def is_witnessed(client: Client, trusted: policy.Policy) -> bool:
    try:
        return "auditor.example/witness" in policy.check(trusted, client.checkpoint()).witnesses
    except Unproven:
        return False


def test_attackers_with_root_are_caught_by_a_saved_checkpoint(tmp_path: Path) -> None:
    """One node repairs every hash after a change; then a majority of the nodes signs the rewritten log."""
    with three(tmp_path / "three") as cluster:
        with Client.connect(cluster.directory, timeout=30) as client:
            for number in range(20):
                last = client.journal("orders").write(b"%02d apples" % number)
            last.prove()
        where = ("--cluster", cluster.directory)
        (tmp_path / "policy").write_text(shell("checkpoint", "policy", *where))
        shell("checkpoint", "save", tmp_path / "saved", *where)
        first = cluster[1].folder
        for signers, out in ((), "one"), ((first, cluster[2].folder), "two"):
            command = [sys.executable, REWRITE, first, tmp_path / out, "07 apples", "99 apples"]
            subprocess.run([*command, *(f"--sign={folder}" for folder in signers)], check=True)
        wait_until_same(cluster)
        signed = ("--checkpoint", tmp_path / "saved", "--policy", tmp_path / "policy")
        for out in ("one", "two"):
            path = ("--path", tmp_path / out / "segments")
            assert shell("verify", *path) == "", "every hash is right"
            assert json.loads(refused("verify", *path, "--signatures"))["kind"] == "signature"
        changed = ("--path", tmp_path / "one" / "segments", *signed)
        found = json.loads(refused("verify", *changed, CHAPLAIN_CLUSTER=str(cluster.directory)))
        assert (found["kind"], found["stream"], found["offset"]) == ("tree", "orders", 7)
        assert shell("verify", *where, *signed) == "", "the real log is the signed one"
        two = tmp_path / "two"
        more = ("--tiles", two / "tree", "--policy", tmp_path / "policy")
        fork = refused("checkpoint", "compare", tmp_path / "saved", two / "checkpoint", *more)
        assert "node-1, node-2: proof of misbehaviour" in fork


def refused(*arguments: str | Path, **environment: str) -> str:
    """The output of a command that found something wrong."""
    command = [*PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    assert done.returncode == 3, f"{arguments}: {done.returncode}, {done.stderr}"
    return done.stdout
