"""`chaplain compress`: verifies a log on this machine, without Spark, then has the nodes drop its beginning."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.compression import compress_options, drop_verified

if TYPE_CHECKING:
    from pathlib import Path

    from chaplain.verification.result import VerifyResult


@click.command(epilog="Example: chaplain compress --cluster demo --stream orders --through 99999")
@compress_options
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of processes.  [default: one a processor]")
def compress(
    cluster: str, stream: str, through: int | None, node: int | None, output: str, workers: int | None
) -> None:
    """Verify the log, then let the nodes drop the part that a checkpoint covers, of all streams.

    A log with a break stays unchanged: the breaks are printed as `verify` prints them, and the exit code is 3.
    """
    from chaplain.verification.compress import compress as run  # noqa: PLC0415  `--help` needs no client
    from chaplain.verification.process_pool import verify_in_processes  # noqa: PLC0415
    from chaplain.verification.verify import verify_log  # noqa: PLC0415

    def verify(*, cluster: str = "", path: str | Path = "") -> VerifyResult:
        in_processes = partial(verify_in_processes, workers=workers or 0, report=lambda _: None)
        return verify_log(in_processes, cluster=cluster, path=path)

    drop_verified(partial(run, verify), cluster, stream, through, node, output)
