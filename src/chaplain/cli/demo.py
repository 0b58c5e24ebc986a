"""`chaplain demo`: the main job, end to end, with a verdict."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from chaplain.cli.show import output_option, put_json, put_table

CLUSTER = "cluster"


@click.command(epilog="Example: chaplain demo --out demo-out")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("demo-out"), show_default=True)
@output_option
def demo(out: Path, output: str) -> None:
    """Start three nodes, use every stream kind there is, kill a node with -9, and compare promises with findings.

    Makes the directory anew and leaves the nodes' logs in it. Stops what it started.
    """
    from chaplain.demo.findings import Findings  # noqa: PLC0415
    from chaplain.demo.programme import SCENES  # noqa: PLC0415
    from chaplain.runtime.founding import make_cluster  # noqa: PLC0415
    from chaplain.runtime.local import bring_down, bring_up  # noqa: PLC0415

    directory = (out / CLUSTER).resolve()
    if (directory / "cluster.toml").exists():
        bring_down(directory)
        shutil.rmtree(directory)
    make_cluster(directory, 3, "none", None)
    findings = Findings()
    try:
        _tell("starting three nodes")
        bring_up(directory, _tell)
        for scene in SCENES:
            scene(directory, findings, _tell)
    finally:
        _tell("stopping what was started")
        bring_down(directory)
    rows = [{"promise": f.promise, "promised": f.promised, "found": f.found, "kept": f.kept} for f in findings.all]
    if output == "json":
        put_json({"kept": findings.kept(), "findings": rows})
    else:
        put_table(["promise", "promised", "found", "kept"], rows)
        click.echo("Try next: chaplain cluster up --nodes 3 --dir my-cluster, then the first program in README.md.")
    if not findings.kept():
        raise click.exceptions.Exit(1)


def _tell(text: str) -> None:
    click.echo(f"  {text}", err=True)
