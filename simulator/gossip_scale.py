"""Measures the cost and the error rate of gossip: `python -m simulator.gossip_scale [--node-hours N] [--output json]`.

Two measurements, both with the real core in simulated worlds, with signatures that cost nothing:

- *silence*: five nodes under loss, with pauses shorter than T, and a kill every two minutes. How many running members
  were removed from a list, and how long it took until every survivor had removed a killed one.
- *spread*: one event in clusters of 10 to 10,000. Rounds, messages and bytes per node, by flooding and by fan-out.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from typing import Any

import msgspec

from chaplain.core import Woken
from chaplain.gossip.core import GossipCore
from chaplain.gossip.events import EventSeen, Fire, GossipEffect, GossipParcel, MemberChanged, MemberState
from chaplain.gossip.members import MemberList
from chaplain.gossip.settings import GossipSettings
from chaplain.link.events import Peer
from chaplain.mesh.events import Whisper
from chaplain.units import SECOND_NS
from chaplain.wire import parcel
from simulator.adapters.gossip_mesh import CheapSigner, Node, World, cheap_verify

_SENTENCE = "What gossip costs and how often it is wrong, in made-up worlds."
_HEADS = ("nodes", "rounds", "reached", "repair rounds", "copies/node", "offers/node", "bytes/node")
_FOREVER_NS = 10**18
_KINDS = {2: "event", 6: "have", 7: "want"}
KILL_EVERY_NS = 120 * SECOND_NS
PAUSE_EVERY_NS = 10 * SECOND_NS
NODES = 5


class Silence(msgspec.Struct):
    """The result of running nodes on a bad network."""

    node_hours: float
    loss: float
    false_leaves: int
    kills: int
    undetected: int
    detect_p50_s: float
    detect_p99_s: float
    detect_max_s: float
    bytes_per_node_second: float
    detect_s: list[float]
    """For each kill, the time until it was off every list, in ascending order."""


class Spread(msgspec.Struct):
    """The cost of one event."""

    mode: str
    nodes: int
    rounds: int
    """Hops until nothing was forwarded any more."""
    reached: int
    """Nodes that had it by then."""
    repair_rounds: int
    """Seconds of repair until all had it."""
    copies_per_node: float
    offers_per_node: float
    """HAVE and WANT messages during the whole time that the event is kept for repair."""
    bytes_per_node: float


class _Ward:
    """Watches one world: which nodes were killed, and which nodes noticed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead: dict[int, int] = {}
        """Identifiers of killed nodes, and since when."""
        self.noticed: dict[int, dict[int, float]] = {}
        self.false_leaves = 0
        self.seconds: list[float] = []
        self.undetected = 0
        world.watchers.append(self.see)

    def see(self, node: Node, effect: GossipEffect) -> None:
        if not isinstance(effect, MemberChanged) or effect.member.state is not MemberState.LEFT:
            return
        since_ns = self.dead.get(effect.member.identifier)
        if since_ns is None:
            self.false_leaves += 1
        else:
            late = (self.world.now_ns - since_ns) / SECOND_NS
            self.noticed[effect.member.identifier].setdefault(node.name, late)

    def kill(self, name: int) -> None:
        identifier = self.world.nodes[name].signer.identifier
        self.dead[identifier] = self.world.now_ns
        self.noticed[identifier] = {}
        self.world.kill(name)

    def revive(self, name: int) -> None:
        identifier = self.world.nodes[name].signer.identifier
        noticed = self.noticed.pop(identifier)
        if len(noticed) < NODES - 1:
            self.undetected += 1
        else:
            self.seconds.append(max(noticed.values()))
        self.world.restart(name, through=(name + 1) % NODES)
        del self.dead[identifier]


def measure_silence(seed: int, node_hours: float, loss: float) -> Silence:
    world = World(seed, loss=loss, cheap=True)
    world.keep_effects = False
    world.cluster(NODES)
    world.run(30 * SECOND_NS)
    ward = _Ward(world)
    rng = random.Random(seed)
    cycles = max(1, round(node_hours * 3600 * SECOND_NS / (NODES * KILL_EVERY_NS)))
    sent = world.counts["bytes"]
    for _ in range(cycles):
        victim = rng.randrange(NODES)
        _pauses(world, rng, KILL_EVERY_NS - 40 * SECOND_NS)
        ward.kill(victim)
        world.run(20 * SECOND_NS)
        ward.revive(victim)
        world.run(20 * SECOND_NS)
    seconds = sorted(ward.seconds) or [0.0]
    total_s = cycles * KILL_EVERY_NS / SECOND_NS * NODES
    return Silence(
        round(total_s / 3600, 2),
        loss,
        ward.false_leaves,
        cycles,
        ward.undetected,
        round(seconds[len(seconds) // 2], 2),
        round(seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)], 2),
        round(seconds[-1], 2),
        round((world.counts["bytes"] - sent) / total_s, 1),
        [round(second, 2) for second in seconds],
    )


def _pauses(world: World, rng: random.Random, duration_ns: int) -> None:
    """Every ten seconds one node pauses for less than T."""
    silence_ns = world.settings.silence_ns
    for _ in range(duration_ns // PAUSE_EVERY_NS):
        world.pause(rng.randrange(NODES), rng.randrange(silence_ns // 10, silence_ns * 95 // 100))
        world.run(PAUSE_EVERY_NS)


class Crowd:
    """Many cores that share one member list, and exchange messages in rounds."""

    def __init__(self, size: int, *, flooding: bool, seed: int = 1) -> None:
        rng = random.Random(seed)
        most = size if flooding else GossipSettings().sessions_max
        self.settings = GossipSettings(
            silence_ns=_FOREVER_NS, sync_ns=_FOREVER_NS, members_max=size, hearsay_max=size, sessions_max=most,
            flood_max=size if flooding else GossipSettings().flood_max,
        )  # fmt: skip
        members = MemberList(self.settings, cheap_verify)
        self.counts: Counter[str] = Counter()
        self.cores: list[GossipCore] = []
        self.peers: list[Peer] = []
        for number in range(size):
            signer = CheapSigner(rng)
            uri = f"tcp://10.{number >> 16}.{number >> 8 & 255}.{number & 255}:7171"
            instance = number.to_bytes(16, "big")
            self.peers.append(Peer(instance, signer.identifier, signer.key, uri))
            core = GossipCore(
                signer, instance, uri, self.settings, random.Random(rng.random()), 0, incarnation=1,
                check=cheap_verify, members=members,
            )  # fmt: skip
            self.cores.append(core)
        self._connect(members, most)
        self.seen: dict[int, None] = {}

    def _connect(self, members: MemberList, most: int) -> None:
        """Create the sessions that the connectivity module would create, without handshakes, which are not measured."""
        place = {peer.identifier: peer for peer in self.peers}
        for core, peer in zip(self.cores, self.peers, strict=True):
            few = len(members) <= most + 1
            chosen = members.present if few else members.neighbours(peer.identifier)
            sessions = {one: place[one].instance for one in chosen if one != peer.identifier}
            core._dissemination.sessions = sessions
            # A first tick chooses peers and compares lists, so that this is not measured later.
            core.step(self.settings.tick_ns, Woken())

    def step(self, number: int, now_ns: int, event: Any) -> list[tuple[int, GossipParcel]]:
        """One step of one core; its messages are delivered in the next round."""
        said = []
        for effect in self.cores[number].step(now_ns, event):
            if isinstance(effect, Whisper):
                self.counts[_KINDS.get(effect.content[10], "other")] += 1
                self.counts["bytes"] += len(effect.content)
                told = GossipParcel(self.peers[number], parcel.decode(effect.content))
                said.append((int.from_bytes(effect.instance, "big"), told))
            elif isinstance(effect, EventSeen):
                assert number not in self.seen, "an event is seen once"
                self.seen[number] = None
        return said

    def settle(self, now_ns: int, said: list[tuple[int, GossipParcel]]) -> int:
        """Run rounds until no core has anything to send."""
        rounds = 0
        while said:
            rounds += 1
            said = [answer for number, told in said for answer in self.step(number, now_ns, told)]
        return rounds


def measure_spread(size: int, *, flooding: bool, seed: int = 1) -> Spread:
    crowd = Crowd(size, flooding=flooding, seed=seed)
    now_ns = crowd.settings.tick_ns * 3 // 2
    rounds = crowd.settle(now_ns, crowd.step(0, now_ns, Fire("measured", bytes(100))))
    reached, repairs = len(crowd.seen), 0
    for _ in range(crowd.settings.recent_age_ns // crowd.settings.repair_ns + 1):
        repairs += len(crowd.seen) < size
        now_ns += crowd.settings.repair_ns
        crowd.settle(now_ns, [told for number in range(size) for told in crowd.step(number, now_ns, Woken())])
    assert len(crowd.seen) == size, f"{size - len(crowd.seen)} of {size} never saw the event"
    assert crowd.counts["other"] == 0, "only what the event causes is to be counted"
    mode = "flooding" if flooding else "fan-out"
    copies, offers = crowd.counts["event"], crowd.counts["have"] + crowd.counts["want"]
    per_node = [round(count / size, 2) for count in (copies, offers, crowd.counts["bytes"])]
    return Spread(mode, size, rounds, reached, repairs, *per_node)


def report(silence: Silence, spreads: list[Spread]) -> str:
    lines = [
        f"{silence.node_hours} node-hours at {silence.loss:.0%} loss, pauses below T, {silence.kills} kills:",
        f"  running members taken off a list: {silence.false_leaves}; killed ones missed: {silence.undetected}",
        f"  off every list after {silence.detect_p50_s} s (p50), {silence.detect_p99_s} s (p99)",
        f"  and at the latest after {silence.detect_max_s} s",
        f"  {silence.bytes_per_node_second} bytes per node and second",
        "",
        f"{'one event by':14}" + "".join(f"{head:>15}" for head in _HEADS),
    ]
    for spread in spreads:
        lines.append(f"{spread.mode:14}" + "".join(f"{cell:>15}" for cell in msgspec.structs.astuple(spread)[1:]))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulator.gossip_scale", description=_SENTENCE)
    parser.add_argument("--node-hours", type=float, default=10.0)
    parser.add_argument("--loss", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flooding", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--fan-out", type=int, nargs="*", default=[100, 1000, 10_000])
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args(arguments)
    silence = measure_silence(options.seed, options.node_hours, options.loss)
    spreads = [measure_spread(size, flooding=True) for size in options.flooding]
    spreads += [measure_spread(size, flooding=False) for size in options.fan_out]
    if options.output == "json":
        found = {"silence": msgspec.to_builtins(silence), "spread": [msgspec.to_builtins(one) for one in spreads]}
        print(json.dumps(found, indent=1))
    else:
        print(report(silence, spreads))
    return 1 if silence.false_leaves or silence.undetected else 0


if __name__ == "__main__":
    sys.exit(main())
