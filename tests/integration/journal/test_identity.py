"""One identity in many hands: harmless as long as each has a lane of its own, and proven if one id is signed twice."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaplain import Client
from chaplain.client.protocol.journal.lane import ProducerLane
from chaplain.client.protocol.journal.writer import LanePhase
from chaplain.errors import Missing, Refused, Unknown
from tests.integration.journal.support.history import STREAM, read_all
from tests.integration.journal.support.scenes import find_master, three, wait_until_same
from tests.support.process_cluster import PATIENCE_S, Cluster, shell, until

pytestmark = pytest.mark.timeout(300)
PROCESSES, COUNT = 4, 2000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with three(tmp_path_factory.mktemp("identity") / "three") as made:
        yield made


def add(cluster: Cluster, name: str, *options: str) -> Path:
    file = cluster.directory / f"{name}.identity"
    shell("client", "add", name, "--out", file, "--cluster", cluster.directory, *options)
    return file


def listed(cluster: Cluster, name: str) -> dict:
    clients = json.loads(shell("client", "list", "--output", "json", "--cluster", cluster.directory))
    return next(client for client in clients if client["name"] == name)


def test_four_processes_write_under_one_identity(cluster: Cluster) -> None:
    identity = add(cluster, "shared")
    scribes = [_scribe(cluster, identity, number) for number in range(PROCESSES)]
    try:
        for scribe in scribes:
            assert scribe.stdout is not None
            assert scribe.stdout.readline() == "ready\n"
        for scribe in scribes:
            assert scribe.stdin is not None
            scribe.stdin.write("go\n")
            scribe.stdin.flush()
        answers = [scribe.communicate(timeout=PATIENCE_S)[0] for scribe in scribes]
    finally:
        for scribe in scribes:
            scribe.kill()
            scribe.wait()
    assert listed(cluster, "shared")["status"] == "active"
    wait_until_same(cluster)
    at = {message.value: message for message in read_all(cluster.directory, 1)}
    assert len(at) == PROCESSES * COUNT
    for number, answer in enumerate(answers):
        offsets = json.loads(answer)
        assert offsets == [at[b"%d:%d" % (number, place)].offset for place in range(1, COUNT)]
        assert offsets == sorted(offsets)
    assert len({message.client_id for message in at.values()}) == PROCESSES


def _scribe(cluster: Cluster, identity: Path, number: int) -> subprocess.Popen[str]:
    words = [str(cluster.directory), str(identity), str(number), str(COUNT)]
    command = [sys.executable, "-m", "tests.integration.journal.support.scribe", *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_id_signed_twice_ends_the_identity_and_leaves_a_proof(cluster: Cluster) -> None:
    identity = add(cluster, "mallory")
    with (
        Client.connect(cluster.directory, identity=identity, timeout=30) as honest,
        Client.connect(cluster.directory, identity=identity, timeout=30) as thief,
        Client.connect(cluster.directory, timeout=30) as admin,
    ):
        with pytest.raises(Missing, match="nothing is proven"):
            admin.proof("mallory")
        thief.journal("own").write(b"on a lane of its own")  # no lease is on its way any more
        first = honest.journal("theft").write(b"what was written")
        wait_until_same(cluster)  # whoever is asked knows the lane
        use_lane(thief, first.client_id)
        # A node that ends a session before it answers, or is slow, is sent the request a second time: then the client
        # knows no more than that the identity is over. That nothing was written is seen in the stream below.
        with pytest.raises((Refused, Unknown), match="two different requests were signed for one id"):
            thief.journal("theft").write(b"something else under the same id")
        with pytest.raises((Refused, Unknown), match="make a new identity"):
            honest.journal("theft").write(b"too late")
        proof = admin.proof("mallory")
        assert proof.holds
        assert [(one.client_id, one.first_id) for one in proof.requests] == [(first.client_id, 1)] * 2
        assert [message.value for message in admin.journal("theft").read()] == [b"what was written"]
    until(lambda: is_refused(cluster, identity), "no node lets the identity in")
    assert listed(cluster, "mallory")["status"] == "compromised"
    assert listed(cluster, "default")["status"] == "active"
    for node in cluster:
        node.kill()
    cluster.start()
    until(lambda: all(node.ready() for node in cluster), "all serve again")
    find_master(cluster)
    shown = json.loads(shell("client", "proof", "mallory", "--output", "json", "--cluster", cluster.directory))
    assert shown["holds"]
    assert shown["requests"][0]["pack"] != shown["requests"][1]["pack"]
    assert "Both signatures hold" in shell("client", "proof", "mallory", "--cluster", cluster.directory)
    said = shell("client", "proof", "nobody", "--cluster", cluster.directory, code=1)
    assert "nothing is proven" in said


def is_refused(cluster: Cluster, identity: Path) -> bool:
    try:
        Client.connect(cluster.directory, identity=identity, timeout=10).close()
    except Refused:
        return True
    return False


def use_lane(client: Client, client_id: int) -> None:
    """As a client would that was copied with its memory: the lane of another, from its first id on."""
    writing = client._context.engine._stepper._core._journal._writers
    writing._lane, writing._phase = ProducerLane(client_id), LanePhase.OPEN


def test_packs_signed_by_hmac_are_accepted(cluster: Cluster) -> None:
    identity = add(cluster, "cheap", "--signature", "hmac", "--write", "cheap-*", "--read", "*")
    assert listed(cluster, "cheap")["signature"] == "hmac_sha256"
    with Client.connect(cluster.directory, identity=identity, timeout=30) as client:
        with client.journal("cheap-1").writer() as writer:
            for number in range(1000):
                writer.write(b"%d" % number)
        assert writer.last is not None
        assert writer.last.offset == 999
        with pytest.raises(Refused, match="may not write"):
            client.journal(STREAM).write(b"no right")
        assert [message.value for message in client.journal("cheap-1").read(998)] == [b"998", b"999"]
    forged = cluster.directory / "forged.identity"
    lines = identity.read_text().splitlines(keepends=True)
    forged.write_text("".join(line for line in lines if not line.startswith("hmac")))
    with (
        Client.connect(cluster.directory, identity=forged, timeout=30) as client,
        pytest.raises(Refused, match="signature"),
    ):
        client.journal("cheap-1").write(b"signed with the key, which is not what the cluster was told")
    said = shell("client", "add", "x", "--signature", "hmac", "--key", "k", "--cluster", cluster.directory, code=2)
    assert "leave out --key" in said
