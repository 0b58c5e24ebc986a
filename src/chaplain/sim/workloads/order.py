"""The journal's order alone: serializers over plain connections, payloads that come as from an ingest node, and hard
disks.

The node here is a `SerializerCore` in the simplest possible coat: it dials every peer, says its number in the first
octet of each frame, and reads its log back from what it has written. Damage to disks (wiped, rotten, misdirected)
hits at most a minority in one run: more than that no protocol survives, and the others must.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import Any, ClassVar

from chaplain.core import (
    Admit,
    Arrived,
    Connected,
    Dial,
    Disconnected,
    Flushed,
    HangUp,
    Knocked,
    Persist,
    Send,
    Woken,
    WriteAt,
)
from chaplain.errors import Malformed
from chaplain.journal.cluster_message import Body, Reference, genesis
from chaplain.journal.log import jot_name, records_between, standing_name
from chaplain.journal.order_events import (
    LogRead,
    NeedPayload,
    PayloadArrived,
    PeerDown,
    PeerUp,
    Preview,
    ReadLog,
    Received,
    Role,
    RoleChanged,
    Settled,
    Started,
    Tell,
)
from chaplain.journal.order_message import Acknowledge, AskVote, Propose, Vote, decode
from chaplain.journal.order_settings import OrderSettings
from chaplain.journal.serializer import SerializerCore
from chaplain.segment.layout import parse_name
from chaplain.segment.record import Kind, Record
from chaplain.sim.disk import apply
from chaplain.sim.faults import CLOCK, NETWORK, PROCESS, Fault
from chaplain.sim.host import (
    BEGUN_NOT_WRITTEN,
    SYNCED_NOT_TOLD,
    WRITTEN_NOT_SYNCED,
    Armed,
    CrashPoint,
    Host,
)
from chaplain.sim.order_checks import OrderChecker
from chaplain.sim.weather import MILLISECOND, SECOND
from chaplain.sim.workloads import Workload
from chaplain.sim.world import World

INGEST = 9
REDIAL_NS = 300 * MILLISECOND
_ECHOED = (2, 8)
"""Purposes of acknowledgements and votes."""
_SEGMENT_BYTES = 32 * 1024
_PAYLOAD_NS = 300 * MILLISECOND


class Tape:
    """An execution that counts payloads: as little as an execution can be."""

    def __init__(self) -> None:
        self.settled = 0
        self.count = 0

    def preview(self, body: Body, payloads: Sequence[bytes], /) -> Preview:
        assert body.index == self.settled + 1, "asked for a verdict out of order"
        parts = tuple(
            Record(Kind.BATCH, payload, first_offset=self.count + place, count=1, stream="tape")
            for place, payload in enumerate(payloads)
        )
        return Preview(b"%d" % self.count, parts)

    def settle(self, message: Settled, /) -> None:
        assert message.body.index == self.settled + 1, "settled out of order"
        self.settled += 1
        self.count += len(message.payloads)

    def payloads(self, body: Body, parts: Sequence[Record], /) -> tuple[bytes, ...]:
        return tuple(bytes(part.body) for part in parts)


def segments_of(files: Mapping[str, bytes | bytearray]) -> Iterator[tuple[int, bytes]]:
    """The log's segments among a node's files, by sequence."""
    for name in sorted(files):
        try:
            _, sequence, free = parse_name(name)
        except Malformed:
            continue
        if not free:
            yield sequence, bytes(files[name])


class OrderNode:
    """A serializer that can be run by a host."""

    def __init__(self, workload: Order, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> None:
        self._workload = workload
        self._rng = rng
        self.routing_id = b"\x01" + rng.randbytes(16)
        self.number = workload.number(name)
        self.settings = workload.settings(name)
        self.execution = Tape()
        self._files = {file: bytearray(data) for file, data in disk.items()}
        self.serializer = SerializerCore(
            self.settings,
            rng,
            self.execution,
            segments=segments_of(disk),
            jot=disk.get(jot_name(self.settings)),
            standing=disk.get(standing_name(self.settings)),
        )
        self._started = False
        self._dials: dict[int, int] = {}
        """Peer by dial; the dial is connected if the peer is in `_ways`."""
        self._ways: dict[int, int] = {}
        self._comers: dict[bytes, int] = {}
        self._next_dial = 0
        self._redial_ns: dict[int, int] = {peer: now_ns for peer in workload.numbers if peer != self.number}
        self._echoes: deque[bytes] = deque(maxlen=64)
        """Acknowledgements and votes heard before: a network may bring them once more, at the worst moment."""
        self._echo_due = False
        self._parcels: list[tuple[int, Reference]] = []
        """Payloads that were asked for, and when they come."""

    def deadline(self) -> int | None:
        due = [*self._redial_ns.values(), *(when for when, _ in self._parcels[:1])]
        own = self.serializer.deadline()
        return min([*due, *([own] if own is not None else [])], default=None)

    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        effects: list[Any] = []
        if not self._started:
            self._started = True
            self._feed(now_ns, Started(), effects)
        if self._echo_due:
            self._echo_due = False
            for frame in list(self._echoes):
                self._feed(now_ns, Received(frame[0], frame[1:]), effects)
        match event:
            case Knocked():
                effects.append(Admit(event.request, "node"))
            case Connected():
                peer = self._dials[event.dial]
                self._ways[peer] = event.dial
                self._feed(now_ns, PeerUp(peer), effects)
            case Disconnected():
                self._lost(now_ns, event, effects)
            case Arrived():
                if isinstance(event.channel, bytes):
                    self._comers[event.channel] = event.frame[0]
                if event.frame[2] in _ECHOED:
                    self._echoes.append(event.frame)
                self._feed(now_ns, Received(event.frame[0], event.frame[1:]), effects)
            case Woken():
                self._wake(now_ns, effects)
            case Flushed():
                pass
            case _:
                self._feed(now_ns, event, effects)
        return effects

    def _lost(self, now_ns: int, event: Disconnected, effects: list[Any]) -> None:
        """A session is both directions: if one is gone, so is the other."""
        if isinstance(event.channel, bytes):
            peer = self._comers.pop(event.channel, 0)
            dial = self._ways.pop(peer, None)
            if dial is None:
                return
            effects.append(HangUp(dial))
            del self._dials[dial]
        else:
            peer = self._dials.pop(event.channel)
            self._ways.pop(peer, None)
        self._redial_ns[peer] = now_ns + self._rng.randrange(REDIAL_NS)
        self._feed(now_ns, PeerDown(peer), effects)

    def _wake(self, now_ns: int, effects: list[Any]) -> None:
        for peer in [peer for peer, when in self._redial_ns.items() if when <= now_ns]:
            del self._redial_ns[peer]
            self._next_dial += 1
            self._dials[self._next_dial] = peer
            effects.append(Dial(self._next_dial, self._workload.endpoint_of(peer), b"", b""))
        while self._parcels and self._parcels[0][0] <= now_ns:
            self._feed(now_ns, self._workload.arrival(self._parcels.pop(0)[1]), effects)
        own = self.serializer.deadline()
        if own is not None and own <= now_ns:
            self._feed(now_ns, Woken(), effects)

    def _feed(self, now_ns: int, event: Any, effects: list[Any]) -> None:
        """Step the serializer, and do for it what a host does not."""
        for effect in self.serializer.step(now_ns, event):
            match effect:
                case Tell():
                    if effect.node in self._ways:
                        effects.append(Send(self._ways[effect.node], bytes((self.number,)) + effect.message))
                case ReadLog():
                    files = [data for _, data in segments_of(self._files)]
                    read = LogRead(effect.token, records_between(files, effect.start, effect.end))
                    self._feed(now_ns, read, effects)
                case NeedPayload():
                    effects.append(effect)
                    if effect.reference.index <= self._workload.sent and len(self._parcels) < 1024:
                        self._parcels.append((now_ns + self._rng.randrange(50 * MILLISECOND), effect.reference))
                        self._parcels.sort(key=lambda parcel: parcel[0])
                case RoleChanged():
                    self._echo_due = self._workload.echoes and effect.role is not Role.FOLLOWER
                    effects.append(effect)
                case Persist():
                    for operation in effect.operations:
                        apply(self._files, operation)
                    effects.append(effect)
                case _:
                    effects.append(effect)


def _says(kind: type) -> Any:
    def matches(effect: object) -> bool:
        if not isinstance(effect, Send):
            return False
        message = decode(effect.frame[1:])
        return isinstance(message, kind) and getattr(message, "granted", True)

    return matches


AFTER_ACKNOWLEDGEMENT = CrashPoint("after an acknowledgement", _says(Acknowledge))


class Order(Workload):
    kinds: ClassVar[Sequence[str]] = (
        *NETWORK,
        *PROCESS,
        *CLOCK,
        *(
            "EIO",
            "ENOSPC",
            "slow disk",
            "disk wiped",
            "disk rotten",
            "disk misdirected",
            "everybody's power",
            "hand-over",
        ),
    )
    points: ClassVar[Sequence[CrashPoint]] = (
        WRITTEN_NOT_SYNCED,
        SYNCED_NOT_TOLD,
        BEGUN_NOT_WRITTEN,
        CrashPoint("after a vote", _says(Vote)),
        AFTER_ACKNOWLEDGEMENT,
        CrashPoint("after a proposal", _says(Propose)),
        CrashPoint("after asking for votes", _says(AskVote)),
    )

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.numbers = tuple(range(1, rng.choice((1, 3, 3, 3, 3, 5, 5)) + 1))
        self.names = tuple(f"s{number}" for number in self.numbers)
        self.victims: list[str] = []
        self._rotting: set[str] = set()
        self.sent = 0
        self._sent_at: list[tuple[int, int]] = []
        self.echoes = rng.random() < 0.4
        self._sizes = rng.choice((10, 100, 2000))
        self._disks = {name: sha256(f"disk of {name}".encode()).digest()[:16] for name in self.names}
        self._founding = dict(self._disks)
        self._boots = dict.fromkeys(self.names, 0)
        self._checker = OrderChecker(self)

    def number(self, name: str) -> int:
        return self.numbers[self.names.index(name)]

    def endpoint_of(self, number: int) -> str:
        return self.endpoint(self.names[number - 1])

    def settings(self, name: str) -> OrderSettings:
        return OrderSettings(
            node=self.number(name),
            serializers=self.numbers,
            genesis=genesis("simulated"),
            disk=self._disks[name],
            founding_disk=self._founding[name],
            boot=b"%16d" % self._boots[name],
            segment_bytes=_SEGMENT_BYTES,
            order_entries_max=64,
            order_bytes_max=12 * 1024,
            recent_bytes_max=4096,
            supply_bytes_max=8192,
        )

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> OrderNode:
        return OrderNode(self, name, rng, disk, now_ns)

    def power_lost(self, name: str) -> None:
        self._boots[name] += 1

    def checkers(self) -> list[Any]:
        return [self._checker]

    # Payloads, as an ingest node broadcasts them.

    def arrival(self, reference: Reference) -> PayloadArrived:
        payload = Random(f"payload {reference.index}").randbytes(self._sizes)
        return PayloadArrived(reference, sha256(payload).digest(), payload)

    def sent_at(self, time_ns: int) -> int:
        """How many payloads had been sent by then."""
        return max((sent for when, sent in self._sent_at if when <= time_ns), default=0)

    def begin(self, world: World) -> None:
        self._checker.world = world
        world.after(SECOND // 10, self._ingest, world)

    def _ingest(self, world: World) -> None:
        for _ in range(self.rng.choice((0, 1, 1, 1, 4))):
            self.sent += 1
            arrival = self.arrival(Reference(INGEST, 1, self.sent))
            for host in world.hosts.values():
                if self.rng.random() < 0.9:
                    world.after(self.rng.randrange(20 * MILLISECOND), world.tell, host, arrival)
        self._sent_at.append((world.now_ns, self.sent))
        world.after(self.rng.randrange(_PAYLOAD_NS), self._ingest, world)

    # Faults of our own.

    def strike(self, world: World, fault: Fault) -> None:
        host = world.hosts[fault.nodes[0]]
        match fault.kind:
            case "hand-over":
                world.stop(host)
                world.after(2 * SECOND, self._replace, world, host, host.life)
            case "everybody's power":
                for each in world.hosts.values():
                    world.crash(each, power=True, reason=fault.kind)
                    world.after(SECOND, world.restart, each)
            case _:
                if self._may_damage(host.name):
                    self._damage(world, host, fault.kind)

    def _replace(self, world: World, host: Host, life: int) -> None:
        if host.life == life:
            world.crash(host, power=False, reason="stopped")
            world.after(SECOND, world.restart, host)

    def _may_damage(self, name: str) -> bool:
        if name not in self.victims and len(self.victims) < (len(self.names) - 1) // 2:
            self.victims.append(name)
        return name in self.victims

    def _damage(self, world: World, host: Host, kind: str) -> None:
        match kind:
            case "disk rotten":
                self._rotting.add(host.name)
                if self.rng.random() < 0.5:
                    host.armed = Armed(AFTER_ACKNOWLEDGEMENT, 1, power=False)
                else:
                    world.crash(host, power=False, reason=kind)
                    world.after(SECOND, world.restart, host)
            case "disk misdirected":
                host.disk.misdirect_next = True
            case _:
                world.crash(host, power=True, reason=kind)
                host.disk.wipe()
                self._disks[host.name] = self.rng.randbytes(16)
                self._checker.wiped(host.name)
                world.after(SECOND, world.restart, host)

    def died(self, world: World, host: Host) -> None:
        """Rot shows when a node starts again: it does its work while nobody looks."""
        if host.name in self._rotting:
            self._rotting.discard(host.name)
            self._checker.rotten(host.name)
            world.after(0, self._rot_end if self.rng.random() < 0.7 else self._rot_anywhere, host)

    def _rot_anywhere(self, host: Host) -> None:
        host.disk.flip_bit()

    def _rot_end(self, host: Host) -> None:
        """Flip a bit in what was written last, where rot looks most like a torn write."""
        files = host.disk.contents()
        last = max((name for name in files if name.endswith(".segment")), default="")
        size = len(files[last].rstrip(b"\0")) if last else 0
        if size:
            at = self.rng.randrange(max(0, size - 700), size)
            flipped = bytes((files[last][at] ^ 1 << self.rng.randrange(8),))
            host.disk.begin(Persist(0, (WriteAt(last, at, flipped),)))
            host.disk.write()
            host.disk.sync()


WORKLOAD = Order
