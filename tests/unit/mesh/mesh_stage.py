"""A stage for meshes: made-up peers, and a world of cores whose links deliver, lose, drop and part on request."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable

from chaplain.core import Woken
from chaplain.link.events import CommandDropped, Forget, Introduce, Meet, Met, Missed, Parted, Peer, Said, Say
from chaplain.mesh.core import MeshCore
from chaplain.mesh.events import Gapped, MeshEffect, MeshInput, Shouted
from chaplain.mesh.settings import MeshSettings
from chaplain.units import SECOND_NS
from chaplain.wire import command
from chaplain.wire.command import Broadcast, Hello

SECOND = SECOND_NS


def peer(number: int, run: int = 0, client: str = "") -> Peer:
    """Node or client `number` in its `run`th life."""
    instance = b"%c%c" % (number, run) + bytes(14)
    endpoint = "" if client else f"tcp://127.0.0.1:{7000 + number}"
    return Peer(instance, number, b"key-%d" % number, endpoint, client)


OWN = peer(200)


def hello(pools: tuple[str, ...] = (), status: int = 0, sequence: int = 1, **headers: str) -> Hello:
    return Hello(sequence, "127.0.0.1", 7001, pools, status, headers)


def make(**settings: int) -> MeshCore:
    return MeshCore(MeshSettings(**settings), random.Random(1), OWN)  # type: ignore[arg-type]


def make_with(*peers: Peer, pools: tuple[str, ...] = (), **settings: int) -> MeshCore:
    """A core that met these at time 0."""
    core = make(**settings)
    for each in peers:
        core.step(0, Met(each, hello(pools if not each.client else (), len(pools))))
    return core


def said(who: Peer, what: command.Command) -> Said:
    return Said(who.instance, (command.encode(what),))


def spoken(effects: Iterable[MeshEffect]) -> list[tuple[bytes, command.Command, bool]]:
    """What is to be said to whom, decoded, and whether it is urgent."""
    return [(each.instance, command.decode(each.command), each.urgent) for each in effects if isinstance(each, Say)]


def only(kind: type, effects: Iterable[MeshEffect]) -> list[MeshEffect]:
    return [each for each in effects if isinstance(each, kind)]


class Lane:
    """One direction of a session: what is under way, with None where something was lost and False where dropped."""

    def __init__(self) -> None:
        self.under_way: deque[bytes | bool | None] = deque()
        self.missed = 0
        self.absent = 0


class World:
    """Several meshes. `gaps` are what they told, `losses` what really happened; both by (teller, about, outgoing)."""

    def __init__(self, size: int, link_tells: bool) -> None:
        self.now_ns = 0
        self.link_tells = link_tells
        """Whether the link tells of what was lost on the way, or leaves it all to the mesh's numbers."""
        self.peers = [peer(number) for number in range(size)]
        self.cores = [MeshCore(MeshSettings(), random.Random(each.identifier), each) for each in self.peers]
        self.introductions = [core.introduction() for core in self.cores]
        self.lanes: dict[tuple[int, int], Lane] = {}
        self.fates: deque[str] = deque()
        """What becomes of the next commands said: "drop", "lose" or anything else."""
        self.gaps: Counter[tuple[int, int, bool]] = Counter()
        self.losses: Counter[tuple[int, int, bool]] = Counter()
        self.heard: dict[tuple[int, int, str], list[int]] = {}
        self.ended: Counter[str] = Counter()
        self.shouts = 0

    def step(self, index: int, event: MeshInput) -> list[MeshEffect]:
        effects = self.cores[index].step(self.now_ns, event)
        for effect in effects:
            self._perform(index, effect)
        return effects

    def _perform(self, index: int, effect: MeshEffect) -> None:
        match effect:
            case Say():
                self._say(index, effect)
            case Introduce():
                self.introductions[index] = effect
            case Gapped(about, count, outgoing):
                self.gaps[index, about.identifier, outgoing] += count
            case Shouted(sender, pool, content):
                self._check_delivery(index, sender, pool, content)
            case Forget(endpoint):
                self.part(index, int(endpoint[-4:]) - 7000)
            case Meet(endpoint):
                self.connect(index, int(endpoint[-4:]) - 7000)
            case _:
                pass

    def _say(self, index: int, say: Say) -> None:
        to = say.instance[0]
        lane = self.lanes.get((index, to))
        assert lane is not None, "the mesh speaks only within sessions"
        fate = self.fates.popleft() if self.fates else "deliver"
        is_shout = say.command[2] == 3
        if fate == "drop":
            lane.under_way.append(False)
            self.losses[index, to, True] += 1
            self.ended["dropped"] += is_shout
            self.step(index, CommandDropped(say.instance, say.command, "budget"))
        elif fate == "lose":
            lane.under_way.append(None)
            self.ended["lost"] += is_shout
        else:
            lane.under_way.append(say.command)

    def deliver(self, sender: int, receiver: int) -> bool:
        """Let the next command arrive, after whatever was lost before it. False if there is none."""
        lane = self.lanes.get((sender, receiver))
        while lane is not None and lane.under_way:
            frame = lane.under_way.popleft()
            if isinstance(frame, bytes):
                self._arrive(lane, sender, receiver, frame)
                return True
            lane.absent += 1
            lane.missed += frame is None
        return False

    def _arrive(self, lane: Lane, sender: int, receiver: int, frame: bytes) -> None:
        self.losses[receiver, sender, False] += lane.absent
        missed, lane.absent, lane.missed = lane.missed, 0, 0
        instance = self.peers[sender].instance
        if missed and self.link_tells:
            self.step(receiver, Missed(instance, missed))
        decoded = command.decode(frame)
        inside = isinstance(decoded, Broadcast) and decoded.pool in self.cores[receiver].pools
        effects = self.step(receiver, Said(instance, (frame,)))
        assert len(only(Shouted, effects)) == inside
        if isinstance(decoded, Broadcast):
            self.ended["delivered" if inside else "outside"] += 1

    def _check_delivery(self, index: int, sender: Peer, pool: str, content: bytes) -> None:
        shouted_in, by, number = content.decode().split("|")
        assert shouted_in == pool
        assert int(by) == sender.identifier
        assert pool in self.cores[index].pools
        order = self.heard.setdefault((index, sender.identifier, pool), [-1])
        assert int(number) > order[-1], "shouts of one sender to one pool arrive in order, once"
        order.append(int(number))

    def connect(self, one: int, other: int) -> None:
        """Both greet; a session that was up is replaced, so nothing may be under way in it."""
        assert not any(self.lanes[way].under_way for way in ((one, other), (other, one)) if way in self.lanes)
        greetings = [self._greeting(one), self._greeting(other)]
        self.lanes[one, other], self.lanes[other, one] = Lane(), Lane()
        self.step(one, Met(self.peers[other], greetings[1]))
        self.step(other, Met(self.peers[one], greetings[0]))

    def _greeting(self, index: int) -> Hello:
        said = self.introductions[index]
        return Hello(1, "127.0.0.1", 7000 + index, said.pools, said.status, said.headers)

    def part(self, one: int, other: int) -> None:
        if (one, other) not in self.lanes:
            return
        for way in ((one, other), (other, one)):
            lane = self.lanes.pop(way)
            frames = [frame for frame in lane.under_way if frame is not False]
            unconfirmed = len(frames) + lane.missed
            self.ended["expired"] += sum(1 for frame in frames if frame is not None and frame[2] == 3)
            self.losses[*way, True] += unconfirmed
            self.step(way[0], Parted(self.peers[way[1]], "hung up", unconfirmed))

    def advance(self, time_ns: int) -> None:
        """Let time pass, waking each core exactly when it wants to be."""
        end_ns = self.now_ns + time_ns
        while (due := self._next_due()) is not None and due[0] <= end_ns:
            self.now_ns = max(self.now_ns, due[0])
            self.step(due[1], Woken())
            assert self.cores[due[1]].deadline() is None or self.cores[due[1]].deadline() > self.now_ns  # type: ignore[operator]
        self.now_ns = end_ns

    def _next_due(self) -> tuple[int, int] | None:
        dues = [(due, index) for index, core in enumerate(self.cores) if (due := core.deadline()) is not None]
        return min(dues, default=None)

    def deliver_all(self) -> None:
        ways = tuple(self.lanes)
        while sum(self.deliver(*way) for way in ways):
            pass

    def settle(self) -> None:
        """No more faults: everything arrives, for long enough to notice and mend what was lost."""
        self.fates.clear()
        for _ in range(8):
            self.deliver_all()
            self.advance(SECOND // 2)
        self.deliver_all()
