"""The options and the output of `verify` and `pipeline verify`, which print the same about the same log.

Standard output has one violation per line and nothing else. Standard error says what was verified: in a sentence, or,
with `--output json`, in one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from chaplain.cli.support.log_source import cluster_folder
from chaplain.cli.support.output import BREAK_FOUND, F, escaped, print_rows
from chaplain.config import load_cluster
from chaplain.segment.files import refuse_other_versions
from chaplain.verification.access import access_errors
from chaplain.verification.plan import local_folders
from chaplain.verification.violations import FIELDS, Break, break_fields

COLUMNS = (*FIELDS[:2], "last", *FIELDS[2:], "node", "file")


def verify_options(command: F) -> F:
    """Add the options of a verification, apart from those that choose the log."""
    for option in reversed(
        (
            click.option("--stream", default="", metavar="S", help="Report only breaks of this stream."),
            click.option("--manifest", metavar="FILE",
                         help="Continue after the part that this manifest covers, then update it."),
            click.option("--identity", default="", metavar="FILE", help="Identity that signs the manifest."),
            click.option("--signatures", is_flag=True, help="Also verify the signature of every request."),
            click.option("--founding", default="", metavar="FILE",
                         help="node.toml with the initial configuration, if there is none beside the segments."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def check_log(cluster: str, path: str) -> None:
    """Raise if there is no such log, if it cannot be read, or if another version of chaplain wrote it.

    The segments alone suffice for a cluster, as restored from a backup.
    """
    with access_errors():
        folders = local_folders(Path(cluster)) if cluster else [Path(path)]
        for folder in folders:
            folder.stat()  # raises if it does not exist
            refuse_other_versions(folder)
    if cluster and not folders:
        load_cluster(cluster_folder(cluster))


def print_result(output: str, breaks: Sequence[Break], told: Sequence[str], summary: Mapping[str, Any]) -> None:
    """Print the breaks and what was verified. Ends the command with `BREAK_FOUND` if there are breaks."""
    explicit = click.get_current_context().get_parameter_source("output") is not click.core.ParameterSource.DEFAULT
    if output == "json" and explicit:
        whole = {"whole": not breaks, "breaks": len(breaks)}
        click.echo(json.dumps({**whole, **summary}), err=True)
    else:
        for text in told:  # even if standard error is no terminal: it says what was not verified
            click.echo(escaped(text), err=True)
    print_rows([break_fields(one) for one in breaks], COLUMNS)
    if breaks:
        raise click.exceptions.Exit(BREAK_FOUND)
