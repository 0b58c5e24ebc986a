"""The options and the output of `verify` and `pipeline verify`. Both print the same result for the same log.

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
from chaplain.config import CLUSTER_FILE, load_cluster
from chaplain.errors import Malformed, Unproven
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
            click.option("--checkpoint", "checkpoint_file", metavar="FILE",
                         help="Compare the log with this signed checkpoint; needs --policy."),
            click.option("--policy", "policy_file", metavar="FILE", help="The keys that must have signed it."),
            click.option("--tiles", metavar="DIR",
                         help="Directory that contains the log's `tile`.  [default: `tree` beside the segments]"),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def read_tree(cluster: str, checkpoint_file: str | None, policy_file: str | None, tiles: str | None) -> Any:
    """Check a signed checkpoint, and return where the leaves of its tree are; None if none is given. Nodes of the
    cluster, if it runs, are asked for the last leaves, which are in no file yet.

    Ends the command with `BREAK_FOUND` if the checkpoint does not hold.
    """
    if checkpoint_file is None:
        if policy_file is not None or tiles is not None:
            raise click.UsageError("--policy and --tiles are for --checkpoint")
        return None
    if policy_file is None:
        raise click.UsageError("--checkpoint needs --policy: without keys, a checkpoint proves nothing")
    from chaplain.proofs import checkpoint as checkpoints  # noqa: PLC0415
    from chaplain.proofs import policy  # noqa: PLC0415
    from chaplain.proofs.tiles import TILE_HASHES, bundle_path  # noqa: PLC0415
    from chaplain.runtime.http.tile_client import fetch_part  # noqa: PLC0415
    from chaplain.verification.tree_check import TreeSource  # noqa: PLC0415

    try:
        with access_errors():
            signed = checkpoints.parse(Path(checkpoint_file).read_bytes())
            policy.check(policy.parse(Path(policy_file).read_bytes()), signed)
    except (Malformed, Unproven) as error:
        click.echo(f"chaplain: {escaped(f'{checkpoint_file}: not proven: {error}')}", err=True)
        raise click.exceptions.Exit(BREAK_FOUND) from None
    size, tail = signed.checkpoint.size, b""
    if cluster and not tiles and size % TILE_HASHES and Path(cluster_folder(cluster), CLUSTER_FILE).exists():
        http = [node.http for node in load_cluster(cluster_folder(cluster)).nodes if node.http]
        last = size // TILE_HASHES
        tail = fetch_part(http, bundle_path(last, size % TILE_HASHES)) or b""
    return TreeSource(signed.checkpoint.text, tiles or "", tail)


def check_log(cluster: str, path: str) -> None:
    """Raise if there is no such log, if it cannot be read, or if another version of chaplain wrote it.

    For a cluster, a node's `segments` directory is enough, for example one that was restored from a backup.
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
