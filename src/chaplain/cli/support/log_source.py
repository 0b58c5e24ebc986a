"""The options that choose a log to read, and the checks of these options, for `verify` and the commands of
`pipeline`.
"""

from __future__ import annotations

from pathlib import Path

import click

from chaplain.cli.support.output import F, output_option

_ENVIRONMENT = click.core.ParameterSource.ENVIRONMENT


def log_source(command: F) -> F:
    """Add the options that choose the log to read."""
    cluster = click.option("--cluster", "--dir", default="", metavar="DIR|FILE",
                           help="The cluster's directory, or its cluster.toml.",
                           envvar="CHAPLAIN_CLUSTER", show_envvar=True)  # fmt: skip
    path = click.option("--path", default="", metavar="SEGMENTS", help="Directory of a node's segments.")
    node = click.option("--node", type=click.IntRange(1), metavar="I", help="Read only the files of node I.")
    return cluster(path(node(output_option(command))))


def one_source(cluster: str, path: str, node: int | None) -> tuple[str, str]:
    """Return the cluster or the path to read, one of them empty. `--path` overrides a cluster from the environment."""
    if path and cluster and click.get_current_context().get_parameter_source("cluster") != _ENVIRONMENT:
        raise click.UsageError("give either --cluster or --path")
    if not path and not cluster:
        raise click.UsageError("give either --cluster or --path")
    if node is None:
        return ("", path) if path else (cluster, "")
    if path:
        raise click.UsageError("--node is for --cluster: a path is one node's already")
    return "", str(cluster_folder(cluster) / f"node-{node}" / "segments")


def cluster_folder(cluster: str) -> Path:
    return Path(cluster).parent if Path(cluster).is_file() else Path(cluster)
