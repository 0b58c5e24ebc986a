"""Bytes that a proven peer or anybody on the network may send to a mesh."""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Callable
from itertools import count

from chaplain.core import Heard, Woken
from chaplain.errors import Malformed
from chaplain.link.events import Meet, Met, Peer, Said, Say
from chaplain.mesh import beacon, control_messages
from chaplain.mesh.beacon import Beacon, BeaconKeys
from chaplain.mesh.core import MeshCore
from chaplain.mesh.events import JoinPool, MeshEffect, Shouted
from chaplain.mesh.settings import MeshSettings
from chaplain.wire import command
from chaplain.wire.command import Alive, Broadcast, DecenAck, Hello, Join, Leave, Ping

OWN = Peer(b"o" * 16, 99, b"own", "tcp://127.0.0.1:7099")
NODE = Peer(b"n" * 16, 1, b"node", "tcp://127.0.0.1:7001")
CLIENT = Peer(b"c" * 16, 2, b"client", client="task")
NOW_NS = 10**12


def _sign(data: bytes) -> bytes:
    return hmac.digest(b"key", data, hashlib.sha256)


def _verify_any(data: bytes, mac: bytes) -> bool:
    """Lets every MAC pass, so that the fields behind it are reached."""
    return len(mac) == beacon.MAC_BYTES


_NOTES = (control_messages.Heartbeat(), control_messages.AskPoolList(), control_messages.PoolList(("red", "blue"), 2))
_COMMANDS = (
    Hello(2, "127.0.0.1", 7001, ("red",), 1, {"a": "b"}),
    Alive(2, b"content"),
    Broadcast(2, "red", b"content"),
    Join(2, "blue", 2),
    Leave(2, "red", 2),
    Ping(2),
    DecenAck(2),
    *(Alive(2, control_messages.encode(1, note)) for note in _NOTES),
)
_BEACON = Beacon(beacon.cluster_hash("chaplain"), b"b" * 16, 7, NOW_NS, "127.0.0.1", 7007)

SEEDS = {
    "target_said": [command.encode(each) for each in _COMMANDS],
    "target_note": [control_messages.encode(1, note) for note in _NOTES],
    "target_beacon": [beacon.encode(_BEACON, _sign)],
}


def _core() -> MeshCore:
    core = MeshCore(MeshSettings(), random.Random(1), OWN, BeaconKeys(_sign, _verify_any))
    core.step(NOW_NS, JoinPool("red"))
    core.step(NOW_NS, Met(NODE, Hello(1, "127.0.0.1", 7001, ("red",), 1, {})))
    core.step(NOW_NS, Met(CLIENT, Hello(1, "", 0, (), 0, {})))
    return core


def make_target_said() -> Callable[[bytes], None]:
    """Whatever a peer says, what we say remains readable and nobody hears what was not for its pool."""
    core = _core()
    clock = count(NOW_NS, 60 * 10**9)

    def target(data: bytes) -> None:
        now_ns = next(clock)
        for peer in (NODE, CLIENT):
            session = core._sessions.session(peer.instance)
            assert session is not None
            told = _numbered(data, session.numbering.heard)
            _check(core.step(now_ns, Said(peer.instance, (told, told))))
        core.step(now_ns + 60 * 10**9, Woken())
        deadline = core.deadline()
        assert deadline is not None
        assert deadline > now_ns

    return target


def _numbered(data: bytes, heard: int) -> bytes:
    """With the sequence as it would be had only the greeting been heard: else a kept core takes each number once."""
    sequence = int.from_bytes(data[3:5], "big") + heard - 1
    return data[:3] + (sequence & 0xFFFF).to_bytes(2, "big") + data[5:] if len(data) >= 5 else data


def _check(effects: list[MeshEffect]) -> None:
    for effect in effects:
        if isinstance(effect, Say):
            command.decode(effect.command)
        if isinstance(effect, Shouted):
            assert (effect.peer, effect.pool) == (NODE, "red")


def target_note(data: bytes) -> None:
    try:
        note = control_messages.decode(data, 1)
    except Malformed:
        return
    assert control_messages.decode(control_messages.encode(1, note), 1) == note


def make_target_beacon() -> Callable[[bytes], None]:
    """A beacon makes us dial at most one endpoint."""
    core = _core()

    def target(data: bytes) -> None:
        effects = core.step(NOW_NS, Heard("127.0.0.1", data))
        assert sum(isinstance(effect, Meet) for effect in effects) <= 1
        try:
            found = beacon.decode(data, _verify_any)
        except Malformed:
            return
        assert beacon.encode(found, lambda _: data[-beacon.MAC_BYTES :]) == data

    return target
