"""Adapter that runs gossip over plain connections.

`Gossiper` is a gossip core without handshake and encryption: every second it sends a frame with its identity. Other
workloads test link and mesh; here they are assumed to work, so that seeds are cheap and every failure is one of gossip.
"""

from __future__ import annotations

from random import Random
from typing import Any

from chaplain.core import (
    Admit,
    Arrived,
    Connected,
    Dial,
    Disconnected,
    Drained,
    Flushed,
    Frozen,
    HangUp,
    Knocked,
    Send,
    Stopping,
    Woken,
)
from chaplain.gossip.core import GossipCore
from chaplain.gossip.events import (
    AskQuery,
    Fire,
    GossipInput,
    GossipParcel,
    HeardFrom,
    JoinThrough,
    LeaveCluster,
    MembersConfigured,
)
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity, identifier_of
from chaplain.link.events import Forget, Meet, Peer
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.units import SECOND_NS
from chaplain.wire import parcel

BEAT_NS = SECOND_NS
DEAD_NS = 30 * SECOND_NS
_PRESENT, _CONTENT = b"P", b"C"


class MessageReceived(Frozen, frozen=True):
    """For the checkers: a message of this node arrived here."""

    identifier: int


class Lie(Frozen, frozen=True):
    """Input for a malicious node that has the cluster key: bodies that it sends to all its peers."""

    bodies: tuple[bytes, ...]


class _Line:
    """The connection state for one endpoint."""

    __slots__ = ("connected", "dial", "entered", "heard_ns", "peer", "wanted")

    def __init__(self) -> None:
        self.dial = 0
        self.connected = False
        self.peer: Peer | None = None
        self.entered = False
        self.heard_ns = 0
        self.wanted = False


class Gossiper:
    def __init__(
        self,
        identity: Identity,
        endpoint: str,
        settings: GossipSettings,
        rng: Random,
        now_ns: int,
        *,
        through: tuple[str, ...],
    ) -> None:
        self.peer = Peer(rng.randbytes(16), identity.identifier, identity.key, endpoint)
        self.routing_id = b"\x01" + self.peer.instance
        self.gossip = GossipCore(identity, self.peer.instance, endpoint, settings, rng, now_ns)
        self._lines: dict[str, _Line] = {}
        self._routes: dict[bytes, str] = {}
        self._dials = 0
        self._beat_ns = now_ns
        self._through = through
        self._out: list[Any] = []

    def deadline(self) -> int:
        return min(self._beat_ns, self.gossip.deadline())

    def step(self, now_ns: int, event: Any) -> list[Any]:
        self._out = []
        for endpoint in self._through:
            self._give(now_ns, JoinThrough(endpoint))
        self._through = ()
        match event:
            case Drained() | Flushed():
                pass
            case Knocked():
                self._out.append(Admit(event.request, "anybody"))
            case Connected():
                self._connected(now_ns, event.dial)
            case Disconnected():
                self._disconnected(now_ns, event)
            case Arrived():
                self._arrived(now_ns, event)
            case Woken():
                self._beat(now_ns)
                self._give(now_ns, Woken())
            case Lie():
                self._lie(event)
            case Stopping() | LeaveCluster() | Fire() | AskQuery() | JoinThrough() | MembersConfigured():
                self._give(now_ns, event)
            case _:
                raise TypeError(f"nothing is known of {event!r}")
        return self._out

    def _give(self, now_ns: int, event: GossipInput) -> None:
        for effect in self.gossip.step(now_ns, event):
            match effect:
                case Whisper():
                    self._say(effect.instance, effect.content)
                case Meet():
                    self._line(effect.endpoint).wanted = True
                    self._dial(effect.endpoint)
                case Forget():
                    self._line(effect.endpoint).wanted = False
                case _:
                    self._out.append(effect)

    def _say(self, instance: bytes, content: bytes) -> None:
        for line in self._lines.values():
            if line.entered and line.peer is not None and line.peer.instance == instance:
                self._out.append(Send(line.dial, _CONTENT + content))

    def _lie(self, lie: Lie) -> None:
        for line in self._lines.values():
            if line.entered:
                for body in lie.bodies:
                    content = parcel.encode(parcel.Parcel(self.peer.identifier, parcel.Layer.GOSSIP, body))
                    self._out.append(Send(line.dial, _CONTENT + content))

    def _line(self, endpoint: str) -> _Line:
        return self._lines.setdefault(endpoint, _Line())

    def _dial(self, endpoint: str) -> None:
        line = self._line(endpoint)
        if not line.dial and endpoint != self.peer.endpoint:
            self._dials += 1
            line.dial = self._dials
            self._out.append(Dial(line.dial, endpoint, self.routing_id, b""))

    def _connected(self, now_ns: int, dial: int) -> None:
        for line in self._lines.values():
            if line.dial == dial:
                line.connected = True
                self._out.append(Send(dial, self._presence()))
                self._enter(now_ns, line)

    def _presence(self) -> bytes:
        return _PRESENT + self.peer.instance + self.peer.key + self.peer.endpoint.encode()

    def _disconnected(self, now_ns: int, event: Disconnected) -> None:
        if isinstance(event.channel, bytes):
            self._routes.pop(event.channel, None)
            return
        for line in self._lines.values():
            if line.dial == event.channel:
                line.dial, line.connected = 0, False
                self._leave(now_ns, line, event.reason)

    def _arrived(self, now_ns: int, event: Arrived) -> None:
        if not isinstance(event.channel, bytes):
            return
        kind, rest = event.frame[:1], event.frame[1:]
        if kind == _PRESENT:
            self._present(now_ns, event.channel, rest)
        line = self._lines.get(self._routes.get(event.channel, ""))
        if line is None or line.peer is None or b"\x01" + line.peer.instance != event.channel:
            return
        if now_ns - line.heard_ns >= BEAT_NS // 2 or now_ns < line.heard_ns:
            line.heard_ns = now_ns
            if line.entered:
                self._give(now_ns, HeardFrom(line.peer.identifier))
        if not line.entered:
            return
        self._out.append(MessageReceived(line.peer.identifier))
        if kind == _CONTENT:
            self._give(now_ns, GossipParcel(line.peer, parcel.decode(rest)))

    def _present(self, now_ns: int, route: bytes, rest: bytes) -> None:
        instance, key, endpoint = rest[:16], rest[16:48], rest[48:].decode()
        line = self._line(endpoint)
        peer = Peer(instance, identifier_of(key), key, endpoint)
        self._routes[route] = endpoint
        if line.peer is not None and line.peer != peer:
            self._leave(now_ns, line, "another run")
        line.peer = peer
        self._dial(endpoint)
        self._enter(now_ns, line)

    def _enter(self, now_ns: int, line: _Line) -> None:
        if line.connected and line.peer is not None and not line.entered:
            line.entered = True
            self._give(now_ns, Entered(line.peer, {}))

    def _leave(self, now_ns: int, line: _Line, reason: str) -> None:
        peer, line.peer = line.peer, None
        if line.entered and peer is not None:
            line.entered = False
            self._give(now_ns, Exited(peer, reason))

    def _beat(self, now_ns: int) -> None:
        if now_ns < self._beat_ns <= now_ns + BEAT_NS:
            return
        self._beat_ns = now_ns + BEAT_NS
        for endpoint, line in list(self._lines.items()):
            if line.wanted:
                self._dial(endpoint)
            if line.connected:
                self._out.append(Send(line.dial, self._presence()))
            if line.peer is not None and now_ns - line.heard_ns > DEAD_NS:
                self._leave(now_ns, line, "silent")
                if line.dial:
                    self._out.append(HangUp(line.dial))
                    line.dial, line.connected = 0, False
