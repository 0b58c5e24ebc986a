"""A gateway without a cluster: clients that answer or fail as a test says, and requests without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from chaplain.client.aio import AsyncClient
from chaplain.client.types.journal import Message, Receipt, StreamRecord
from chaplain.client.types.results import Member
from chaplain.errors import Missing
from chaplain.gateway.app import Gateway, make_app
from chaplain.gateway.clients import ClientPool
from chaplain.gateway.settings import GatewaySettings
from chaplain.gateway.tokens import TokenStore, create_token

JSON = {"content-type": "application/json"}
BYTES = {"content-type": "application/octet-stream"}
HEAD = 3
"""Messages in the stream of the fake cluster."""


def message(offset: int, value: bytes = b"apples") -> Message:
    return Message("orders", offset, b"k", value, {"h": b"\xff"}, 1_700_000_000_000_000_001, 7, offset + 1, 0, 1, 9, 1)


def receipt(offset: int, client_id: int = 7) -> Receipt:
    return Receipt("orders", offset, 1, 9, 1_700_000_000_000_000_001, b"\x01" * 32, client_id, offset + 1)


class FakeReader:
    def __init__(self, messages: list[Message], error: BaseException | None, wait: asyncio.Event | None) -> None:
        self._messages = iter(messages)
        self._error = error
        self._wait = wait

    async def __aenter__(self) -> FakeReader:
        if self._error is not None:
            raise self._error
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._wait is not None:
            self._wait.set()

    async def __aiter__(self) -> AsyncIterator[Message]:
        for one in self._messages:
            yield one

    async def poll(self, wait_s: float, interrupted: Callable[[], bool]) -> Message | None:
        for one in self._messages:
            return one
        await asyncio.sleep(wait_s)
        return None


class FakeJournal:
    def __init__(self, cluster: FakeCluster, stream: str) -> None:
        self.stream = stream
        self._cluster = cluster

    async def write(self, value: bytes, key: bytes | None, headers: object, id: object, isolated: bool) -> Receipt:  # noqa: A002
        self._cluster.writes.append((self.stream, value, key, id, isolated))
        await self._cluster.answer()
        return receipt(len(self._cluster.writes) - 1)

    async def write_many(self, items: list[Any], id: object, isolated: bool) -> list[Receipt]:  # noqa: A002
        self._cluster.writes.append((self.stream, items, id, isolated))
        await self._cluster.answer()
        return [receipt(number) for number in range(len(items))]

    def read(self, start: Any, stop: int | None = None, follow: bool = False) -> FakeReader:
        first = 0 if start == "earliest" else HEAD if start is None else start
        error: BaseException | None = self._cluster.error
        if error is None and first > HEAD:
            error = Missing(f"the stream ends before {first}")
        last = HEAD if stop is None else min(stop, HEAD)
        found = [message(offset, self._cluster.value) for offset in range(first, last)]
        return FakeReader(found, error, self._cluster.closed if follow else None)


class FakeText(NamedTuple):
    text: str


class FakeCluster:
    """Answers like an `AsyncClient`. `error` is raised by every call."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.value = b"apples"
        self.writes: list[Any] = []
        self.hold: asyncio.Event | None = None
        self.closed = asyncio.Event()
        """A follower's reader was closed."""

    def __await__(self) -> Iterator[Any]:
        return self.connected().__await__()

    async def connected(self) -> FakeCluster:
        return self

    async def close(self) -> None:
        pass

    async def answer(self) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error

    def journal(self, stream: str) -> FakeJournal:
        return FakeJournal(self, stream)

    async def resolve(self, request: tuple[int, int]) -> Receipt | None:
        await self.answer()
        return receipt(0) if request == (7, 1) else None

    async def prove(self, stream: str, offset: int) -> FakeText:
        await self.answer()
        return FakeText(f"proof of {stream} {offset}\n")

    async def checkpoint(self) -> FakeText:
        await self.answer()
        return FakeText("checkpoint\n")

    async def streams(self, after: str, limit: int) -> list[StreamRecord]:
        await self.answer()
        return [one for one in (StreamRecord("a", 1, "00"), StreamRecord("b", 2, "00")) if one.stream > after][:limit]

    async def members(self) -> list[Member]:
        await self.answer()
        return [Member(1, "tcp://127.0.0.1:1", "alive", 2)]

    async def status(self) -> dict[str, Any]:
        await self.answer()
        return {"id": 1}

    async def ping(self) -> float:
        await self.answer()
        return 0.001


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The name of the problem; empty if it is none."""
        if self.headers["content-type"] != "application/problem+json":
            return ""
        found = self.json
        assert found["status"] == self.status
        return str(found["type"].removeprefix("urn:chaplain:problem:"))


class Scene:
    """A gateway with one token, and the cluster behind it."""

    def __init__(self, folder: Path, known_token: str = "", **settings: float) -> None:
        self.token = known_token or create_token(folder, "shop", Path("/shop.identity"))
        self.cluster = FakeCluster()
        self.reports: list[str] = []
        self.now_s = 100.0
        pool = ClientPool(lambda identity: cast("AsyncClient", self.cluster), 4, 60.0)
        store = TokenStore(folder, lambda: self.now_s, self.reports.append)
        self.settings = GatewaySettings(**settings)  # type: ignore[arg-type]
        self.gateway = Gateway(
            self.settings,
            store,
            pool,
            policy=lambda: "policy\n",
            clock_s=lambda: self.now_s,
            report=self.reports.append,
        )
        self.app = make_app(self.gateway)

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = b"",
        *,
        token: str | None = None,
        disconnected: asyncio.Event | None = None,
    ) -> Reply:
        """Send a request. Without a body, it never arrives."""
        path, _, query = target.partition("?")
        shown = {"authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
        if body and "transfer-encoding" not in shown:
            shown.setdefault("content-length", str(len(body)))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in shown.items()],
        }
        told = False

        async def receive() -> dict[str, Any]:
            nonlocal told
            if not told and body is not None:
                told = True
                return {"type": "http.request", "body": body, "more_body": False}
            await (disconnected or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        sent: list[Any] = []

        async def take(event: Any) -> None:
            sent.append(event)

        await self.app(cast("Any", scope), cast("Any", receive), take)
        assert sent[0]["type"] == "http.response.start"
        got = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Reply(sent[0]["status"], got, b"".join(one.get("body", b"") for one in sent[1:]))


@contextmanager
def failing(cluster: FakeCluster, error: BaseException) -> Iterator[None]:
    cluster.error = error
    yield
    cluster.error = None
