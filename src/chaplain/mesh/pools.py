"""Pool membership: the pools of this node, and the peers in each pool.

A pool's name is a wire string: case-sensitive visible ASCII, 1 to 255 octets.

Invariants:
- our status octet grows by one, modulo 256, with each join and each leave that changes something, and only then;
- `PoolMembers` contains a session under exactly the pools in `session.pools`; a peer in no pool takes no space;
- members are listed in the order in which they joined, so that equal inputs give equal effects.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from chaplain.mesh.session import MeshSession
from chaplain.wire.command import STATUS_MODULUS
from chaplain.wire.primitives import put_string


@lru_cache(maxsize=1024)
def name_octets(pool: str) -> bytes:
    """The name as encoded in a command, preceded by its size. ValueError says what is wrong with it."""
    if not pool:
        raise ValueError("a pool's name must not be empty")
    return put_string(pool)


class OwnPools:
    """The pools that this node is in."""

    def __init__(self) -> None:
        self.status = 0
        self.changed = False
        self._octets: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}

    def __contains__(self, pool: str) -> bool:
        return pool in self._octets

    def __len__(self) -> int:
        return len(self._octets)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._octets)

    def name_of(self, encoded: bytes) -> str | None:
        """The pool with this encoded name (preceded by its size), if this node is in it."""
        return self._names.get(encoded)

    def join(self, pool: str) -> None:
        assert pool not in self._octets, "a join that changes nothing must not change the status"
        self._octets[pool] = octets = name_octets(pool)
        self._names[octets] = pool
        self._step()

    def leave(self, pool: str) -> None:
        del self._names[self._octets.pop(pool)]
        self._step()

    def _step(self) -> None:
        self.status = (self.status + 1) % STATUS_MODULUS
        self.changed = True


class PoolMembers:
    """The peers in each pool."""

    def __init__(self, pools_max: int) -> None:
        self._pools_max = pools_max
        self._pools: dict[str, dict[bytes, MeshSession]] = {}

    def of(self, pool: str) -> Collection[MeshSession]:
        return self._pools.get(pool, {}).values()

    def names(self) -> tuple[str, ...]:
        return tuple(self._pools)

    def add(self, session: MeshSession, pool: str) -> bool:
        """Return False if the peer is in `pools_max` pools already.

        Joining a pool twice is allowed and changes nothing.
        """
        if pool in session.pools:
            return True
        if len(session.pools) >= self._pools_max:
            return False
        session.pools[pool] = None
        self._pools.setdefault(pool, {})[session.peer.instance] = session
        return True

    def remove(self, session: MeshSession, pool: str) -> None:
        del session.pools[pool]
        inside = self._pools[pool]
        del inside[session.peer.instance]
        if not inside:
            del self._pools[pool]

    def remove_everywhere(self, session: MeshSession) -> None:
        for pool in tuple(session.pools):
            self.remove(session, pool)
