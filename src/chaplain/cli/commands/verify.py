"""`chaplain verify`: verifies a log on all processors of this machine, without Spark and Java.

`chaplain pipeline verify` makes the same checks in Spark, for logs that are too large for one machine, and checks
tables.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from chaplain.cli.support.log_source import log_source, one_source
from chaplain.cli.support.verification import check_log, print_result, read_tree, verify_options
from chaplain.errors import Missing
from chaplain.segment.files import list_segments
from chaplain.verification.plan import local_folders
from chaplain.verification.process_pool import VerifyProgress, verify_in_processes
from chaplain.verification.result import counted
from chaplain.verification.verify import verify_log

CLEAR_LINE = "\r\x1b[K"


@click.command(epilog="Example: chaplain verify --cluster demo --signatures")
@log_source
@verify_options
@click.option("--recorded", is_flag=True, help="Verify the sequence streams that nodes recorded, instead of the log.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of processes.  [default: one a processor]")
def verify(cluster: str, path: str, node: int | None, output: str, stream: str, manifest: str | None, identity: str,
           signatures: bool, founding: str, checkpoint_file: str | None, policy_file: str | None, tiles: str | None,
           recorded: bool, workers: int | None) -> None:  # fmt: skip
    """Verify a log on all processors, without Spark.

    Each violation is printed as a line of JSON. The exit code is 0 if there is none, 3 if there is any, and 4 if a file
    cannot be read, so that nothing is known of it.

    Standard error says what was verified. For a cluster, that is the complete log of the node that is furthest ahead;
    of the other nodes' logs only the record headers are compared with it. To verify those completely, use --node.
    """
    nodes = cluster
    cluster, path = one_source(cluster, path, node)
    check_log(cluster, path)
    if recorded:
        _verify_recorded(cluster, path, output, stream)
        return
    tree = read_tree(nodes, checkpoint_file, policy_file, tiles)
    shown = sys.stderr.isatty()
    if shown:
        click.echo("reading the record headers", err=True, nl=False)
    try:
        proof = verify_log(
            partial(verify_in_processes, workers=workers or 0, report=_show if shown else _hide),
            cluster=cluster, path=path, manifest=manifest, identity=identity, signatures=signatures, founding=founding,
            tree=tree,
        )  # fmt: skip
    finally:
        if shown:
            click.echo(CLEAR_LINE, err=True, nl=False)
    print_result(output, proof.breaks_of(stream), [proof.told()], {"log": proof.summary()})


def _verify_recorded(cluster: str, path: str, output: str, stream: str) -> None:
    from chaplain.verification.recorded_sequences import RECORDED_LOG, verify_recorded  # noqa: PLC0415

    folders = [Path(path)] if path else local_folders(Path(cluster))
    folders = [folder for folder in folders if list_segments(folder, RECORDED_LOG)]
    if not folders:
        raise Missing(f"no node recorded a sequence in {path or cluster}: set record.sequence")
    found = verify_recorded(folders)
    breaks = [one for one in found.breaks if not stream or one.stream in ("", stream)]
    said = f"{counted(found.events, 'recorded event')}, {counted(found.streams, 'stream')}"
    said += f": {counted(len(breaks), 'break')}" if breaks else " proven"
    print_result(output, breaks, [said], {"recorded_events": found.events, "recorded_streams": found.streams})


def _show(progress: VerifyProgress) -> None:
    share = progress.done / progress.total if progress.total else 1
    text = f"{share:.0%} verified: {progress.rows:,} messages, {progress.breaks:,} breaks"
    click.echo(f"{CLEAR_LINE}{text}", err=True, nl=False)


def _hide(progress: VerifyProgress) -> None:
    pass
