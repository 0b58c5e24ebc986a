"""The fault plan of a seed: which faults occur, and when. It is drawn before the run, printable, and equal for equal
seeds.

A plan is data. Each seed enables some kinds of fault and leaves others out, so that no kind always hides another. In
*safety* mode faults occur throughout. In *liveness* mode they stop at `heal_ns`: a majority is healed, the rest stays
broken, and the checkers demand progress by `end_ns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from chaplain.core import Frozen
from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.faults import replay_attacker
from simulator.trace import stamp
from simulator.world.network_conditions import NetworkProfile

NETWORK = ("whole partition", "one-way partition", "bridge partition", "ring partition", "clog")
PROCESS = ("kill", "power cut", "pause", "crash point")
DISK = ("flipped bit", "misdirected write", "EIO", "ENOSPC", "slow disk", "wipe")
CLOCK = ("clock jump", "clock back", "drift")
ATTACK = tuple(f"attack: {kind}" for kind in replay_attacker.KINDS)
ALL = NETWORK + PROCESS + DISK + CLOCK + ATTACK

PROGRESS_NS = 30 * SECOND_NS
"""How long a healed majority may take to make progress."""

_CHAOS_NS = (5 * SECOND_NS, 25 * SECOND_NS)
_PAUSE_MAX_NS = 60 * SECOND_NS
_RARE = 0.12
"""Probability that a seed enables a rare kind of fault."""


class Fault(Frozen, frozen=True):
    at_ns: int
    kind: str
    nodes: tuple[str, ...]
    """The affected nodes; for partitions, all nodes in an order that determines the sides."""
    lasts_ns: int = 0
    amount: int = 0

    def __str__(self) -> str:
        lasting = f" for {self.lasts_ns / SECOND_NS:.3f} s" if self.lasts_ns else ""
        return f"{stamp(self.at_ns)} {self.kind} {' '.join(self.nodes)}{lasting} ({self.amount})"


class Plan(Frozen, frozen=True):
    mode: str
    profile: NetworkProfile
    faults: tuple[Fault, ...]
    heal_ns: int
    """When faults end; equal to `end_ns` in safety mode."""
    end_ns: int
    healed: tuple[str, ...]
    """The nodes that are healed; empty in safety mode."""

    def __str__(self) -> str:
        profile = self.profile
        head = (
            f"mode {self.mode}; loss {profile.loss:.0%} {'raw' if profile.raw else 'resent'}, "
            f"duplicates {profile.duplicates:.0%}, delay to {profile.delay_max_ns / SECOND_NS:.3f} s, "
            f"breaks {profile.breaks:.1%}, half-open {profile.half_open:.0%}, news of routes {profile.route_news}"
        )
        healed = f"{stamp(self.heal_ns)} heal {' '.join(self.healed)}" if self.healed else "never healed"
        return "\n".join((head, *map(str, self.faults), healed, f"{stamp(self.end_ns)} end"))


def draw(
    rng: Random,
    names: Sequence[str],
    mode: str,
    kinds: Sequence[str] = ALL,
    *,
    members: Sequence[str] = (),
    heals_all: bool = False,
    rare: Sequence[str] = (),
    rare_rng: Random | None = None,
) -> Plan:
    """Draw a plan for these nodes from these kinds of fault; a majority of the members is healed.

    Rare kinds have their own random generator: they do not change the rest of the plan.
    """
    enabled = [kind for kind in kinds if rng.random() < 0.35]
    chaos_ns = rng.randrange(*_CHAOS_NS)
    drawn = [_fault(rng, kind, names, chaos_ns) for kind in enabled for _ in range(rng.randint(1, 3))]
    if rare_rng is not None:
        struck = [kind for kind in rare if rare_rng.random() < _RARE]
        drawn += [_fault(rare_rng, kind, names, chaos_ns) for kind in struck for _ in range(rare_rng.randint(1, 3))]
    faults = sorted(drawn, key=lambda fault: fault.at_ns)
    longest_ns = max((fault.at_ns + fault.lasts_ns for fault in faults if fault.kind == "pause"), default=0)
    profile = _network_profile(rng)
    if mode == "safety":
        end_ns = max(chaos_ns, longest_ns) + 3 * SECOND_NS
        return Plan(mode, profile, tuple(faults), end_ns, end_ns, ())
    members = list(members or names)
    healed = sorted(rng.sample(members, len(members) if heals_all else len(members) // 2 + 1))
    return Plan(mode, profile, tuple(faults), chaos_ns, chaos_ns + PROGRESS_NS, tuple(healed))


def _network_profile(rng: Random) -> NetworkProfile:
    """Each property of the network is bad in some seeds and good in others."""

    def sometimes(most: float) -> float:
        return rng.random() * most if rng.random() < 0.4 else 0.0

    return NetworkProfile(
        loss=sometimes(0.3),
        duplicates=sometimes(0.5),
        delay_max_ns=rng.choice((MILLISECOND_NS, 10 * MILLISECOND_NS, 100 * MILLISECOND_NS, SECOND_NS)),
        raw=rng.random() < 0.5,
        breaks=sometimes(0.05),
        half_open=sometimes(0.5),
        route_news=rng.random() < 0.3,
    )


def _fault(rng: Random, kind: str, names: Sequence[str], chaos_ns: int) -> Fault:
    at_ns = rng.randrange(chaos_ns)
    shuffled = tuple(rng.sample(list(names), len(names)))
    lasts_ns, amount = 0, 0
    match kind:
        case "whole partition" | "bridge partition":
            lasts_ns, amount = rng.randrange(SECOND_NS, 20 * SECOND_NS), rng.randrange(1, max(2, len(names)))
        case "one-way partition" | "ring partition":
            lasts_ns = rng.randrange(SECOND_NS, 20 * SECOND_NS)
        case "clog":
            lasts_ns = rng.randrange(5 * SECOND_NS)
        case "pause":
            lasts_ns = rng.randrange(_PAUSE_MAX_NS) if rng.random() < 0.1 else rng.randrange(8 * SECOND_NS)
        case "kill" | "power cut" | "wipe":
            lasts_ns = rng.randrange(MILLISECOND_NS, 10 * SECOND_NS)
        case "EIO" | "ENOSPC" | "slow disk":
            lasts_ns = rng.randrange(SECOND_NS, 5 * SECOND_NS)
        case "clock jump":
            amount = rng.choice((rng.randrange(10 * SECOND_NS), rng.randrange(3600 * SECOND_NS)))
        case "clock back":
            amount = rng.randrange(10 * SECOND_NS)
        case "drift":
            amount = rng.choice((-1, 1)) * rng.randrange(1, 200_000)
        case _:
            amount = rng.randrange(1 << 16)
    return Fault(at_ns, kind, shuffled, lasts_ns, amount)


def cut(fault: Fault) -> list[tuple[str, str]]:
    """The directions that a partition blocks. The order of `nodes` determines the sides."""
    nodes, size = fault.nodes, len(fault.nodes)
    pairs = [(a, b) for a in nodes for b in nodes if a != b]
    place = {name: position for position, name in enumerate(nodes)}
    match fault.kind:
        case "one-way partition":
            return [(nodes[0], nodes[-1])]
        case "ring partition":
            return [(a, b) for a, b in pairs if (place[a] - place[b]) % size not in {1, size - 1}]
        case "bridge partition":
            # The first node reaches both sides, which do not reach each other.
            apart = [(a, b) for a, b in pairs if 0 not in {place[a], place[b]}]
            return [(a, b) for a, b in apart if (place[a] <= fault.amount) != (place[b] <= fault.amount)]
        case _:
            return [(a, b) for a, b in pairs if (place[a] < fault.amount) != (place[b] < fault.amount)]
