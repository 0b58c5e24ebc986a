"""The list of all campaigns, at the end of this file. `campaign` defines what a campaign is."""

from __future__ import annotations

from collections import Counter

from campaigns.campaign import Campaign, Report
from campaigns.clusters import ON_REAL_CLUSTERS
from campaigns.conditions import ON_CONDITIONS
from campaigns.consumers import ON_CONSUMERS
from campaigns.drills import DRILLS
from campaigns.executors import OF_EXECUTORS
from campaigns.journal_speed import ON_FAST_JOURNALS
from campaigns.journals import ON_REAL_JOURNALS
from campaigns.pipelines import OF_PIPELINES
from campaigns.proofs import ON_PROOFS
from campaigns.sequences import ON_REAL_SEQUENCES
from campaigns.sinks import ON_SINKS
from simulator import gossip_scale as gossip
from simulator import mutate
from simulator.runner import MODES, run_seeds
from tests.fuzz import runner as fuzz

SEEDS_A_PIECE = 20
INPUTS_A_PIECE = 100_000


# Seeds of the simulator.


def simulate(workload: str, seeds: int) -> Campaign:
    def pieces(quick: bool) -> list[str]:
        step = 10 if quick else SEEDS_A_PIECE
        return [f"{first}:{first + step}" for first in range(0, 2 * step if quick else seeds, step)]

    def run(piece: str) -> Report:
        first, last = map(int, piece.split(":"))
        done: Counter[str] = Counter()
        findings = []
        for outcome in run_seeds(workload, range(first, last), MODES):
            done.update({"runs": 1, "steps": outcome.steps, "simulated seconds": outcome.simulated_ns // 10**9})
            done.update({f"fault: {kind}": count for kind, count in outcome.counts.items()})
            if not outcome.ok:
                findings.append(f"{outcome.checker}: {outcome.reason}; {outcome.replay()}")
        return Report(dict(done), findings)

    about = f"{seeds:,} seeds of `{workload}` in both modes"
    loads = f"import simulator.runner, simulator.workloads.{workload}"
    return Campaign(f"sim-{workload}", about, pieces, run, loads)


# Hostile bytes.


def fuzz_layer(layer: str, inputs: int) -> Campaign:
    def pieces(quick: bool) -> list[str]:
        targets = fuzz.targets(layer)
        if quick:
            return [f"{name} 1 2000" for name in targets]
        seeds = range(1, inputs // INPUTS_A_PIECE + 1)
        return [f"{name} {seed} {INPUTS_A_PIECE}" for name in targets for seed in seeds]

    def run(piece: str) -> Report:
        name, seed, count = piece.split()
        make, seeds = fuzz.targets(layer)[name]
        try:
            fed = fuzz.feed(name, make, seeds, int(count), seed=int(seed))
        except fuzz.Finding as finding:
            return Report({}, [str(finding)])
        return Report({"inputs": fed, f"inputs: {name}": fed})

    about = f"{inputs:,} hostile inputs for every decoder of `{layer}`"
    return Campaign(f"fuzz-{layer}", about, pieces, run, f"from tests.fuzz import runner; runner.targets({layer!r})")


# What gossip costs, and how often it is wrong.

NODE_HOURS_A_PIECE = 25
EVENTS = ["flooding 10", "flooding 100", "flooding 1000", "fan-out 100", "fan-out 1000", "fan-out 10000"]


def gossip_scale(node_hours: int) -> Campaign:
    def pieces(quick: bool) -> list[str]:
        seeds = range(1, 2 if quick else node_hours // NODE_HOURS_A_PIECE + 1)
        events = EVENTS[:1] if quick else EVENTS
        return [*(f"silence {seed}" for seed in seeds), *(f"event {event}" for event in events)]

    def run(piece: str) -> Report:
        what, *rest = piece.split()
        return _silence(int(rest[0])) if what == "silence" else _spread(rest[0], int(rest[1]))

    about = f"{node_hours:,} node-hours at 5 % loss with pauses and kills, and one event in 10 to 10,000 nodes"
    return Campaign("gossip-scale", about, pieces, run, "import simulator.gossip_scale")


def _silence(seed: int) -> Report:
    found = gossip.measure_silence(seed, NODE_HOURS_A_PIECE, loss=0.05)
    done = {"node-hours": round(found.node_hours), "kills": found.kills, "false leaves": found.false_leaves}
    findings = [f"seed {seed}: {found.false_leaves} false leaves"] if found.false_leaves else []
    findings += [f"seed {seed}: {found.undetected} killed nodes missed"] if found.undetected else []
    return Report(done, findings, {"off every list after a kill": found.detect_s})


def _spread(mode: str, nodes: int) -> Report:
    found = gossip.measure_spread(nodes, flooding=mode == "flooding")
    name = f"one event, {mode}, {nodes} nodes:"
    done = {f"{name} rounds": found.rounds, f"{name} bytes a node": round(found.bytes_per_node)}
    done[f"{name} messages a node x 100"] = round(100 * (found.copies_per_node + found.offers_per_node))
    return Report(done)


# Planted bugs.


def planted_all() -> Campaign:
    def pieces(quick: bool) -> list[str]:
        names = [f"{layer}/{bug.name}" for layer in mutate.layers() for bug in mutate.bugs(layer)]
        return names[:3] if quick else names

    def run(piece: str) -> Report:
        verdict = mutate.judge(piece.partition("/")[0], mutate.find(piece))
        fine = verdict.ok or verdict.status == "skipped"
        findings = [] if fine else [f"{piece}: {verdict.status}: {verdict.detail}"]
        return Report({"bugs": 1, verdict.status: 1}, findings)

    return Campaign("planted", "every planted bug is caught", pieces, run)


CAMPAIGNS = [
    simulate("greet", seeds=10_000),
    simulate("gossip", seeds=1_000),
    gossip_scale(node_hours=1_000),
    simulate("order", seeds=2_000),
    simulate("config", seeds=2_000),
    simulate("requests", seeds=2_000),
    simulate("retention", seeds=2_000),
    simulate("disks", seeds=1_000),
    simulate("indexonly", seeds=1_000),
    simulate("consumers", seeds=1_000),
    simulate("conditions", seeds=1_000),
    simulate("sequence", seeds=2_000),
    simulate("graph", seeds=2_000),
    *[fuzz_layer(layer, inputs=1_000_000) for layer in fuzz.layers()],
    planted_all(),
    *ON_REAL_CLUSTERS,
    *ON_REAL_JOURNALS,
    *ON_PROOFS,
    *ON_CONSUMERS,
    *ON_CONDITIONS,
    *ON_REAL_SEQUENCES,
    *ON_FAST_JOURNALS,
    *OF_PIPELINES,
    *OF_EXECUTORS,
    *ON_SINKS,
    *DRILLS,
]
