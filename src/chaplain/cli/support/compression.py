"""The parts that `chaplain compress` and `chaplain pipeline compress` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.output import (
    BREAK_FOUND,
    F,
    cluster_option,
    escaped,
    output_option,
    print_json,
    print_table,
    progress,
)

if TYPE_CHECKING:
    from chaplain.verification.compress import Freed


def compress_options(command: F) -> F:
    """Add the options that say which log is dropped up to where."""
    stream = click.option("--stream", required=True, metavar="S", help="The stream that --through refers to.")
    through = click.option(
        "--through", type=click.IntRange(0), metavar="OFFSET", help="Last offset to drop.  [default: the stream's last]"
    )
    node = click.option(
        "--node", type=click.IntRange(1), metavar="I", help="Verify the log of node I; request the checkpoint there."
    )
    return cluster_option(stream(through(node(output_option(command)))))


def drop_verified(
    run: Callable[..., list[Freed]], cluster: str, stream: str, through: int | None, node: int | None, output: str
) -> None:
    """Verify and drop with this function, and print what each node dropped, or the breaks."""
    from chaplain.verification.compress import Broken  # noqa: PLC0415  `--help` needs no client
    from chaplain.verification.violations import break_fields  # noqa: PLC0415

    try:
        freed = run(cluster=cluster, stream=stream, through=through, node=node, tell=progress)
    except Broken as broken:
        for one in broken.breaks:
            print_json(break_fields(one))
        click.echo(escaped(str(broken)), err=True)
        raise click.exceptions.Exit(BREAK_FOUND) from None
    columns = ("node", "segments", "bytes", "first", "done")
    rows = [{name: getattr(one, name) for name in columns} for one in freed]
    if output == "json":
        print_json(rows)
    else:
        print_table(columns, rows, "Segments and bytes that were deleted, and the first message of each log now.")
