"""Connections to the cluster: one `AsyncClient` for each identity in use, bounded, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from chaplain.client.aio import AsyncClient
from chaplain.errors import ChaplainError, Closed
from chaplain.gateway.problems import BUSY, Problem

SWEEPS = 4
"""Idle connections are looked for this often within the time after which they are closed."""


class _Entry:
    def __init__(self, opening: asyncio.Task[AsyncClient]) -> None:
        self.opening = opening
        self.users = 0
        self.used_s = 0.0


class ClientPool:
    """Lends the client of an identity. `connect` gets the path of the identity file."""

    def __init__(self, connect: Callable[[str], AsyncClient], clients_max: int, idle_s: float) -> None:
        self._connect = connect
        self._clients_max = clients_max
        self._idle_s = idle_s
        self._entries: dict[str, _Entry] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def lend(self, identity: str) -> AsyncIterator[AsyncClient]:
        """The client of this identity, for the duration of the block. Raises the errors of connecting."""
        entry = self._entries.get(identity) or self._open(identity)
        entry.users += 1
        try:
            yield await asyncio.shield(entry.opening)
        except Closed:
            self._discard(identity, entry)
            raise
        finally:
            entry.users -= 1
            entry.used_s = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Close idle clients until cancelled."""
        while True:
            await asyncio.sleep(self._idle_s / SWEEPS)
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now_s: float) -> None:
        """Close the clients that were not used for `idle_s`."""
        for identity, entry in list(self._entries.items()):
            if not entry.users and now_s - entry.used_s >= self._idle_s:
                self._discard(identity, entry)

    async def close(self) -> None:
        """Close all clients."""
        for identity, entry in list(self._entries.items()):
            self._discard(identity, entry)
        await asyncio.gather(*self._closing)

    def _open(self, identity: str) -> _Entry:
        if len(self._entries) >= self._clients_max:
            self._make_room()
        entry = _Entry(asyncio.create_task(self._connected(identity)))
        self._entries[identity] = entry
        entry.opening.add_done_callback(lambda done: self._forget_failed(identity, entry, done))
        return entry

    async def _connected(self, identity: str) -> AsyncClient:
        return await self._connect(identity)

    def _forget_failed(self, identity: str, entry: _Entry, done: asyncio.Task[AsyncClient]) -> None:
        """The next request tries again."""
        if (done.cancelled() or done.exception() is not None) and self._entries.get(identity) is entry:
            del self._entries[identity]

    def _make_room(self) -> None:
        """Close the client that was idle for longest."""
        idle = [(entry.used_s, identity) for identity, entry in self._entries.items() if not entry.users]
        if not idle:
            raise Problem(BUSY, f"{self._clients_max} identities are connected: try again later")
        identity = min(idle)[1]
        self._discard(identity, self._entries[identity])

    def _discard(self, identity: str, entry: _Entry) -> None:
        if self._entries.get(identity) is entry:
            del self._entries[identity]
            task = asyncio.create_task(_close(entry))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _close(entry: _Entry) -> None:
    with suppress(ChaplainError, OSError, asyncio.CancelledError):
        await (await entry.opening).close()
