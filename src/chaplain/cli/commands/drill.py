"""`chaplain drill`: injects faults into a running cluster and checks every guarantee."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.output import BREAK_FOUND, cluster_option, output_option, print_json, print_table, progress

if TYPE_CHECKING:
    from chaplain.drill.drill import DrillVerdict
    from chaplain.drill.violations import BrokenPromise, KindVerdict

BREAKS_SHOWN = 50
"""The table lists at most this many breaks; JSON output contains all of them."""


@click.command(epilog="Example: chaplain drill --cluster demo --minutes 2")
@cluster_option
@click.option("--minutes", type=click.FloatRange(0.05, 1440), default=2.0, show_default=True, help="Duration.")
@click.option(
    "--kinds", default="all", show_default=True, help="Kinds of streams to use, such as journal,graph,sequence,pool."
)
@click.option("--node", type=click.IntRange(1), metavar="I", help="Inject faults only into node I.")
@click.option("--seed", type=int, help="Inject the same faults in the same order.  [default: random]")
@output_option
def drill(cluster: str, minutes: float, kinds: str, node: int | None, seed: int | None, output: str) -> None:
    """Kill, pause and disconnect nodes of a cluster on this machine under load, then check what clients saw.

    The drill uses a new stream name and a new identity, and undoes every fault. Exit code 3: a promise was not kept.
    """
    from chaplain.config import find_cluster  # noqa: PLC0415
    from chaplain.drill.drill import Drill  # noqa: PLC0415

    directory = find_cluster(cluster).parent.resolve()
    verdict = Drill(directory, minutes * 60, random.Random(seed), progress, kinds=_chosen(kinds), only=node).run()
    if output == "json":
        print_json(_verdict_json(verdict))
    else:
        _print(verdict)
    if verdict.breaks:
        raise click.exceptions.Exit(BREAK_FOUND)


def _chosen(kinds: str) -> tuple[str, ...]:
    from chaplain.drill.violations import KINDS  # noqa: PLC0415

    chosen = KINDS if kinds == "all" else tuple(kind.strip() for kind in kinds.split(","))
    if unknown := [kind for kind in chosen if kind not in KINDS]:
        raise click.UsageError(f"there is no kind of stream {unknown[0]!r} to drill: choose from {', '.join(KINDS)}")
    return chosen


def _verdict_json(verdict: DrillVerdict) -> dict[str, object]:
    """Return the verdict as JSON. The keys are part of the public output, also where the code has other names."""
    gaps = sorted(verdict.gaps_s)
    return {
        "clean": not verdict.breaks,
        "blows": verdict.faults,
        "acknowledged": verdict.acknowledged,
        "unknown": verdict.unknown,
        "refused": verdict.refused,
        "gap_median_s": round(gaps[len(gaps) // 2], 3) if gaps else None,
        "gap_max_s": round(gaps[-1], 3) if gaps else None,
        "kinds": {kind.stream_kind: _kind_json(verdict, kind) for kind in verdict.kinds},
        "breaks": [_break_json(one) for one in verdict.breaks],
        "left_out": list(verdict.left_out),
    }


def _kind_json(verdict: DrillVerdict, kind: KindVerdict) -> dict[str, object]:
    breaks = sum(one.stream_kind == kind.stream_kind for one in verdict.breaks)
    counts = {"acknowledged": kind.acknowledged, "unknown": kind.unknown, "refused": kind.refused}
    pool = {"lost": kind.lost, "told": kind.reported, "untold": kind.unreported} if kind.stream_kind == "pool" else {}
    return {"clean": not breaks, **counts, **pool, "breaks": breaks, "left_out": list(kind.left_out)}


def _break_json(one: BrokenPromise) -> dict[str, object]:
    return {"of": one.stream_kind, "kind": one.kind, "offset": one.offset, "detail": one.detail}


def _print(verdict: DrillVerdict) -> None:
    shape = _verdict_json(verdict)
    print_table(["fault", "times"], [{"fault": fault, "times": times} for fault, times in verdict.faults.items()])
    columns = ["stream", "acknowledged", "unknown", "refused", "lost", "breaks"]
    lines = [{"stream": kind.stream_kind, **_kind_json(verdict, kind)} for kind in verdict.kinds]
    print_table(columns, [{"lost": "", **line} for line in lines])
    shown = ("gap_median_s", "gap_max_s")
    print_table(["found", "value"], [{"found": name, "value": shape[name]} for name in shown])
    for one in verdict.left_out:
        click.echo(f"Note: {one}.")
    if not verdict.breaks:
        click.echo("Clean: every acknowledged message is there once, in order, and the same on every node.")
        if lost := sum(kind.lost for kind in verdict.kinds):
            reported = sum(kind.reported for kind in verdict.kinds)
            unreported = sum(kind.unreported for kind in verdict.kinds)
            click.echo(f"Pools are best effort: listeners missed {lost} broadcasts and were informed {reported} times;")
            click.echo(f"of the broadcasts lost while all nodes were up, {unreported} were not reported.")
        return
    rows = [_break_json(one) for one in verdict.breaks[:BREAKS_SHOWN]]
    print_table(["of", "kind", "offset", "detail"], rows, f"{len(verdict.breaks)} breaks in all")
    click.echo("Keep the cluster's directory as it is and report this: it must never happen.")
