"""The command line as a shell uses it, on a real cluster: JSON shapes as documented, word for word."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaplain.runtime.cluster.local import is_alive, pid_of
from tests.support.process_cluster import PATIENCE_S, PROGRAM, shell, until

pytestmark = pytest.mark.timeout(240)

MEMBER = {"id": int, "uri": str, "state": str, "incarnation": int, "failed": bool}
NODE = {"id": int, "endpoint": str, "pid": int, "state": str, "roles": list, "master": bool, "members": int}
ANSWER = {
    "question": str,
    "value": str,
    "votes": int,
    "members": int,
    "decided": bool,
    "voters": list,
    "missing": list,
}


@contextmanager
def three_nodes(made: Path) -> Iterator[Path]:
    """Brought up and down by the command line itself."""
    up = json.loads(shell("cluster", "up", "--nodes", "3", "--dir", made, "--output", "json"))
    assert up["started"] == [1, 2, 3]
    yield made
    pids = [node["pid"] for node in status(made)["nodes"]]
    down = json.loads(shell("cluster", "down", "--cluster", made, "--output", "json"))
    assert down["stopped"] == [1, 2, 3]
    assert not any(is_alive(pid) for pid in pids)
    assert [node["state"] for node in status(made)["nodes"]] == ["down"] * 3


def status(directory: Path) -> dict:
    return json.loads(shell("cluster", "status", "--cluster", directory, "--output", "json"))


def fits(value: dict, shape: dict[str, type]) -> bool:
    """Every field is there, under its name and of its type; there may be more."""
    return all(type(value[name]) is kind for name, kind in shape.items())


@contextmanager
def listening(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def check_cluster_status(directory: Path) -> None:
    until(lambda: len(status(directory)["fingerprints"]) == 3, "all executors have come by one position")
    found = status(directory)
    assert all(fits(node, NODE) for node in found["nodes"])
    assert [node["id"] for node in found["nodes"]] == [1, 2, 3]
    until(lambda: [node["members"] for node in status(directory)["nodes"]] == [3, 3, 3], "all know all")
    assert [(node["standing"], node["disk_full"]) for node in found["nodes"]] == [("sound", False)] * 3
    assert all(node["endpoint"].startswith("tcp://") for node in found["nodes"])
    assert [node["pid"] for node in found["nodes"]] == [pid_of(directory / f"node-{number}") for number in (1, 2, 3)]
    assert {"regime", "master"} <= {*found}
    assert all(type(stream["head"]) is int for stream in found["streams"].values())
    assert set(found["fingerprints"]) == {"1", "2", "3"}
    assert len(set(found["fingerprints"].values())) == 1
    assert found["position"] > 0


def check_member_list_is_each_nodes_own_view(directory: Path) -> None:
    for number in ("1", "3"):
        listed = json.loads(
            shell("member", "list", "--node", number, "--output", "json", CHAPLAIN_CLUSTER=str(directory))
        )
        assert all({*member} == {*MEMBER} and fits(member, MEMBER) for member in listed)
        assert [(member["id"], member["state"]) for member in listed] == [(1, "alive"), (2, "alive"), (3, "alive")]
    assert "choose one of 1, 2, 3" in shell("member", "list", "--cluster", directory, "--node", "9", code=1)


def check_query_ask(directory: Path) -> None:
    answer = json.loads(shell("query", "ask", "version", "--cluster", directory, "--output", "json"))
    assert {*answer} == {*ANSWER, "reason", "tally", "declined"}
    assert fits(answer, ANSWER)
    assert (answer["question"], answer["members"], answer["decided"]) == ("version", 3, True)
    assert answer["votes"] >= 2
    assert {*answer["voters"]} | {*answer["missing"]} <= {1, 2, 3}
    unknown = json.loads(
        shell("query", "ask", "nobody-knows", "--timeout", "0.5", "--cluster", directory, "--output", "json")
    )
    assert (unknown["decided"], unknown["value"]) == (False, None)
    assert "without blanks" in shell("query", "ask", "how are you", "--cluster", directory, code=2)


def check_event_fire_and_listen(directory: Path) -> None:
    listen = ("event", "listen", "--cluster", directory, "--node", "3", "--count", "1", "--output", "json")
    fire = ("event", "fire", "deployed", "v2 ☃", "--cluster", directory, "--node", "1", "--output", "json")
    with listening(*listen) as ear:
        # It cannot say that it listens: so fire until it has heard one.
        until(lambda: shell(*fire) == '{"fired": "deployed"}\n' and ear.poll() is not None, "it is heard")
        heard = json.loads(ear.communicate(timeout=PATIENCE_S)[0])
    assert fits(heard, {"id": str, "type": str, "sender": int, "value": str})
    assert (heard["type"], heard["sender"], heard["value"]) == ("deployed", 1, "v2 ☃")


def check_pool_broadcast_and_listen(directory: Path) -> None:
    listen = ("pool", "listen", "--pool", "chat", "--cluster", directory, "--node", "2", "--count", "1")
    speak = ("pool", "broadcast", "hello", "--pool", "chat", "--cluster", directory, "--node", "1")
    with listening(*listen, "--output", "json") as ear:
        until(lambda: shell(*speak) == "" and ear.poll() is not None, "it is heard")
        heard = json.loads(ear.communicate(timeout=PATIENCE_S)[0])
    assert heard == {"pool": "chat", "value": "hello", "sender": 1, "client": "default", "missed": 0}
    assert json.loads(shell(*speak, "--output", "json")) == {"pool": "chat", "broadcast": True}


def check_keys(directory: Path) -> None:
    assert json.loads(shell("key", "rotate", "--cluster", directory, "--output", "json")) == {"rotated": True}
    file = directory.parent / "alice.identity"
    made = json.loads(shell("key", "new", "--kind", "identity", "--out", file, "--output", "json"))
    assert (made["kind"], made["file"]) == ("identity", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made["key"] in file.read_text()
    assert str(file) in shell("key", "new", "--out", file, code=1), "a key is never overwritten"


def test_wire_commands_convert_both_ways() -> None:
    hello = {
        "layer": "mesh",
        "command": "HELLO",
        "sequence": 1,
        "ipaddress": "127.0.0.1",
        "port": 49152,
        "pools": ["chat", "news"],
        "status": 2,
        "headers": {"version": "1"},
    }
    packet = {
        "layer": "parcel",
        "node": 16909060,
        "version": 1,
        "protocol": 2,
        "flags": 0,
        "size": 3,
        "body": "616263",
        "payload": "00ff",
    }
    pool = {"layer": "mesh", "command": "JOIN", "sequence": 7, "pool": "chat", "status": 3}
    for message in (hello, packet, pool):
        octets = shell("wire", "encode", json.dumps(message)).strip()
        assert bytes.fromhex(octets)
        assert json.loads(shell("wire", "decode", octets)) == message
    assert "give pairs of hexadecimal digits" in shell("wire", "decode", "zz", code=2)


def check_what_is_down_is_started_again_and_nothing_else(directory: Path) -> None:
    before = [node["pid"] for node in status(directory)["nodes"]]
    stopped = pid_of(directory / "node-2")
    assert stopped is not None
    os.kill(stopped, signal.SIGKILL)
    until(lambda: not is_alive(stopped), "node 2 is gone")
    assert status(directory)["nodes"][1]["state"] == "down"
    assert json.loads(shell("cluster", "up", "--dir", directory, "--output", "json"))["started"] == [2]
    after = [node["pid"] for node in status(directory)["nodes"]]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, False, True]


def test_cluster_works_from_up_to_down_by_shell_commands(tmp_path: Path) -> None:
    """One test, because a cluster takes longer to come up than a command to run."""
    with three_nodes(tmp_path / "three") as directory:
        check_cluster_status(directory)
        check_member_list_is_each_nodes_own_view(directory)
        check_query_ask(directory)
        check_event_fire_and_listen(directory)
        check_pool_broadcast_and_listen(directory)
        check_keys(directory)
        check_what_is_down_is_started_again_and_nothing_else(directory)
