"""The gateway as a process of its own, before real clusters: writes, proofs, rights, failures and floods."""

from __future__ import annotations

import fcntl
import http.client
import json
import re
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chaplain.proofs import policy, proof
from tests.integration.journal.support.scenes import three
from tests.integration.product.product_shell import Shell
from tests.support.process_cluster import PATIENCE_S, PROGRAM, running, shell, until

ROOT = Path(__file__).parents[3]
PORT = 7490
"""The default port, which the printed walk uses."""
SLOW_CLIENTS = 200
FLOOD = 1600
GROWTH_MIB_MAX = 48
"""What a flood and slow clients may add to the memory of the gateway. Without bounds it would be hundreds of MiB."""


class Reply(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        return str(self.json["type"].rpartition(":")[2])


class Gateway:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def send(self, token: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        given = {
            "Authorization": f"Bearer {token}",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read())
        finally:
            connection.close()

    def memory_mib(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024


@contextmanager
def gateway(cluster: Path, settings: str = "") -> Iterator[Gateway]:
    file = cluster / "gateway.toml"
    file.write_text(settings)
    command = [*PROGRAM, "gateway", "--cluster", cluster, "--port", "0", "--output", "json", "--settings", file]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        yield Gateway(process, int(json.loads(line)["url"].rpartition(":")[2]))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert said == ""
    finally:
        process.kill()
        process.communicate()


def new_token(cluster: Path, name: str, *options: str) -> str:
    return shell("token", "new", name, *options, "--cluster", cluster).strip()


TEXT = {"Content_Type": "text/plain"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a cluster of one node, which the tests of this module share."""
    with running(tmp_path_factory.mktemp("one") / "demo", 1) as cluster:
        yield cluster.directory


def test_gateway_serves_tokens_with_the_rights_of_their_clients(directory: Path) -> None:
    shop = new_token(directory, "seller", "--write", "sales*", "--read", "sales*")
    with gateway(directory) as served:
        auditor = new_token(directory, "auditor", "--read", "*")  # while the gateway runs
        until(lambda: served.send(auditor, "GET", "/v1/health").status == 200, "the new token counts")
        written = served.send(shop, "POST", "/v1/streams/sales/messages?key=k", b"apples", **TEXT)
        assert written.status == 201
        assert served.send(shop, "POST", "/v1/streams/other/messages", b"x", **TEXT).problem == "forbidden"
        assert served.send(auditor, "POST", "/v1/streams/sales/messages", b"x", **TEXT).problem == "forbidden"
        page = served.send(auditor, "GET", "/v1/streams/sales/messages").json
        assert [(one["key"], one["value"]) for one in page["messages"]] == [("k", "apples")]

        once = {**TEXT, "Idempotency_Key": "one"}
        with ThreadPoolExecutor(4) as pool:
            sent = pool.map(
                lambda _: served.send(shop, "POST", "/v1/streams/sales/messages", b"once", **once), range(8)
            )
            assert {one.status for one in sent} <= {201, 409}
        assert served.send(shop, "GET", "/v1/streams").json["streams"][0]["next_offset"] == 2

        receipt = written.json["receipts"][0]
        resolved = served.send(shop, "POST", f"/v1/requests/{receipt['request']}/resolve").json
        assert (resolved["written"], resolved["receipt"]["offset"]) == (True, 0)
        retried = served.send(
            shop, "POST", "/v1/streams/sales/messages?key=k", b"apples", Chaplain_Retry=receipt["request"], **TEXT
        )
        assert retried.json["receipts"][0]["offset"] == 0

        text = served.send(auditor, "GET", "/v1/streams/sales/messages/0/proof").body
        trusted = policy.parse(served.send(auditor, "GET", "/v1/policy").body)
        assert proof.check(proof.parse(text), trusted, stream="sales", offset=0).value == b"apples"
        assert served.send(auditor, "GET", "/v1/checkpoint").body.startswith(b"chaplain/")
        assert served.send(auditor, "GET", "/v1/members").json["members"][0]["state"] == "alive"
        assert served.send(auditor, "GET", "/v1/status").json["status"]["roles"]
        assert served.send(auditor, "GET", "/v1/streams/none/messages").problem == "missing"

        arguments = Path(f"/proc/{served.process.pid}/cmdline").read_bytes()
        assert shop.encode() not in arguments
        shell("token", "remove", "seller", "--cluster", directory)
        until(lambda: served.send(shop, "GET", "/v1/streams").status == 401, "the removed token is refused")
    listed = json.loads(shell("token", "list", "--cluster", directory, "--output", "json"))
    assert "auditor" in [one["name"] for one in listed]
    assert "seller" not in [one["name"] for one in listed]
    clients = json.loads(shell("client", "list", "--cluster", directory, "--output", "json"))
    assert {one["name"]: one["status"] for one in clients}["seller"] == "removed"
    assert not (directory / "gateway/seller.identity").exists()
    wrong = shell("token", "new", "auditor", "--cluster", directory, code=1)
    assert "exists" in wrong


def test_writes_and_followers_continue_when_the_master_is_killed(tmp_path: Path) -> None:
    with three(tmp_path / "three") as cluster, ExitStack() as stack:
        token = new_token(cluster.directory, "shop")
        served = stack.enter_context(gateway(cluster.directory))
        path = "/v1/streams/orders/messages"
        assert served.send(token, "POST", path, b"0", Idempotency_Key="0", **TEXT).status == 201
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
        stack.callback(connection.close)
        connection.request("GET", "/v1/streams/orders/follow?to=20", headers={"Authorization": f"Bearer {token}"})
        following = connection.getresponse()
        for number in range(1, 20):
            if number == 5:
                status = served.send(token, "GET", "/v1/status").json["status"]
                cluster[status["master_id"]].kill()
            value = str(number).encode()

            def write(value: bytes = value, number: int = number) -> bool:
                reply = served.send(token, "POST", path, value, Idempotency_Key=str(number), **TEXT)
                assert reply.status in (201, 409, 503, 504), reply
                return reply.status == 201

            until(write, f"message {number} is written")
        events = following.read().decode()
        assert [json.loads(text)["value"] for text in re.findall(r"^data: (.*)$", events, re.MULTILINE)] == [
            str(number) for number in range(20)
        ]


def test_flood_without_tokens_and_slow_clients_do_not_grow_memory(directory: Path) -> None:
    """Slow clients send a part of a header or of a body, or do not read an answer."""
    with ExitStack() as stack:
        token = new_token(directory, "flooded")
        settings = "header_seconds = 60\nbody_seconds = 60\nstalled_seconds = 60\n"
        served = stack.enter_context(gateway(directory, settings))
        assert served.send(token, "POST", "/v1/streams/a/messages", b"x" * 500_000, **TEXT).status == 201
        before_mib = served.memory_mib()
        start = f"Host: a\r\nAuthorization: Bearer {token}\r\n".encode()
        for number in range(SLOW_CLIENTS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            match number % 4:
                case 0:
                    slow.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 8000)
                case 1:
                    slow.sendall(b"POST /v1/streams/a/messages HTTP/1.1\r\n" + start + b"Content-Length: 5000000\r\n")
                    slow.sendall(b"Content-Type: text/plain\r\n\r\n" + b"x" * 100)
                case 2:
                    slow.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000000\r\n\r\nx")
                case _:
                    slow.sendall(b"GET /v1/streams/a/messages HTTP/1.1\r\n" + start + b"\r\n")
        statuses: list[int] = []

        def flood(number: int) -> None:
            for _ in range(FLOOD // 4):
                wrong = f"cpl_{number:012x}_{'x' * 43}"
                statuses.append(served.send(wrong, "POST", "/v1/streams/a/messages", b"x" * 1000, **TEXT).status)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(flood, range(4)))
        assert {*statuses} == {401, 429}
        assert served.memory_mib() - before_mib < GROWTH_MIB_MAX
        assert served.send(token, "GET", "/v1/health").status == 200


@contextmanager
def only_user_of_the_port() -> Iterator[None]:
    with (Path(tempfile.gettempdir()) / f"chaplain-test-port-{PORT}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.timeout(280)
def test_walk_of_the_page_works_as_printed(directory: Path) -> None:
    """The second block runs in another terminal while the rest is typed."""
    page = (ROOT / "docs/howto/http.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    typed = Shell(directory.parent)
    with only_user_of_the_port():
        typed.worked(blocks[0])
        served = subprocess.Popen(
            ["bash", "-c", f"exec {blocks[1]}"],
            cwd=typed.folder,
            env=typed.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert served.stdout is not None
            assert f":{PORT} " in served.stdout.readline()
            said = [typed.worked(f"set -e -o pipefail\n{block}") for block in blocks[2:]]
        finally:
            served.terminate()
            served.communicate(timeout=PATIENCE_S)
    commands = [line for block in blocks for line in block.splitlines() if not line.startswith(" ")]
    assert len(commands) <= 6
    assert json.loads(said[0])["receipts"][0]["offset"] == 0
    assert "id: 0" in said[1]
    assert said[-1].startswith("stream orders offset 0: proven")
