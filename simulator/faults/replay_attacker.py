"""An attacker on the path without any key: records what passes, and replays it where it hurts.

It can replay, reflect, redirect and alter frames on open connections, and dial a node with a recorded or invented
proof. None of this may change a node's state; the checkers verify that.

Bounds: `_KEPT` frames and connection requests are recorded.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.world.connection import End, join
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.world.world import World

KINDS = ("replay", "reflect", "redirect", "alter", "knock again", "knock falsely")

_KEPT = 64


class Captures:
    """What was recorded: frames with their direction, and connection requests with their target."""

    __slots__ = ("_rng", "frames", "knocks")

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.frames: list[tuple[str, str, bytes]] = []
        self.knocks: list[tuple[Host, bytes, bytes]] = []

    def frame(self, end: End, frame: bytes) -> None:
        seen = (end.host.name, end.other.host.name, frame)
        if len(self.frames) < _KEPT:
            self.frames.append(seen)
        else:
            self.frames[self._rng.randrange(_KEPT)] = seen

    def knock(self, target: Host, name: bytes, proof: bytes) -> None:
        self.knocks.append((target, name, proof))
        del self.knocks[:-_KEPT]


class Attacker:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("attack")
        self._captures = Captures(world.rng("captures"))
        self._host = Host("outsider", "", self._rng)
        self._knocks = 0
        world.network.captures = self._captures

    def attack(self, kind: str) -> None:
        """Carry out one attack of this kind, if there is material for it."""
        done = self._knock(kind) if kind.startswith("knock") else self._inject(kind)
        if done:
            self._world.counts[f"attack: {kind}"] += 1
            self._world.note(f"attack: {kind}")

    def _inject(self, kind: str) -> bool:
        ends = [end for end in self._world.network.ends() if end.open and end.other.open]
        if not ends:
            return False
        end = self._rng.choice(ends)
        ours, theirs = end.host.name, end.other.host.name
        frames = [frame for sender, receiver, frame in self._captures.frames if _suits(kind, sender, receiver, end)]
        if not frames:
            return False
        frame = self._rng.choice(frames)
        self._world.network.inject(end, self._altered(frame) if kind == "alter" else frame)
        self._world.note(f"{kind}: {ours} to {theirs}, {len(frame)} octets")
        return True

    def _altered(self, frame: bytes) -> bytes:
        changed = bytearray(frame)
        if changed:
            changed[self._rng.randrange(len(changed))] ^= 1 << self._rng.randrange(8)
        return bytes(changed)

    def _knock(self, kind: str) -> bool:
        if not self._captures.knocks:
            return False
        target, name, proof = self._rng.choice(self._captures.knocks)
        if not target.up:
            return False
        if kind == "knock falsely":
            proof = self._altered(proof)
        self._knocks += 1
        routing_id = self._rng.choice(self._routing_ids(target))
        end = End(self._host, self._knocks)
        end.open = True
        join(end, End(target, routing_id))
        self._world.network.knock(end, b"outsider/%d" % self._knocks, name, proof)
        for _, _, frame in self._captures.frames[-4:]:
            self._world.after(self._rng.randrange(10**8), self._world.network.inject, end, frame)
        return True

    def _routing_ids(self, target: Host) -> list[bytes]:
        """A routing id of its own, or one that a node uses at this target."""
        used = [end.channel for end in self._world.network.ends() if end.host is target]
        return [b"\x01" + self._rng.randbytes(16), *(name for name in used if isinstance(name, bytes))]


def _suits(kind: str, sender: str, receiver: str, end: End) -> bool:
    """True if a frame from sender to receiver fits this kind of attack on this end."""
    ours, theirs = end.host.name, end.other.host.name
    match kind:
        case "reflect":
            return (sender, receiver) == (theirs, ours)
        case "redirect":
            return receiver != theirs
        case _:
            return (sender, receiver) == (ours, theirs)
