"""The journal's order alone: serializers over plain connections, payloads as from an ingest node, and damaged disks.

The node is that of `consensus_node`. In some runs one more member, without a vote, lies (`lying_member`). Damage to
disks (wiped, rotten, misdirected, unreadable, writes that were reported as synced and lost) hits at most a minority in
one run: no protocol survives more, and the others must survive. Any disk may fail a sync.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from random import Random
from typing import Any, ClassVar

from chaplain.core import (
    Persist,
    Send,
    WriteAt,
)
from chaplain.journal.consensus import follower, repair, unconfirmed
from chaplain.journal.consensus.events import PayloadArrived
from chaplain.journal.messages import ingest
from chaplain.journal.messages.cluster import Reference, genesis
from chaplain.journal.messages.consensus import AskVote, ProposalAck, Propose, Vote, decode
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.settings import ConsensusSettings
from chaplain.journal.storage import records
from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.actors.lying_member import Liar
from simulator.adapters.consensus_node import TAPE, OrderNode, identity_of
from simulator.checkers import consensus
from simulator.checkers.consensus import OrderChecker
from simulator.faults import disk_faults
from simulator.faults.disk_faults import BAD_DISKS, SYNCS_FAIL, UNREADABLE_SECTOR
from simulator.faults.plan import CLOCK, NETWORK, PROCESS, Fault
from simulator.memo import Pure
from simulator.workloads import Workload
from simulator.world.machine import BEGUN_NOT_WRITTEN, SYNCED_NOT_TOLD, WRITTEN_NOT_SYNCED, Armed, CrashPoint, Host
from simulator.world.world import World

__all__ = ["INGEST", "WORKLOAD", "Order"]

INGEST = 9
_SEGMENT_BYTES = 32 * 1024
_PAYLOAD_NS = 300 * MILLISECOND_NS


def _says(kind: type) -> Any:
    def matches(effect: object) -> bool:
        if not isinstance(effect, Send):
            return False
        message = decode(effect.frame[1:])
        return isinstance(message, kind) and getattr(message, "granted", True)

    return matches


AFTER_ACKNOWLEDGEMENT = CrashPoint("after an acknowledgement", _says(ProposalAck))


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
            *BAD_DISKS,
            "everybody's power",
            SYNCS_FAIL,
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
    may_lie_with_a_vote: ClassVar[bool] = True
    """True if the liar may be a serializer."""
    memoized_functions: ClassVar[Sequence[Pure]] = tuple(
        (module, "decode_body") for module in (follower, records, repair, consensus, unconfirmed)
    )

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.numbers = tuple(range(1, self.draw_size(rng) + 1))
        self.founders = self.numbers
        self.names = tuple(f"s{number}" for number in self.numbers)
        self.victims: list[str] = []
        self._rotting: set[str] = set()
        self.sent = 0
        self._sent_at: list[tuple[int, int]] = []
        self.echoes = rng.random() < 0.4
        self._arrivals: dict[Reference, PayloadArrived] = {}
        self._sizes = rng.choice((10, 100, 2000))
        self._disks = {name: sha256(f"disk of {name}".encode()).digest()[:16] for name in self.names}
        self._founding = dict(self._disks)
        self._boots = dict.fromkeys(self.names, 0)
        self._checker = OrderChecker(self)
        # The liar has its own random generator, so that runs without a liar stay the same.
        self.liar = self._draw_liar(Random(sha256(repr(rng.getstate()).encode()).digest()))
        if self.liar is not None and self.liar.votes:
            self.founders = (*self.numbers, self.liar.number)

    def _draw_liar(self, rng: Random) -> Liar | None:
        """In some runs, a member in addition to the hosts."""
        if rng.random() > 0.4:
            return None
        number = self.numbers[-1] + 1
        votes = self.may_lie_with_a_vote and len(self.numbers) > 1 and rng.random() < 0.3
        return Liar(rng, number, identity_of(number), genesis("simulated"), votes=votes)

    @property
    def members_at_first(self) -> tuple[int, ...]:
        return self.numbers if self.liar is None else (*self.numbers, self.liar.number)

    def draw_size(self, rng: Random) -> int:
        """The number of nodes."""
        return rng.choice((1, 3, 3, 3, 3, 5, 5))

    def number(self, name: str) -> int:
        return self.numbers[self.names.index(name)]

    def endpoint_of(self, number: int) -> str:
        return self.endpoint(self.names[number - 1])

    def settings(self, name: str) -> ConsensusSettings:
        return ConsensusSettings(
            node=self.number(name),
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
        arrival = self._arrivals.get(reference)
        if arrival is None:
            raw = Random(f"payload {reference.index}").randbytes(self._sizes)
            payload = ingest.encode(reference, [IngestEntry(TAPE, raw)])
            arrival = self._arrivals[reference] = PayloadArrived(reference, ingest.digest_of(payload), payload)
        return arrival

    def sent_at(self, time_ns: int) -> int:
        """The number of payloads sent by then."""
        return max((sent for when, sent in self._sent_at if when <= time_ns), default=0)

    def begin(self, world: World) -> None:
        self._checker.world = world
        world.after(SECOND_NS // 10, self._ingest, world)
        if self.liar is not None:
            self.liar.begin(world)

    def _ingest(self, world: World) -> None:
        for _ in range(self.rng.choice((0, 1, 1, 1, 4))):
            self.sent += 1
            arrival = self.arrival(Reference(INGEST, 1, self.sent))
            for host in world.hosts.values():
                if self.rng.random() < 0.9:
                    world.after(self.rng.randrange(20 * MILLISECOND_NS), world.tell, host, arrival)
        self._sent_at.append((world.now_ns, self.sent))
        world.after(self.rng.randrange(_PAYLOAD_NS), self._ingest, world)

    # Faults of this workload.

    def inject_fault(self, world: World, fault: Fault) -> None:
        host = world.hosts[fault.nodes[0]]
        match fault.kind:
            case "hand-over":
                world.stop(host)
                world.after(2 * SECOND_NS, self._replace, world, host, host.process)
            case "everybody's power":
                for each in world.hosts.values():
                    world.crash(each, power=True, reason=fault.kind)
                    world.after(SECOND_NS, world.restart, each)
            case disk_faults.SYNCS_FAIL:
                disk_faults.fail_syncs(world)
            case _:
                if self._may_damage(host.name):
                    self._damage(world, host, fault.kind)

    def _replace(self, world: World, host: Host, process: int) -> None:
        if host.process == process:
            world.crash(host, power=False, reason="stopped")
            world.after(SECOND_NS, world.restart, host)

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
                    world.after(SECOND_NS, world.restart, host)
            case "disk misdirected":
                host.disk.misdirect_next = True
            case _ if kind in BAD_DISKS:
                if kind == UNREADABLE_SECTOR:
                    self._checker.rotten(host.name)
                disk_faults.damage(world, host, kind, self.rng)
            case _:
                world.crash(host, power=True, reason=kind)
                host.disk.wipe()
                self._disks[host.name] = self.rng.randbytes(16)
                self._checker.wiped(host.name)
                world.after(SECOND_NS, world.restart, host)

    def died(self, world: World, host: Host) -> None:
        """Apply damage while the node is down; it shows when the node starts again."""
        if host.disk.lied:
            self._checker.rotten(host.name)
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
