"""`chaplain demo`: runs the demo and prints what was promised and what was found."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.output import output_option, print_json, print_table

if TYPE_CHECKING:
    from chaplain.demo.steps import Step

CLUSTER = "cluster"
REPORT = "report.html"
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(epilog="Example: chaplain demo --out demo-out")
@click.option("--out", type=_FOLDER, default=Path("demo-out"), show_default=True, help="Directory for all results.")
@click.option("--no-spark", is_flag=True, help="Leave out tables, verification and report.")
@output_option
def demo(out: Path, no_spark: bool, output: str) -> None:
    """Start three nodes, use every stream kind, kill the journal's master with -9 half-way, land, verify and fold
    everything with Spark, and compare what was promised with what was found.

    The command replaces the results of an earlier demo in the directory. It leaves the nodes' logs, the tables and
    report.html there, and stops the nodes. Exit code 1: a promise was not kept.
    """
    from chaplain.demo.findings import Findings  # noqa: PLC0415
    from chaplain.runtime.cluster.create import make_cluster  # noqa: PLC0415
    from chaplain.runtime.cluster.local import bring_down, bring_up  # noqa: PLC0415

    steps = _steps(with_spark=not no_spark)
    directory = (out / CLUSTER).resolve()
    _clear(out, directory)
    make_cluster(directory, 3, "sqlite", None)
    findings = Findings()
    try:
        _print_progress("starting three nodes")
        bring_up(directory, _print_progress)
        for step in steps:
            step(directory, findings, _print_progress)
    finally:
        _print_progress("stopping what was started")
        bring_down(directory)
    rows = [{"promise": f.promise, "promised": f.promised, "found": f.found, "kept": f.kept} for f in findings.all]
    if output == "json":
        print_json({"kept": findings.kept(), "findings": rows})
    else:
        print_table(["promise", "promised", "found", "kept"], rows)
        if (out / REPORT).exists():
            click.echo(f"The plots are in {out / REPORT}; the proof can be had again with")
            click.echo(f"  chaplain pipeline verify --cluster {shlex.quote(str(out / CLUSTER))} --signatures")
        click.echo("Try next: chaplain cluster up --nodes 3 --dir my-cluster, then the first program in README.md.")
    if not findings.kept():
        raise click.exceptions.Exit(1)


def _steps(*, with_spark: bool) -> list[Step]:
    from chaplain.demo.steps import STEPS, spark_step  # noqa: PLC0415

    if not with_spark:
        return list(STEPS)
    try:
        return [*STEPS, spark_step()]
    except ImportError as absent:
        _print_progress(f"{absent.name} is not installed, so Spark is left out: pip install 'chaplain[spark]'")
        return list(STEPS)


def _clear(out: Path, directory: Path) -> None:
    """Remove only the results of an earlier demo."""
    from chaplain.runtime.cluster.local import bring_down  # noqa: PLC0415

    if (directory / "cluster.toml").exists():
        bring_down(directory)
        shutil.rmtree(directory)
        shutil.rmtree(out / "tables", ignore_errors=True)
        for name in (REPORT, "manifest.json"):
            (out / name).unlink(missing_ok=True)


def _print_progress(text: str) -> None:
    click.echo(f"  {text}", err=True)
