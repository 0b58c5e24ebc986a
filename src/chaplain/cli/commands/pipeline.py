"""`chaplain pipeline`: lands streams in tables, verifies, folds and compresses them, and writes reports, with Spark.

The commands check arguments and paths before they start Spark, because Spark takes seconds to start. They import Spark
only when they run it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import click

from chaplain.cli.support.compression import compress_options, drop_verified
from chaplain.cli.support.log_source import cluster_folder, log_source, one_source
from chaplain.cli.support.output import (
    F,
    escaped,
    print_json,
    progress,
)
from chaplain.cli.support.verification import check_log, print_result, read_tree, verify_options
from chaplain.errors import ConfigError, Missing
from chaplain.json_values import json_value, timestamp
from chaplain.verification.verify import signing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SparkCommands(click.Group):
    """Turns Spark's exceptions into chaplain's errors, which are one sentence long."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as wrong:
            spark = sys.modules.get("pyspark.errors")  # Spark raised nothing if it was not imported
            if spark is None or not isinstance(wrong, spark.PySparkException):
                raise
            from chaplain.pipeline.source.spark_errors import sentence  # noqa: PLC0415 Spark is heavy

            raise sentence(wrong) from wrong


@click.group(
    cls=SparkCommands, epilog="Example: chaplain pipeline land --cluster demo --stream orders --tables tables --once"
)
def pipeline() -> None:
    """Land, verify, fold, compress and report streams with Spark."""


def _spark(command: F) -> F:
    """Add the options that choose where Spark runs, and how. `_session` takes the last three from the context."""
    master = click.option("--master", default="", metavar="M", help="Spark master.  [default: local[*]]")
    remote = click.option("--remote", default="", metavar="R", help="Spark Connect server, such as sc://host:15002.")
    conf = click.option("--conf", multiple=True, metavar="KEY=VALUE", callback=_settings, expose_value=False,
                        help="Spark configuration property; repeatable.")  # fmt: skip
    packages = click.option("--packages", default="", metavar="LIST", callback=_note, expose_value=False,
                            help="Maven coordinates of jars for Spark, with commas.")  # fmt: skip
    py_files = click.option("--py-files", default="", metavar="LIST", callback=_note, expose_value=False,
                            help="Python files and archives for the workers, with commas.")  # fmt: skip
    return master(remote(conf(packages(py_files(command)))))


def _note(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    ctx.meta[f"{__name__}.{parameter.name}"] = value
    return value


def _settings(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Any:
    if wrong := [pair for pair in value if not pair.partition("=")[0].startswith("spark.") or "=" not in pair]:
        raise click.BadParameter(f"{wrong[0]}: write it as spark.KEY=VALUE")
    return _note(ctx, parameter, dict(pair.split("=", 1) for pair in value))


def _always_once(command: F) -> F:
    """Accept `--once`, which has no effect, so that scripts can pass it to every job."""
    return click.option("--once", is_flag=True, expose_value=False, hidden=True)(command)


def _tables(required: bool) -> Callable[[F], F]:
    attributes: dict[str, Any] = {"required": True} if required else {"default": ""}
    return click.option("--tables", metavar="DIR", help="Directory of the landed tables.", **attributes)


@pipeline.command(epilog="Example: chaplain pipeline land --cluster demo --stream orders --tables tables --once")
@log_source
@click.option("--stream", required=True, metavar="S", help="The stream to land.")
@_tables(required=True)
@click.option("--once", is_flag=True, help="Stop when all present messages have landed.")
@click.option("--format", "kind", type=click.Choice(["delta", "parquet"]), default="delta", show_default=True,
              help="Table format.")  # fmt: skip
@click.option(
    "--storage-option", "storage", multiple=True, metavar="K=V", help="Option of the table storage; repeatable."
)
@click.option("--keep-malformed-headers", "lenient", is_flag=True,
              help="Land malformed headers under an empty name instead of stopping.")  # fmt: skip
@_spark
def land(cluster: str, path: str, node: int | None, output: str, stream: str, tables: str, once: bool, kind: Any,
         storage: tuple[str, ...], lenient: bool, master: str, remote: str) -> None:  # fmt: skip
    """Write a stream to a table, each message exactly once. Runs until interrupted, or with --once to the end."""
    cluster, path = one_source(cluster, path, node)
    wrong = [pair for pair in storage if "=" not in pair]
    if wrong:
        raise click.UsageError(f"--storage-option {wrong[0]}: write it as K=V")
    _check_writable(tables)
    spark = _session(master, remote, cluster, path)
    from chaplain.pipeline import land as run  # noqa: PLC0415 Spark is heavy
    from chaplain.pipeline.tables import first_landed  # noqa: PLC0415

    options = dict(pair.split("=", 1) for pair in storage)
    count = run(
        spark, stream=stream, tables=tables, cluster=cluster, path=path, once=once, format=kind,
        storage_options=options, tell=lambda rows: progress(f"{rows:,} messages landed"),
        fail_on_malformed_headers=not lenient,
    )  # fmt: skip
    if first := first_landed(tables, stream, options):
        _print_note(f"the table begins with offset {first}: earlier messages had been dropped from the log")
    if output == "json":
        print_json({"stream": stream, "landed": count})
    else:
        click.echo(f"{count} messages landed")


@pipeline.command(epilog="Example: chaplain pipeline verify --cluster demo --stream orders --signatures")
@log_source
@_tables(required=False)
@verify_options
@_spark
@_always_once
def verify(cluster: str, path: str, node: int | None, output: str, tables: str, stream: str, manifest: str | None,
           identity: str, signatures: bool, founding: str, checkpoint_file: str | None, policy_file: str | None,
           tiles: str | None, master: str, remote: str) -> None:  # fmt: skip
    """Verify a log, a table or both, with Spark. Without Spark, `chaplain verify` verifies a log.

    Each violation is printed as a line of JSON. The exit code is 0 if there is none, 3 if there is any, and 4 if a file
    cannot be read, so that nothing is known of it.

    Standard error says what was verified. For a cluster, that is the complete log of the node that is furthest ahead;
    of the other nodes' logs only the record headers are compared with it. To verify those completely, use --node.
    """
    nodes = cluster
    if cluster or path or not tables:
        cluster, path = one_source(cluster, path, node)
    elif signatures or founding:
        raise click.UsageError("signatures are in the log: give --cluster or --path")
    elif checkpoint_file:
        raise click.UsageError("the tree is over the log: give --cluster or --path")
    tree = read_tree(nodes, checkpoint_file, policy_file, tiles)
    _check_place(master, remote)
    if not remote and (cluster or path):
        check_log(cluster, path)
    spark = _session(master, remote, landed=tables)
    from chaplain.pipeline import find_breaks, prove  # noqa: PLC0415 Spark is heavy

    progress("verifying")
    breaks, told = [], []
    summary: dict[str, Any] = {}
    if manifest:
        identity = signing(identity, cluster)  # the same identity for the log and for the tables
    common: dict[str, Any] = {"manifest": manifest, "identity": identity}
    if cluster or path:
        proof = prove(spark, cluster=cluster, path=path, signatures=signatures, founding=founding, tree=tree, **common)
        breaks += proof.breaks_of(stream)
        told.append(proof.told())
        summary["log"] = proof.summary()
    if tables:
        # Verification of a log with breaks writes no manifest. The table is then compared with the earlier manifest, if
        # one exists.
        known = manifest if manifest and (not breaks or Path(manifest).exists()) else None
        found = find_breaks(spark, tables=tables, stream=stream, tell=told.append, **{**common, "manifest": known})
        breaks += found
        summary["tables"] = {"path": tables, "breaks": len(found)}
    print_result(output, breaks, told, summary)


def _print_note(text: str) -> None:
    """Print on standard error even if that is no terminal: a result without breaks must state what was not verified."""
    click.echo(escaped(text), err=True)


@pipeline.command(epilog="Example: chaplain pipeline fold --tables tables --stream orders")
@log_source
@_tables(required=False)
@click.option("--stream", required=True, metavar="S", help="The stream to fold.")
@click.option("--keep-keyless", is_flag=True, help="Keep all rows without a key instead of leaving them out.")
@click.option("--out", default="", metavar="DIR", help="Write the rows there as Parquet instead of printing them.")
@click.option("--fingerprint", "summed", is_flag=True,
              help="Fold a database's row changes in --path and print only their fingerprint.")  # fmt: skip
@_spark
@_always_once
def fold(cluster: str, path: str, node: int | None, output: str, tables: str, stream: str, keep_keyless: bool, out: str,
         summed: bool, master: str, remote: str) -> None:  # fmt: skip
    """Print the latest row of each key, one per line, sorted by key."""
    if summed:
        _fold_row_changes(path, stream, master, remote)
        return
    if out and Path(out).exists():
        raise ConfigError(f"{out} is there already: choose another folder for the rows")
    if tables and not path:
        cluster = ""
    else:
        cluster, path = one_source(cluster, path, node)
    spark = _session(master, remote, cluster, path, landed=tables)
    from chaplain.pipeline import fold as run  # noqa: PLC0415 Spark is heavy
    from chaplain.pipeline import table, table_path  # noqa: PLC0415
    from chaplain.pipeline.source.spark_errors import each  # noqa: PLC0415

    rows = table(spark, table_path(tables, stream)) if tables else _read(spark, cluster, path, stream)
    folded = run(rows, keep_keyless=keep_keyless).orderBy("key", "offset")
    if out:
        folded.write.parquet(out)
        return
    columns = ["topic", "offset", "key", "value", "client_id", "client_message_id"]
    for row in each(folded.selectExpr(*columns, "unix_micros(timestamp) as time_us")):
        print_json(
            {
                "stream": row.topic,
                "offset": row.offset,
                "key": None if row.key is None else json_value(bytes(row.key)),
                "value": json_value(bytes(row.value)),
                "timestamp": timestamp(row.time_us * 1000),
                "client_id": row.client_id,
                "client_message_id": row.client_message_id,
            }
        )


def _fold_row_changes(path: str, stream: str, master: str, remote: str) -> None:
    if not path:
        raise click.UsageError("--fingerprint: give --path, such as demo/node-1/databases/rows/main")
    spark = _session(master, remote, path=path)
    from chaplain.pipeline.landing.row_changes import fingerprint_at  # noqa: PLC0415 Spark is heavy

    click.echo(fingerprint_at(spark, path, stream).hex())


@pipeline.command(epilog="Example: chaplain pipeline compress --cluster demo --stream orders --through 99999")
@compress_options
@_spark
@_always_once
def compress(cluster: str, stream: str, through: int | None, node: int | None, output: str, master: str,
             remote: str) -> None:  # fmt: skip
    """Verify the log, then let the nodes drop the part that a checkpoint covers, of all streams.

    A log with a break stays unchanged: the breaks are printed as `verify` prints them, and the exit code is 3.
    """
    spark = _session(master, remote)
    from chaplain.pipeline import compress as run  # noqa: PLC0415 Spark is heavy

    drop_verified(partial(run, spark), cluster, stream, through, node, output)


def _read(spark: SparkSession, cluster: str, path: str, stream: str) -> DataFrame:
    source = ("cluster", cluster) if cluster else ("path", path)
    return spark.read.format("chaplain").option(*source).option("subscribe", stream).load()


@pipeline.command(epilog="Example: chaplain pipeline report --tables tables --out report.html")
@log_source
@_tables(required=True)
@click.option("--stream", default="", metavar="S", help="Only this stream.")
@click.option("--out", default="report.html", show_default=True, metavar="FILE", help="The HTML file to write.")
@_spark
@_always_once
def report(cluster: str, path: str, node: int | None, output: str, tables: str, stream: str, out: str, master: str,
           remote: str) -> None:  # fmt: skip
    """Write an HTML report of landed streams: rates, regimes, failovers, messages by client, gaps.

    With --cluster or --path the report also lists the breaks of that log.
    """
    if cluster or path:
        cluster, path = one_source(cluster, path, node)
    spark = _session(master, remote, cluster, path, landed=tables)
    from chaplain.pipeline import report as run  # noqa: PLC0415 Spark is heavy

    run(spark, tables=tables, out=out, stream=stream, cluster=cluster, path=path)
    if output == "json":
        print_json({"report": out})
    else:
        click.echo(f"{out} is written")


def _session(master: str, remote: str, cluster: str = "", path: str = "", landed: str = "") -> SparkSession:
    """Start Spark, after the checks that need no Spark: starting it takes seconds."""
    _check_place(master, remote)
    noted = {name: click.get_current_context().meta[f"{__name__}.{name}"] for name in ("conf", "packages", "py_files")}
    if remote and noted["packages"]:
        raise click.UsageError("--packages: jars are the Connect server's; give them where it is started")
    settings: dict[str, str] = dict(noted["conf"])
    if noted["packages"]:
        settings["spark.jars.packages"] = noted["packages"]
    py_files = [file.strip() for file in noted["py_files"].split(",") if file.strip()]
    if missing := [file for file in py_files if not Path(file).exists()]:
        raise Missing(f"--py-files: there is no {missing[0]}")
    if not remote:
        _check_sources(cluster, path, landed)
    try:
        from chaplain.pipeline import local_session  # noqa: PLC0415 Spark is heavy
    except ImportError as absent:
        raise ConfigError(f"{absent.name} is not installed: pip install 'chaplain[spark]'") from None
    progress("starting Spark")
    where = master or settings.pop("spark.master", "local[*]")
    return local_session(where, remote=remote, settings=settings, py_files=py_files)


def _check_place(master: str, remote: str) -> None:
    if master and remote:
        raise click.UsageError("give either --master or --remote")


def _check_writable(tables: str) -> None:
    """Raise if tables cannot be stored there. Creates no directory, because the stream may not exist."""
    if "://" in tables:
        return
    there = next(folder for folder in (Path(tables).absolute(), *Path(tables).absolute().parents) if folder.exists())
    if not there.is_dir():
        raise ConfigError(f"tables cannot be kept in {tables}: {there} is no folder")
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as wrong:
        raise ConfigError(
            f"tables cannot be kept in {tables}: nothing can be written there ({wrong.strerror})"
        ) from None


def _check_sources(cluster: str, path: str, landed: str) -> None:
    """Raise if the sources do not exist. For a cluster, a node's `segments` directory is enough, for example one that
    was restored from a backup.
    """
    from chaplain.segment.files import refuse_other_versions  # noqa: PLC0415

    folders = list(cluster_folder(cluster).glob("node-*/segments")) if cluster else [Path(path)] if path else []
    for folder in folders:
        refuse_other_versions(folder)
    if cluster and not folders:
        from chaplain.config import load_cluster  # noqa: PLC0415

        load_cluster(cluster)
    if path and not Path(path).is_dir():
        raise Missing(f"there are no segments in {path}: give a node's segments as path")
    if landed and "://" not in landed and not Path(landed).is_dir():
        raise Missing(f"there are no tables in {landed}: land a stream first, with `chaplain pipeline land`")
