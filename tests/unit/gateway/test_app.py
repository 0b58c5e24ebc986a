"""The application without sockets: decoding, limits, problems, and whether the OpenAPI document tells the truth."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.errors import (
    Busy,
    ChaplainError,
    Closed,
    ConfigError,
    DiskFull,
    Dropped,
    Forbidden,
    Missing,
    Misused,
    Refused,
    StorageError,
    Unknown,
    Unreachable,
)
from chaplain.gateway import problems
from chaplain.gateway.app import make_app
from chaplain.gateway.journal import BATCH
from chaplain.gateway.operations import Operation, parameters_of
from chaplain.gateway.tokens import RELOAD_S, remove_token
from tests.unit.gateway.scenes import BYTES, HEAD, JSON, FakeCluster, Reply, Scene, failing

ORDERS = "/v1/streams/orders/messages"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "gateway")


def send(scene: Scene, method: str, target: str, *arguments: Any, **options: Any) -> Reply:
    async def one() -> Reply:
        reply = await scene.send(method, target, *arguments, **options)
        await scene.gateway.pool.close()
        return reply

    return asyncio.run(one())


# Writing.


def test_value_is_stored_as_it_was_sent(scene: Scene) -> None:
    reply = send(scene, "POST", f"{ORDERS}?key=k%201&isolated=true", JSON, b' {"a": 1} ')
    assert reply.status == 201
    assert reply.headers["location"] == f"{ORDERS}/0"
    found = reply.json["receipts"][0]
    assert (found["offset"], found["request"], found["hash"]) == (0, "7-1", "01" * 32)
    assert found["timestamp"] == "2023-11-14T22:13:20.000000001Z"
    send(scene, "POST", ORDERS, BYTES, b"\xff\x00")
    assert scene.cluster.writes == [
        ("orders", b' {"a": 1} ', b"k 1", None, True),
        ("orders", b"\xff\x00", None, None, False),
    ]


def test_batch_is_one_write_with_keys_headers_and_bytes(scene: Scene) -> None:
    body = {
        "messages": [
            {"value": "text", "key": "k", "headers": {"h": "v"}},
            {"value": {"base64": base64.b64encode(b"\xff").decode()}},
            {"value": {"json": {"a": [1]}}, "key": {"base64": "AA=="}},
        ]
    }
    reply = send(scene, "POST", ORDERS, {"content-type": BATCH}, json.dumps(body).encode())
    assert [one["offset"] for one in reply.json["receipts"]] == [0, 1, 2]
    items = [(b"text", b"k", {"h": b"v"}), (b"\xff", None, {}), (b'{"a":[1]}', b"\x00", {})]
    assert scene.cluster.writes == [("orders", items, None, False)]


def test_encoded_slash_belongs_to_the_name_of_the_stream(scene: Scene) -> None:
    reply = send(scene, "POST", "/v1/streams/a%2Fb/messages", BYTES, b"x")
    assert reply.headers["location"] == "/v1/streams/a%2Fb/messages/0"
    assert scene.cluster.writes[0][0] == "a/b"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (JSON, b"{", 400),
        ({"content-type": BATCH}, b'{"messages": []}', 400),
        ({"content-type": BATCH}, b'{"messages": [{"value": {"base64": "?"}}]}', 400),
        ({"content-type": BATCH}, b'{"messages": [{"value": {"base64": "", "json": 1}}]}', 400),
        ({"content-type": BATCH}, b'{"messages": [{"value": "", "unknown": 1}]}', 400),
        ({**BYTES, "chaplain-retry": "7"}, b"x", 400),
        ({**BYTES, "idempotency-key": "k" * 256}, b"x", 400),
        ({}, b"x", 415),
        ({"content-type": "application/x-www-form-urlencoded"}, b"x", 415),
        ({**BYTES, "content-encoding": "gzip"}, b"x", 415),
        ({**BYTES, "content-length": "99999999"}, b"x", 413),
        (BYTES, b"x" * (4 * 1024 * 1024), 413),
    ],
)
def test_wrong_write_is_refused_and_writes_nothing(
    scene: Scene, headers: dict[str, str], body: bytes, status: int
) -> None:
    reply = send(scene, "POST", ORDERS, headers, body)
    assert reply.status == status
    assert reply.problem
    assert scene.cluster.writes == []


def test_repeated_idempotency_key_writes_once(scene: Scene) -> None:
    headers = {**BYTES, "idempotency-key": "one"}
    first, second = (send(scene, "POST", ORDERS, headers, b"x") for _ in range(2))
    assert first.body == second.body
    assert len(scene.cluster.writes) == 1
    assert send(scene, "POST", ORDERS, headers, b"y").problem == "key-reused"


def test_unknown_outcome_names_the_request_and_its_repetition_retries_it(scene: Scene) -> None:
    headers = {**BYTES, "idempotency-key": "one"}
    with failing(scene.cluster, Unknown("no receipt came", (7, 3))):
        reply = send(scene, "POST", ORDERS, headers, b"x")
        assert (reply.status, reply.problem, reply.json["request"]) == (504, "unknown-outcome", "7-3")
    with failing(scene.cluster, Refused("lanes are full")):
        assert send(scene, "POST", ORDERS, headers, b"x").status == 409
    assert send(scene, "POST", ORDERS, headers, b"x").status == 201
    assert [write[3] for write in scene.cluster.writes] == [None, (7, 3), (7, 3)]


def test_retry_header_is_the_id_of_the_write(scene: Scene) -> None:
    send(scene, "POST", ORDERS, {**BYTES, "chaplain-retry": "7-3"}, b"x")
    assert scene.cluster.writes[0][3] == (7, 3)


def test_outcome_of_a_request_is_resolved(scene: Scene) -> None:
    assert send(scene, "POST", "/v1/requests/7-1/resolve").json["receipt"]["offset"] == 0
    assert send(scene, "POST", "/v1/requests/7-2/resolve").json == {"written": False, "receipt": None}


# Reading.


def test_page_ends_at_its_limit_and_names_the_next_one(scene: Scene) -> None:
    first = send(scene, "GET", f"{ORDERS}?limit=2").json
    assert [one["offset"] for one in first["messages"]] == [0, 1]
    assert first["next"] == 2
    last = send(scene, "GET", f"{ORDERS}?from={first['next']}").json
    assert [one["offset"] for one in last["messages"]] == [2]
    assert last["next"] is None
    shown = last["messages"][0]
    assert (shown["key"], shown["value"], shown["headers"]) == ("k", "apples", {"h": {"base64": "/w=="}})


def test_page_ends_at_its_size_and_has_at_least_one_message(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", page_bytes_max=100)
    scene.cluster.value = b"x" * 200
    page = send(scene, "GET", ORDERS).json
    assert (len(page["messages"]), page["next"]) == (1, 1)


def test_long_answer_is_complete(scene: Scene) -> None:
    scene.cluster.value = b"x" * 100_000
    assert [len(one["value"]) for one in send(scene, "GET", ORDERS).json["messages"]] == [100_000] * HEAD


def test_list_of_streams_continues_after_a_name(scene: Scene) -> None:
    first = send(scene, "GET", "/v1/streams?limit=1").json
    assert ([one["stream"] for one in first["streams"]], first["after"]) == (["a"], "a")
    last = send(scene, "GET", "/v1/streams?limit=1&after=a").json
    assert ([one["stream"] for one in last["streams"]], last["after"]) == (["b"], None)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=1&limit=2", "form=1", "from=-1", "from=null", "to=%", "from=%ff", "&&", "to"]
)
def test_wrong_parameter_is_refused(scene: Scene, query: str) -> None:
    assert send(scene, "GET", f"{ORDERS}?{query}").problem == "invalid-request"


def test_path_that_is_not_utf8_is_refused(scene: Scene) -> None:
    assert send(scene, "GET", "/v1/streams/%ff/messages").problem == "invalid-request"


# Following.


def follow(scene: Scene, target: str, headers: dict[str, str] | None = None, wait_s: float = 0.05) -> str:
    async def main() -> str:
        gone = asyncio.Event()
        asyncio.get_running_loop().call_later(wait_s, gone.set)
        reply = await scene.send("GET", target, headers, disconnected=gone)
        assert reply.headers["content-type"].startswith("text/event-stream")
        await asyncio.wait_for(scene.cluster.closed.wait(), 10)
        await scene.gateway.pool.close()
        assert scene.gateway.followers.total == 0
        return reply.body.decode()

    return asyncio.run(main())


def ids(text: str) -> list[str]:
    return [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")]


def test_follower_gets_messages_with_offsets_as_ids_until_it_leaves(scene: Scene) -> None:
    text = follow(scene, "/v1/streams/orders/follow")
    assert ids(text) == ["0", "1", "2"]
    assert json.loads(text.partition("data: ")[2].partition("\n")[0])["value"] == "apples"


def test_follower_continues_after_its_last_event_id(scene: Scene) -> None:
    assert ids(follow(scene, "/v1/streams/orders/follow?from=0", {"last-event-id": "1"})) == ["2"]
    assert ids(follow(scene, "/v1/streams/orders/follow?from=latest")) == []
    assert ids(follow(scene, "/v1/streams/orders/follow?to=2", wait_s=10)) == ["0", "1"]


def test_idle_follower_gets_comments(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", heartbeat_seconds=0.01)
    assert ":\n\n:\n\n" in follow(scene, "/v1/streams/orders/follow?from=latest")


def test_follower_of_a_missing_offset_or_without_right_gets_a_problem_as_answer(scene: Scene) -> None:
    assert send(scene, "GET", "/v1/streams/orders/follow?from=9").problem == "missing"
    with failing(scene.cluster, Forbidden("no right")):
        assert send(scene, "GET", "/v1/streams/orders/follow").problem == "forbidden"
    assert scene.gateway.followers.total == 0


def test_removed_token_ends_its_followers(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", heartbeat_seconds=0.05)

    async def main() -> Reply:
        following = asyncio.create_task(scene.send("GET", "/v1/streams/orders/follow"))
        await asyncio.sleep(0.02)
        remove_token(tmp_path / "gateway", "shop")
        scene.now_s += RELOAD_S
        reply = await asyncio.wait_for(following, 30)
        await scene.gateway.pool.close()
        return reply

    text = asyncio.run(main()).body.decode()
    problem = json.loads(text.partition("event: problem\ndata: ")[2])
    assert problem["type"] == problems.UNAUTHENTICATED.type


def test_followers_are_bounded_in_all_and_by_token(tmp_path: Path) -> None:
    for name, bound, expected in (("a", "followers_max", "busy"), ("b", "followers_per_token_max", "rate-limited")):
        scene = Scene(tmp_path / name, **{bound: 1})

        async def main(scene: Scene = scene) -> str:
            gone = asyncio.Event()
            first = asyncio.create_task(scene.send("GET", "/v1/streams/orders/follow", disconnected=gone))
            await asyncio.sleep(0.02)
            second = await scene.send("GET", "/v1/streams/orders/follow")
            gone.set()
            await first
            await scene.gateway.pool.close()
            return second.problem

        assert asyncio.run(main()) == expected


# Admission.


def test_request_without_a_valid_token_is_refused_and_limited(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", unauthenticated_burst=3, unauthenticated_per_second=1.0)
    found = [send(scene, "GET", path, token="x") for path in ("/v1/streams", "/nowhere", "/v1/streams", "/v1/streams")]
    assert [one.problem for one in found] == ["unauthenticated"] * 3 + ["rate-limited"]
    assert found[0].headers["www-authenticate"] == "Bearer"
    assert found[3].headers["retry-after"] == "1"
    assert send(scene, "GET", "/healthz", token="").status == 200
    assert send(scene, "GET", "/v1/streams").status == 200


def test_token_is_limited_in_rate_and_in_concurrent_requests(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", token_burst=3, token_per_second=1.0, token_requests_max=1)

    async def main() -> list[str]:
        scene.cluster.hold = asyncio.Event()
        first = asyncio.create_task(scene.send("POST", ORDERS, BYTES, b"x"))
        await asyncio.sleep(0.02)
        second = await scene.send("POST", ORDERS, BYTES, b"x")
        scene.cluster.hold.set()
        found = [await first, second, await scene.send("GET", ORDERS), await scene.send("GET", ORDERS)]
        await scene.gateway.pool.close()
        return [one.problem for one in found]

    assert asyncio.run(main()) == ["", "rate-limited", "", "rate-limited"]


def test_bodies_are_bounded_together(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", buffered_bytes_max=10)
    assert send(scene, "POST", ORDERS, BYTES, b"x" * 11).problem == "busy"
    assert send(scene, "POST", ORDERS, {**BYTES, "transfer-encoding": "chunked"}, b"x").problem == "busy"
    assert send(scene, "POST", ORDERS, BYTES, b"x" * 10).status == 201
    assert scene.gateway.buffered.total == 0


def test_answers_are_bounded_together(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", buffered_bytes_max=4 * 1024 * 1024)
    scene.cluster.value = b"\0" * 800_000  # six times as long in JSON
    assert send(scene, "GET", ORDERS).problem == "busy"
    scene.cluster.value = b"x" * 100_000
    assert send(scene, "GET", ORDERS).status == 200
    assert send(scene, "POST", ORDERS, {"content-type": BATCH}, b'{"messages": [{"value": "x"}]}').problem == "busy"
    assert scene.cluster.writes == []
    assert scene.gateway.buffered.total == 0


def test_unknown_paths_and_methods_are_problems(scene: Scene) -> None:
    assert send(scene, "GET", "/v1/nothing").problem == "not-found"
    reply = send(scene, "DELETE", ORDERS)
    assert (reply.problem, reply.headers["allow"]) == ("method-not-allowed", "GET, POST")
    assert send(scene, "POST", "/openapi.json").problem == "method-not-allowed"
    assert send(scene, "HEAD", ORDERS).status == 405


def test_unexpected_error_is_reported_without_its_text_in_the_answer(scene: Scene) -> None:
    with failing(scene.cluster, RuntimeError("secret path")):
        reply = send(scene, "GET", "/v1/status")
    assert (reply.status, reply.problem) == (500, "internal")
    assert b"secret" not in reply.body
    assert "RuntimeError: secret path" in scene.reports[0]
    with failing(scene.cluster, ConfigError("/home/x/shop.identity: no such file")):
        assert b"/home" not in send(scene, "GET", "/v1/status").body


def test_no_report_contains_a_token_or_a_value(scene: Scene) -> None:
    for error in (RuntimeError("x"), StorageError("x"), Closed("x")):
        with failing(scene.cluster, error):
            send(scene, "POST", ORDERS, BYTES, b"the value")
    text = "".join(scene.reports)
    assert text
    assert scene.token not in text
    assert "the value" not in text


# The document.

VALID: dict[str, tuple[str, dict[str, str], bytes]] = {
    "listStreams": ("/v1/streams", {}, b""),
    "writeMessages": (ORDERS, {**BYTES, "idempotency-key": "one"}, b"x"),
    "readMessages": (ORDERS, {}, b""),
    "readMessage": (f"{ORDERS}/0", {}, b""),
    "proveMessage": (f"{ORDERS}/0/proof", {}, b""),
    "followMessages": ("/v1/streams/orders/follow?to=3", {}, b""),
    "resolveRequest": ("/v1/requests/7-1/resolve", {}, b""),
    "getCheckpoint": ("/v1/checkpoint", {}, b""),
    "getPolicy": ("/v1/policy", {}, b""),
    "listMembers": ("/v1/members", {}, b""),
    "getStatus": ("/v1/status", {}, b""),
    "getClientHealth": ("/v1/health", {}, b""),
    "getHealth": ("/healthz", {}, b""),
}
ERRORS: tuple[ChaplainError | RuntimeError, ...] = (
    Misused("m"), Forbidden("f"), Refused("r"), Dropped("d"), Missing("m"), Busy("b"), DiskFull("d"),
    Unknown("u", (7, 1)), Unreachable("u"), Closed("c"), RuntimeError("r"), StorageError("s"),
)  # fmt: skip


async def all_answers(folder: Path, operation: Operation) -> list[Reply]:
    """Answers to every kind of request that can be refused."""
    path, headers, body = VALID[operation.name]
    method = operation.method
    first = Scene(folder / operation.name)

    def fresh(**settings: float) -> Scene:
        return Scene(folder / operation.name, first.token, **settings)

    async def ask(scene: Scene, *, target: str = path, sent: dict[str, str] = headers, **options: Any) -> Reply:
        reply = await scene.send(method, target, sent, options.pop("body", body), **options)
        await scene.gateway.pool.close()
        return reply

    async def ask_twice(scene: Scene, change: Callable[[FakeCluster], None], second: bytes = body) -> Reply:
        scene.cluster.hold = asyncio.Event()
        waiting = asyncio.create_task(scene.send(method, path, headers, body))
        await asyncio.sleep(0.01)
        found = await scene.send(method, path, headers, second)
        change(scene.cluster)
        await waiting
        await scene.gateway.pool.close()
        return found

    def release(cluster: FakeCluster) -> None:
        assert cluster.hold is not None
        cluster.hold.set()

    found = [
        await ask(fresh()),
        await ask(fresh(), target=f"{path}{'&' if '?' in path else '?'}nope=1"),
        await ask(fresh(), token="wrong"),
    ]
    for error in ERRORS:
        scene = fresh()
        scene.cluster.error = error
        found.append(await ask(scene))
    for token in (None, ""):  # both limits of rates
        scene = fresh(token_burst=1, token_per_second=0.001, unauthenticated_burst=1, unauthenticated_per_second=0.001)
        found += [await ask(scene, token=token), await ask(scene, token=token)]
    scene = fresh(connections_max=1)
    with scene.gateway.requests.hold():
        found.append(await ask(scene))
    scene = fresh()
    scene.gateway.operations[:] = map(_broken, scene.gateway.operations)
    scene.app = make_app(scene.gateway)
    found.append(await ask(scene))
    if operation.body is not None:
        found += [
            await ask(fresh(), sent={**headers, "content-type": ""}),
            await ask(fresh(), sent={**headers, "content-length": "999999999"}),
            await ask(fresh(body_seconds=0.01), sent={**headers, "content-length": "9"}, body=None),
            await ask_twice(fresh(), release),
            await ask_twice(fresh(), release, b"another"),
        ]
    return found


def _broken(operation: Operation) -> Operation:
    """The endpoint, with a bug in its handler."""

    async def handler(_: object) -> Any:
        raise RuntimeError("a bug")

    return replace(operation, handler=handler)


def test_every_documented_answer_is_produced_and_every_produced_answer_is_documented(tmp_path: Path) -> None:
    operations = Scene(tmp_path / "listed").gateway.operations
    assert {one.name for one in operations} == {*VALID}

    for operation in operations:
        replies = asyncio.run(all_answers(tmp_path, operation))
        produced = {(reply.status, reply.problem) for reply in replies}
        if operation.answer.type is not None:
            msgspec.json.decode(replies[0].body, type=operation.answer.type)
        documented = {(kind.status, kind.name) for kind in operation.all_problems}
        documented.add((operation.answer.status, ""))
        assert produced == documented, operation.name


TEXTS = st.one_of(st.text(max_size=20), st.integers(-2, 1 << 70).map(str), st.sampled_from(["earliest", "7-1", "true"]))
SOME_BODIES = (b'{"messages": [{"value": "x"}]}', b'{"messages": [{"value": {"base64": "/w="}}]}', b"[" * 9999, b"null")
BODIES = st.one_of(st.binary(max_size=50), st.text(max_size=50).map(str.encode), st.sampled_from(SOME_BODIES))
TYPES = st.sampled_from(["application/json", BATCH, "text/plain; charset=utf-8", "", "\xff"])


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of a token, and the token."""
    folder = tmp_path_factory.mktemp("gateway")
    return folder, Scene(folder).token


@settings(max_examples=120, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_requests_get_documented_answers_and_no_server_error(
    known: tuple[Path, str], data: st.DataObject
) -> None:
    scene = Scene(*known, heartbeat_seconds=0.001)
    operation = data.draw(st.sampled_from(scene.gateway.operations))
    fields = parameters_of(operation)
    chosen = {one.name: data.draw(TEXTS, one.name) for one in fields if one.required or data.draw(st.booleans())}
    path, query, headers = operation.path, list[str](), {"content-type": data.draw(TYPES)}
    for one in fields:
        if one.name not in chosen:
            continue
        text = chosen[one.name]
        if one.place == "path":
            path = path.replace(f"{{{one.name}}}", quote(text, safe=""))
        elif one.place == "query":
            query.append(f"{one.name}={quote(text)}")
        else:
            headers[one.name] = text.encode("latin-1", "ignore").decode("latin-1")

    async def main() -> Reply:
        gone = asyncio.Event()
        gone.set()
        reply = await scene.send(
            operation.method, f"{path}?{'&'.join(query)}", headers, data.draw(BODIES, "body"), disconnected=gone
        )
        await scene.gateway.pool.close()
        return reply

    reply = asyncio.run(main())
    documented = {(kind.status, kind.name) for kind in operation.all_problems} | {(operation.answer.status, "")}
    if path.count("/") == operation.path.count("/") and "//" not in path and not path.endswith("/"):
        assert (reply.status, reply.problem) in documented
    assert reply.status != 500, scene.reports


def test_document_lists_every_operation_with_its_parameters_and_answers(scene: Scene) -> None:
    document = send(scene, "GET", "/openapi.json", token="").json
    assert document["openapi"] == "3.1.0"
    listed = {one["operationId"]: one for path in document["paths"].values() for one in path.values()}
    assert {*listed} == {*VALID}
    write = listed["writeMessages"]
    assert {(one["name"], one["in"], one["required"]) for one in write["parameters"]} == {
        ("stream", "path", True),
        ("key", "query", False),
        ("isolated", "query", False),
        ("idempotency-key", "header", False),
        ("chaplain-retry", "header", False),
    }
    assert {*write["responses"]} >= {"201", "400", "401", "403", "409", "413", "415", "422", "429", "503", "504", "507"}
    assert write["security"] == [{"bearer": []}]
    assert "security" not in listed["getHealth"]


def references(found: Any) -> list[str]:
    if isinstance(found, dict):
        own = [found["$ref"]] if "$ref" in found else []
        return own + [one for value in found.values() for one in references(value)]
    return [one for value in found for one in references(value)] if isinstance(found, list) else []


def test_references_of_the_document_resolve(scene: Scene) -> None:
    document = send(scene, "GET", "/openapi.json", token="").json
    found = {*references(document)}
    assert found
    assert {one.rpartition("/")[2] for one in found} <= {*document["components"]["schemas"]}


def test_every_error_of_the_library_has_a_problem_of_its_own_meaning() -> None:
    kinds = {type(error): problems.problem_of(error).kind.name for error in ERRORS if isinstance(error, ChaplainError)}
    assert kinds[Dropped] == "dropped"
    assert kinds[Forbidden] == "forbidden"
    assert kinds[Unknown] == "unknown-outcome"
    assert kinds[StorageError] == "internal"
