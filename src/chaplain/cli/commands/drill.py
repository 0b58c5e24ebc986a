"""`chaplain drill`: break a cluster on purpose and check every promise."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.output import cluster_option, output_option, print_json, print_table, progress

if TYPE_CHECKING:
    from chaplain.drill.drill import DrillVerdict
    from chaplain.drill.violations import BrokenPromise, Judged

BREAK_FOUND = 3
BREAKS_SHOWN = 50


@click.command(epilog="Example: chaplain drill --cluster demo --minutes 2")
@cluster_option
@click.option("--minutes", type=click.FloatRange(0.05, 1440), default=2.0, show_default=True, help="How long.")
@click.option("--kinds", default="all", show_default=True, help="Which streams: journal,graph,sequence,pool.")
@click.option("--node", type=click.IntRange(1), metavar="I", help="Strike node I, and no other.")
@click.option("--seed", type=int, help="The same blows in the same order.  [default: others each time]")
@output_option
def drill(cluster: str, minutes: float, kinds: str, node: int | None, seed: int | None, output: str) -> None:
    """Kill, pause and cut off nodes of a cluster on this machine, under load, then check what clients saw.

    Writes to streams of its own, under an identity of its own. Whatever it breaks it restores. Exit code 3: a promise
    was not kept.
    """
    from chaplain.config import find_cluster  # noqa: PLC0415
    from chaplain.drill.drill import Drill  # noqa: PLC0415

    directory = find_cluster(cluster).parent.resolve()
    verdict = Drill(directory, minutes * 60, random.Random(seed), progress, kinds=_chosen(kinds), only=node).run()
    if output == "json":
        print_json(_shape(verdict))
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


def _shape(verdict: DrillVerdict) -> dict[str, object]:
    gaps = sorted(verdict.gaps_s)
    return {
        "clean": not verdict.breaks,
        "blows": verdict.blows,
        "acknowledged": verdict.acknowledged,
        "unknown": verdict.unknown,
        "refused": verdict.refused,
        "gap_median_s": round(gaps[len(gaps) // 2], 3) if gaps else None,
        "gap_max_s": round(gaps[-1], 3) if gaps else None,
        "kinds": {judged.of: _line(verdict, judged) for judged in verdict.kinds},
        "breaks": [_row(one) for one in verdict.breaks],
        "left_out": list(verdict.left_out),
    }


def _line(verdict: DrillVerdict, judged: Judged) -> dict[str, object]:
    breaks = sum(one.of == judged.of for one in verdict.breaks)
    counts = {"acknowledged": judged.acknowledged, "unknown": judged.unknown, "refused": judged.refused}
    losses = {"lost": judged.lost, "told": judged.told, "untold": judged.untold} if judged.of == "pool" else {}
    return {"clean": not breaks, **counts, **losses, "breaks": breaks, "left_out": list(judged.left_out)}


def _row(one: BrokenPromise) -> dict[str, object]:
    return {"of": one.of, "kind": one.kind, "offset": one.offset, "detail": one.detail}


def _print(verdict: DrillVerdict) -> None:
    shape = _shape(verdict)
    print_table(["blow", "times"], [{"blow": blow, "times": times} for blow, times in verdict.blows.items()])
    columns = ["stream", "acknowledged", "unknown", "refused", "lost", "breaks"]
    lines = [{"stream": judged.of, **_line(verdict, judged)} for judged in verdict.kinds]
    print_table(columns, [{"lost": "", **line} for line in lines])
    shown = ("gap_median_s", "gap_max_s")
    print_table(["found", "value"], [{"found": name, "value": shape[name]} for name in shown])
    for one in verdict.left_out:
        click.echo(f"Note: {one}.")
    if not verdict.breaks:
        click.echo("Clean: everything acknowledged is there once, in order, the same on every node.")
        if lost := sum(judged.lost for judged in verdict.kinds):
            told, untold = (sum(getattr(judged, name) for judged in verdict.kinds) for name in ("told", "untold"))
            click.echo(
                f"Pools promise less: {lost} broadcasts were not heard by somebody, who was told so {told} times;"
            )
            click.echo(f"of those lost while all nodes were well, {untold} were not told.")
        return
    rows = [_row(one) for one in verdict.breaks[:BREAKS_SHOWN]]
    print_table(["of", "kind", "offset", "detail"], rows, f"{len(verdict.breaks)} breaks in all")
    click.echo("Keep the cluster's directory as it is and report this: it must never happen.")
