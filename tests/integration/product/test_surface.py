"""Every command, as it is written down for users, on one cluster, in the order in which somebody might try them."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaplain.runtime.cluster.local import bring_down, pid_of
from tests.integration.product.product_shell import Shell

pytestmark = pytest.mark.timeout(600)
PATIENCE_S = 60.0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    yield Shell(tmp_path)
    if (tmp_path / "c/cluster.toml").exists():
        bring_down(tmp_path / "c")


def test_every_command_of_the_surface_works(shell: Shell) -> None:
    shell.worked("chaplain cluster up --nodes 3 --dir c --database sqlite")
    shell.environment["CHAPLAIN_CLUSTER"] = "c"
    nodes(shell)
    journal(shell)
    statements(shell)
    talk(shell)
    graph_and_sequence(shell)
    clients_and_keys(shell)
    programs(shell)
    members(shell)
    page_of_the_cluster(shell)
    assert shell.worked("chaplain cluster down --cluster c") == "4 nodes stopped.\n"
    assert shell.processes() == []


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


def rows(shell: Shell, line: str) -> list[dict]:
    return [json.loads(row) for row in shell.worked(f"chaplain {line}").splitlines()]


def one(shell: Shell, line: str) -> dict:
    return json.loads(shell.worked(f"chaplain {line} --output json"))


def nodes(shell: Shell) -> None:
    until(lambda: [node["state"] for node in one(shell, "cluster status --cluster c")["nodes"]] == ["WRK"] * 3)
    status = one(shell, "cluster status --cluster c")
    assert [node["id"] for node in status["nodes"]] == [1, 2, 3]
    assert {"id", "endpoint", "pid", "state", "roles", "master", "members"} <= set(status["nodes"][0])
    assert {"regime", "master", "streams", "fingerprints"} <= set(status)
    for number in (1, 2, 3):
        folder = shell.folder / f"c/node-{number}"
        assert {"node.toml", "pid", "segments"} <= {path.name for path in folder.iterdir()}
    shell.worked("kill -9 $(cat c/node-3/pid)")
    until(lambda: pid_of(shell.folder / "c/node-3") is None)
    assert "chaplain cluster up --dir c" in shell.worked("chaplain cluster status --dir c")
    alone = begun(shell, "node run --config c/node-3/node.toml 2> log")
    until(lambda: [node["state"] for node in one(shell, "cluster status")["nodes"]] == ["WRK"] * 3)
    alone.terminate()
    alone.communicate(timeout=PATIENCE_S)
    assert alone.returncode == 0
    assert one(shell, "cluster up --dir c")["started"] == [3]


def journal(shell: Shell) -> None:
    (receipt,) = rows(shell, "journal write 'first words' --stream orders --key k")
    assert (receipt["stream"], receipt["offset"]) == ("orders", 0)
    assert {"regime", "index", "timestamp", "hash"} <= set(receipt)
    shell.worked("printf 'from a file' > letter && printf 'a\\nb\\n' > list")
    rows(shell, "journal write --stream orders --file letter")
    assert [row["offset"] for row in rows(shell, "journal write --stream orders --lines - < list")] == [2, 3]
    rows(shell, "journal write --stream orders --file list --lines")
    found = rows(shell, "journal read --stream orders --from 0 --to 3")
    assert [row["value"] for row in found] == ["first words", "from a file", "a"]
    assert set(found[0]) >= {"stream", "offset", "key", "value", "timestamp", "client_id", "client_message_id"}
    assert len(rows(shell, "journal read --stream orders --from 4 --node 2")) == 2
    followed = listening(
        shell, "journal read --stream orders --follow --from 6 | head -n 1", "journal write x --stream orders"
    )
    assert (followed["offset"], followed["value"]) == (6, "x")


def statements(shell: Shell) -> None:
    shell.worked("chaplain sql exec 'create table t(a integer, b text)'")
    shell.worked("chaplain sql exec 'insert into t values (?, ?)' --param 1 --param one --stream main")
    assert one(shell, "sql query 'select * from t' --stream main") == [{"a": 1, "b": "one"}]
    assert "one" in shell.worked("chaplain sql query 'select * from t'")
    assert isinstance(one(shell, "sql results"), list)


def talk(shell: Shell) -> None:
    say = "pool broadcast - --pool chat < letter"
    heard = listening(shell, "pool listen --pool chat --count 1 --output json", say)
    assert heard["value"] == "from a file"
    heard = listening(shell, "event listen --count 1 --output json", "event fire deployed - < letter")
    assert (heard["type"], heard["value"]) == ("deployed", "from a file")
    heard = listening(
        shell,
        "event listen --members --count 1 --node 1 --output json",
        "pool listen --pool chat --timeout 0.5 --node 2",
    )
    assert heard["kind"] in ("join", "leave")
    assert (heard["node"], heard["pool"]) == (2, "chat")
    seen = one(shell, "event fire deployed v2 --acknowledge")
    assert (seen["fired"], seen["acknowledged"], seen["missing"]) == ("deployed", [1, 2, 3], [])
    until(lambda: one(shell, "query ask version")["decided"])
    answer = one(shell, "query ask version")
    assert answer["question"] == "version"
    assert {"value", "votes", "members", "decided", "voters", "missing", "reason", "declined", "tally"} <= set(answer)
    ask = "query ask colour --content 'by day' --timeout 1 --node 2 --output json"
    heard = listening(shell, "query answer colour red --count 1 --node 1 --output json", ask)
    assert (heard["question"], heard["asker"], heard["content"]) == ("colour", 2, "by day")
    heard = listening(shell, "event listen --count 1 --node 1 --output json", "event fire deployed v3 --to 1 --node 2")
    assert (heard["sender"], heard["value"]) == (2, "v3")


def listening(shell: Shell, listen: str, say: str) -> dict:
    """What a listener hears; it is told again and again until it has begun to listen."""
    process = begun(shell, listen)
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < end:
        shell.worked(f"chaplain {say}")
    out, _ = process.communicate(timeout=PATIENCE_S)
    return json.loads(out)


def begun(shell: Shell, line: str) -> subprocess.Popen[bytes]:
    words = ["bash", "-c", f"exec chaplain {line}" if "|" not in line else f"chaplain {line}"]
    return subprocess.Popen(words, cwd=shell.folder, env=shell.environment, stdout=subprocess.PIPE)


def graph_and_sequence(shell: Shell) -> None:
    (event,) = rows(shell, "graph append 'a note' --stream notes --node 1")
    (found,) = rows(shell, "graph read --stream notes --node 1")
    assert (found["id"], found["value"]) == (event["id"], "a note")
    assert {"parents", "author", "timestamp", "read", "confirms"} <= set(found)
    assert rows(shell, "sequence publish tick --stream ticks --node 1") == [{"number": 1}]
    (tick,) = rows(shell, "sequence read --stream ticks --node 1")
    assert (set(tick), tick["value"]) == ({"number", "value", "publisher", "hash"}, "tick")
    streams_of_every_kind(shell)


def streams_of_every_kind(shell: Shell) -> None:
    """In `cluster status`, while somebody listens to a pool."""
    listener = begun(shell, "pool listen --pool chat")
    try:
        until(lambda: "chat" in one(shell, "cluster status")["pools"])
        until(lambda: one(shell, "cluster status")["graph"]["notes"]["same"])
        found = one(shell, "cluster status")
        table = shell.worked("chaplain cluster status")
    finally:
        listener.kill()
        listener.communicate()
    assert found["streams"]["orders"]["head"] >= 7
    assert (found["graph"]["notes"]["events"], found["graph"]["notes"]["leaves"]) == (1, 1)
    sequence = found["sequence"]
    assert (sequence["state"], sequence["work_set"], sequence["streams"]) == ("WRK", [1, 2, 3], {"ticks": {"head": 1}})
    shown = [[cell.strip() for cell in line.split("│")[1:3]] for line in table.splitlines() if "│" in line]
    assert [*shown[3:]] == [
        ["journal", "main"],
        ["journal", "orders"],
        ["graph", "notes"],
        ["sequence", "ticks"],
        ["pool", "chat"],
    ]
    assert f"history {sequence['history']}, work set 1, 2, 3" in table
    assert [node["id"] for node in one(shell, "cluster status --node 2")["nodes"]] == [2]
    assert one(shell, "cluster status --node 2")["master"] == found["master"]


def clients_and_keys(shell: Shell) -> None:
    shell.worked("chaplain client add alice --write 'orders*' --read '*'")
    shell.worked("CHAPLAIN_IDENTITY=alice.identity chaplain journal write 'by alice' --stream orders")
    assert {client["name"] for client in one(shell, "client list")} == {"alice", "default"}
    shell.worked("chaplain client remove alice")
    shell.worked("chaplain key new --out spare && chaplain key rotate")
    assert len({(node["used"], *node["older"], *node["newer"]) for node in one(shell, "key list")}) == 1
    shell.worked("NO_COLOR=1 chaplain client list")


def programs(shell: Shell) -> None:
    """The Python client; the pipeline is in `surface_spark.py`."""
    assert shell.worked(f"python {Path(__file__).with_name('surface_python.py')}", 120) == "done\n"


def page_of_the_cluster(shell: Shell) -> None:
    console = begun(shell, "console --cluster c --port 0 --output json")
    try:
        url = json.loads(console.stdout.readline())["url"]
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            assert b"<html" in page.read()
    finally:
        console.terminate()
        console.communicate(timeout=PATIENCE_S)


def members(shell: Shell) -> None:
    until(lambda: [member["state"] for member in one(shell, "member list --node 2")] == ["alive"] * 3)
    found = one(shell, "member list --node 2")
    assert [member["id"] for member in found] == [1, 2, 3]
    assert set(found[0]) >= {"id", "uri", "state", "incarnation"}
    assert one(shell, "member add --role executor")["id"] == 4
    assert one(shell, "member serializers 1 2 --yes")["serializers"] == [1, 2]
    assert "serializer" not in one(shell, "member remove 3 --role executor")["lost"]
    ping = json.loads(shell.worked("chaplain wire decode aaa1060007"))
    assert (ping["command"], ping["sequence"]) == ("PING", 7)
    assert shell.worked(f"chaplain wire encode '{json.dumps(ping)}'") == "aaa1060007\n"
