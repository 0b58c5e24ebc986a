"""`chaplain demo`: the main job, end to end, with a verdict."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.output import output_option, print_json, print_table

if TYPE_CHECKING:
    from chaplain.demo.steps import Scene

CLUSTER = "cluster"
REPORT = "report.html"
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(epilog="Example: chaplain demo --out demo-out")
@click.option("--out", type=_FOLDER, default=Path("demo-out"), show_default=True, help="Where everything goes.")
@click.option("--no-spark", is_flag=True, help="Leave out the tables, the proof and the report.")
@output_option
def demo(out: Path, no_spark: bool, output: str) -> None:
    """Start three nodes, use every stream kind there is, kill the journal's master with -9 half-way, land, prove and
    fold everything with Spark, and compare promises with findings.

    Makes the directory anew and leaves the nodes' logs, the tables and report.html in it. Stops what it started.
    """
    from chaplain.demo.findings import Findings  # noqa: PLC0415
    from chaplain.runtime.cluster.create import make_cluster  # noqa: PLC0415
    from chaplain.runtime.cluster.local import bring_down, bring_up  # noqa: PLC0415

    scenes = _programme(with_spark=not no_spark)
    directory = (out / CLUSTER).resolve()
    _clear(out, directory)
    make_cluster(directory, 3, "sqlite", None)
    findings = Findings()
    try:
        _tell("starting three nodes")
        bring_up(directory, _tell)
        for scene in scenes:
            scene(directory, findings, _tell)
    finally:
        _tell("stopping what was started")
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


def _programme(*, with_spark: bool) -> list[Scene]:
    from chaplain.demo.steps import SCENES, spark_scene  # noqa: PLC0415

    if not with_spark:
        return list(SCENES)
    try:
        return [*SCENES, spark_scene()]
    except ImportError as absent:
        _tell(f"{absent.name} is not installed, so Spark is left out: pip install 'chaplain[spark]'")
        return list(SCENES)


def _clear(out: Path, directory: Path) -> None:
    """Remove what an earlier demo left, and nothing else."""
    from chaplain.runtime.cluster.local import bring_down  # noqa: PLC0415

    if (directory / "cluster.toml").exists():
        bring_down(directory)
        shutil.rmtree(directory)
        shutil.rmtree(out / "tables", ignore_errors=True)
        for name in (REPORT, "manifest.json"):
            (out / name).unlink(missing_ok=True)


def _tell(text: str) -> None:
    click.echo(f"  {text}", err=True)
