"""What the console shows and to whom: snapshots, sentences, rates, and the checks of requests."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from chaplain.config import ClusterFile, ClusterNode
from chaplain.console.app import VIEWERS_MAX, check_exposure, make_app
from chaplain.console.events import changes
from chaplain.console.serve import listen, serve
from chaplain.console.watch import Rates, Watcher, make_snapshot
from chaplain.errors import ConfigError

NODES = tuple(ClusterNode(number, f"tcp://127.0.0.1:{number}", "key") for number in (1, 2))
CLUSTER = ClusterFile("home", "aes-256-gcm", "identity", NODES)


def status(node: int, **more: Any) -> dict[str, Any]:
    members = [{"id": 1, "state": "alive"}, {"id": 2, "state": "suspect"}]
    return {"id": node, "state": "WRK", "regime": 3, "master": node == 1, "member_list": members, **more}


def snapshot(one: dict[str, Any] | None, two: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {**make_snapshot(CLUSTER, dict(zip(NODES, (one, two), strict=True)), []), **more}


def test_snapshot_contains_running_nodes_master_and_highest_heads() -> None:
    one = status(1, streams={"orders": {"head": 5}})
    two = status(2, streams={"orders": {"head": 7}, "notes": {"head": 1}})
    shown = snapshot(one, two)
    assert [(node["id"], node["up"], node["sees"]) for node in shown["nodes"]] == [
        (1, True, {"1": "alive", "2": "suspect"}),
        (2, True, {"1": "alive", "2": "suspect"}),
    ]
    assert (shown["master"], shown["regime"]) == (1, 3)
    assert shown["streams"] == [{"name": "notes", "head": 1}, {"name": "orders", "head": 7}]


def test_snapshot_contains_the_checkpoint_of_each_node_and_its_age() -> None:
    tree = {"size": 9, "checkpoint": 7, "checkpoint_age_seconds": 1.5}
    nodes = snapshot(status(1, tree=tree), None)["nodes"]
    assert [(node["checkpoint"], node["checkpoint_age_seconds"]) for node in nodes] == [(7, 1.5), (None, None)]


def test_consumers_of_the_node_that_has_executed_most_are_shown() -> None:
    old, new = ([{"name": "billing", "position": position}] for position in (4, 9))
    assert snapshot(status(1, consumers=old), status(2, consumers=new))["consumers"] == new
    assert snapshot(status(1), status(2))["consumers"] == []


def test_two_claimed_masters_are_resolved_by_the_higher_regime() -> None:
    assert snapshot(status(1), status(2, master=True, regime=4))["master"] == 2


def test_console_ends_on_ctrl_c_with_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        sockets[0].close()
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", interrupted)
    told: list[str] = []
    serve(make_app(Watcher("nowhere"), ""), "127.0.0.1", 0, None, told.append)
    assert len(told) == 1


def test_dead_node_is_shown_without_state() -> None:
    shown = snapshot(None, status(2))
    assert (shown["nodes"][0]["up"], shown["nodes"][0]["state"], shown["master"]) == (False, None, None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (None, snapshot(status(1), status(2)), ["watching 2 nodes"]),
        (snapshot(status(1), status(2)), snapshot(None, status(2)), ["node 1 is down", "no node is master"]),
        (snapshot(status(1), None), snapshot(status(1), status(2)), ["node 2 is back"]),
        (
            snapshot(None, status(2)),
            snapshot(None, status(2, master=True, regime=9)),
            ["node 2 is master, regime 9"],
        ),
        (
            snapshot(status(1, standing="sound"), None),
            snapshot(status(1, standing="lost"), None),
            ["node 1: lost, was sound"],
        ),
        (
            snapshot(None, None, stages=[]),
            snapshot(None, None, stages=[{"change": "add executor 4", "stage": "Catchup"}]),
            ["configuration: add executor 4 Catchup"],
        ),
        (
            snapshot(None, None, clients=[{"name": "ann", "status": "active"}]),
            snapshot(
                None, None, clients=[{"name": "ann", "status": "compromised"}, {"name": "bob", "status": "active"}]
            ),
            ["client ann is compromised", "client bob was added"],
        ),
    ],
)
def test_changes_are_described_in_sentences(old: Any, new: Any, said: list[str]) -> None:
    assert changes(old, new) == said
    assert changes(new, new) == []


def test_rate_covers_only_the_last_seconds() -> None:
    rates = Rates()
    rates.add(0.0, {"orders": 0})
    assert rates.of("orders") == 0.0
    rates.add(2.0, {"orders": 100})
    assert rates.of("orders") == 50.0
    rates.add(4.0, {"orders": 400, "new": 10})
    assert rates.of("orders") == 150.0
    assert rates.of("new") == 5.0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_address_needs_no_token(host: str) -> None:
    check_exposure(host, token="", tls=False)


@pytest.mark.parametrize(("token", "tls"), [("", False), ("word", False), ("", True)])
def test_public_address_requires_a_token_and_tls(token: str, tls: bool) -> None:
    with pytest.raises(ConfigError, match="would be open to others: give --token-file"):
        check_exposure("0.0.0.0", token=token, tls=tls)
    check_exposure("0.0.0.0", token="word", tls=True)


class StillWatcher(Watcher):
    """Publishes one snapshot and never polls."""

    async def run(self) -> None:
        await self._publish(snapshot(status(1, streams={"<b>orders": {"head": 5}}), None))
        await asyncio.Event().wait()


@pytest.fixture(params=["", "word"])
def console(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(StillWatcher("nowhere"), request.param), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    yield int(listening.getsockname()[1]), request.param
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()
    listening.close()


def get(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_pages_require_the_token_and_load_no_foreign_resources(console: tuple[int, str]) -> None:
    port, token = console
    for path in ("/", "/console.css", "/console.js", "/api/state"):
        code, _, _ = get(port, path)
        assert code == (401 if token else 200)
        code, headers, _ = get(port, path, Authorization=f"Bearer {token}")
        assert code == 200
        assert "default-src 'self'" in headers["content-security-policy"]
    code, headers, _ = get(port, f"/?token={token or 'any'}")
    assert code == 200
    assert "HttpOnly" in headers["set-cookie"]
    assert get(port, "/?token=wrong")[0] == (401 if token else 200)


def test_request_with_a_foreign_host_header_is_refused(console: tuple[int, str]) -> None:
    port, token = console
    for host in (f"evil.example:{port}", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]"):
        code, _, body = get(port, "/api/state", Host=host)
        assert code == (401 if token else 403)
        assert b"home" not in body
    for host in (f"localhost:{port}", "[::1]:80", "127.0.0.1"):
        assert get(port, "/api/state", Host=host)[0] == (401 if token else 200)
    shown = get(port, "/api/state", Host="console.example", Authorization="Bearer word")  # no other page has the word
    assert shown[0] == (200 if token else 403)


def test_state_is_served_as_json(console: tuple[int, str]) -> None:
    port, token = console
    shown = json.loads(get(port, "/api/state", Authorization=f"Bearer {token}")[2])
    assert shown["streams"] == [{"name": "<b>orders", "head": 5, "rate": 0.0}]
    assert shown["happenings"][0]["text"] == "watching 2 nodes"


def test_console_refuses_every_method_that_writes(console: tuple[int, str]) -> None:
    port, token = console
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for method in ("POST", "PUT", "DELETE"):
        connection.request(method, "/api/state", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 405
    connection.close()


def test_concurrent_viewers_are_bounded(console: tuple[int, str]) -> None:
    port, token = console
    viewers = []
    for number in range(VIEWERS_MAX + 1):
        viewer = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        viewer.request("GET", "/api/live", headers={"Authorization": f"Bearer {token}"})
        answer = viewer.getresponse()
        assert answer.status == (200 if number < VIEWERS_MAX else 503)
        if answer.status == 200:
            assert answer.readline().startswith(b"data: {")
        viewers.append(viewer)
    for viewer in viewers:
        viewer.close()


def test_taken_console_port_is_named() -> None:
    taken = listen("127.0.0.1", 0)
    with pytest.raises(ConfigError, match="choose another --port"):
        listen("127.0.0.1", taken.getsockname()[1])
    taken.close()
