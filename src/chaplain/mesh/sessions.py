"""The table of sessions: by instance, and for each node identifier the one current instance.

Invariants:
- an identifier belongs to one node at a time; a newer instance with the same key replaces the older one;
- a node with another key never takes an identifier that is in use (32-bit identifiers may collide, by chance or on
  purpose);
- clients may have many instances under one identifier, for example one for each process or task;
- at most `nodes_max` nodes and `clients_max` clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chaplain.core import Frozen
from chaplain.link.events import Peer
from chaplain.mesh.session import MeshSession
from chaplain.mesh.settings import MeshSettings


class PeerView(Frozen, frozen=True):
    """A read-only view of a peer."""

    peer: Peer
    headers: dict[str, str]
    pools: tuple[str, ...]
    status: int
    heard_ns: int


class SessionTable:
    def __init__(self, settings: MeshSettings) -> None:
        self._nodes_max = settings.nodes_max
        self._clients_max = settings.clients_max
        self._sessions: dict[bytes, MeshSession] = {}
        self._nodes: dict[int, MeshSession] = {}
        self.session: Callable[[bytes], MeshSession | None] = self._sessions.get
        """The session of an instance. A bound `dict.get`, because every received frame is looked up here."""

    def node(self, identifier: int) -> MeshSession | None:
        return self._nodes.get(identifier)

    def nodes(self) -> Iterator[MeshSession]:
        return iter(self._nodes.values())

    def has_endpoint(self, endpoint: str) -> bool:
        return any(session.peer.endpoint == endpoint for session in self._nodes.values())

    def refusal(self, peer: Peer) -> str:
        """Why this peer cannot be added, or an empty text."""
        if peer.client:
            return "too many clients" if len(self._sessions) - len(self._nodes) >= self._clients_max else ""
        holder = self._nodes.get(peer.identifier)
        if holder is not None and holder.peer.key != peer.key:
            return "identifier taken"
        return "too many nodes" if holder is None and len(self._nodes) >= self._nodes_max else ""

    def add(self, session: MeshSession) -> None:
        assert session.peer.instance not in self._sessions
        self._sessions[session.peer.instance] = session
        if session.is_node:
            assert session.peer.identifier not in self._nodes
            self._nodes[session.peer.identifier] = session

    def remove(self, session: MeshSession) -> None:
        del self._sessions[session.peer.instance]
        if session.is_node:
            del self._nodes[session.peer.identifier]

    def views(self) -> tuple[PeerView, ...]:
        return tuple(
            PeerView(each.peer, each.headers, tuple(each.pools), each.status, each.heard_ns)
            for each in self._sessions.values()
        )
