"""`chaplain pipeline`: streams into Spark, tables, and proofs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaplain.cli.show import put_json
from chaplain.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BROKEN = 3


@click.group()
def pipeline() -> None:
    """Land streams in tables and prove them, with Spark."""


_CLUSTER = click.option("--cluster", default="", metavar="DIR", help="Folder of a cluster on this machine.")
_PATH = click.option("--path", default="", metavar="DIR", help="Folder of a node's segments.")
_MASTER = click.option("--master", default="local[2]", show_default=True, metavar="M", help="Where Spark runs.")


@pipeline.command(epilog="Example: chaplain pipeline verify --cluster demo --stream orders")
@_CLUSTER
@_PATH
@_MASTER
@click.option("--stream", default="", metavar="S", help="Leave out the breaks of other streams.")
def verify(cluster: str, path: str, master: str, stream: str) -> None:
    """Prove a log whole: print nothing, or every break as a line of JSON, and exit with 3."""
    spark = _session(cluster, path, master)
    from chaplain.pipeline import find_breaks  # noqa: PLC0415 Spark is heavy

    breaks = find_breaks(spark, cluster=cluster, path=path, stream=stream)
    for one in breaks:
        fields = ("stream", "offset", "kind", "expected", "found")
        put_json({name: getattr(one, name) for name in fields})
    if breaks:
        raise click.exceptions.Exit(_BROKEN)


@pipeline.command(epilog="Example: chaplain pipeline land --cluster demo --stream orders --tables tables --once")
@_CLUSTER
@_PATH
@_MASTER
@click.option("--stream", required=True, metavar="S", help="The stream to land.")
@click.option("--tables", required=True, metavar="DIR", help="Folder of tables.")
@click.option("--once", is_flag=True, help="End when everything there is has landed.")
def land(cluster: str, path: str, master: str, stream: str, tables: str, once: bool) -> None:
    """Write a stream to a Delta table, each message exactly once; go on until interrupted."""
    spark = _session(cluster, path, master)
    from chaplain.pipeline import land as run  # noqa: PLC0415 Spark is heavy

    count = run(spark, stream=stream, tables=tables, cluster=cluster, path=path, once=once)
    click.echo(f"{count} messages landed")


def _session(cluster: str, path: str, master: str) -> SparkSession:
    if bool(cluster) == bool(path):
        raise click.UsageError("give either --cluster or --path")
    try:
        from chaplain.pipeline import local_session  # noqa: PLC0415 Spark is heavy
    except ImportError as absent:
        raise ConfigError(f"{absent.name} is not installed: pip install 'chaplain[spark]'") from None
    return local_session(master)
