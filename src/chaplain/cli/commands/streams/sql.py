"""`chaplain sql`: executes statements on a stream's database, queries it, and shows and checks results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from chaplain.cli.support.connection_options import cluster_options, connected
from chaplain.cli.support.output import BREAK_FOUND, F, print_json, print_table, progress
from chaplain.errors import Missing
from chaplain.json_values import json_value, timestamp

if TYPE_CHECKING:
    from chaplain.client.types.sql import Result, Row

_RESULT = ["offset", "client_id", "client_message_id", "ok", "changes", "rows", "error"]


def _stream(command: F) -> F:
    return click.option(
        "--stream", default="main", show_default=True, metavar="S", help="Stream whose database to use."
    )(command)


def _parameters(command: F) -> F:
    text = 'Value of the next ? in the statement: a number, null or text. Write "1" with JSON quotes for the text 1.'
    return click.option("--param", "parameters", multiple=True, metavar="V", help=text)(command)


@click.group(epilog="Example: chaplain sql query 'select 1' --cluster demo")
def sql() -> None:
    """Execute statements in one agreed order on every node's database, and query it."""


@sql.command(
    "exec", epilog='Example: chaplain sql exec "insert into t values (?, ?)" --param 1 --param one --cluster demo'
)
@click.argument("statement")
@_stream
@_parameters
@cluster_options
def execute(
    statement: str, stream: str, parameters: tuple[str, ...], cluster: str, node: int | None, output: str
) -> None:
    """Execute STATEMENT as one transaction and show its result. Exit code 1: it failed."""
    with connected(cluster, node) as client:
        result = client.sql(stream).execute(statement, [*map(_value, parameters)])
    if output == "json":
        print_json(result_json(result))
    elif result.rows:
        _put_rows(result.rows)
    else:
        click.echo(f"Done: {result.changes} rows changed, at offset {result.offset} of {stream}.")


@sql.command(epilog='Example: chaplain sql query "select * from t" --cluster demo --output json')
@click.argument("statement")
@_stream
@_parameters
@click.option(
    "--local",
    is_flag=True,
    help="Read the node's present state without asking how far the other nodes are; it may be stale.",
)
@cluster_options
def query(
    statement: str,
    stream: str,
    parameters: tuple[str, ...],
    local: bool,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Show the rows of a SELECT. It sees everything that was agreed when it began."""
    with connected(cluster, node) as client:
        rows = client.sql(stream).query(statement, [*map(_value, parameters)], local)
    if output == "json":
        print_json([row_json(row) for row in rows])
    else:
        _put_rows(rows)


@sql.command(epilog="Example: chaplain sql results --delete --cluster demo")
@_stream
@click.option(
    "--through",
    nargs=2,
    type=click.IntRange(min=1),
    metavar="LANE ID",
    help="Only requests of this lane (client_id) up to this request (client_message_id).",
)
@click.option("--delete", is_flag=True, help="Show all of them, and delete what was shown.")
@cluster_options
def results(
    stream: str, through: tuple[int, int] | None, delete: bool, cluster: str, node: int | None, output: str
) -> None:
    """Show the stored results of statements, including those that `sql exec` has shown: the oldest ones first, as many
    as fit into one answer of a node.
    """
    with connected(cluster, node) as client:
        found = client.sql(stream).results(through, delete=delete)
    if output == "json":
        print_json([result_json(result) for result in found])
    else:
        shown = [{**dict(one), "rows": len(one.rows), "error": (one.error or {}).get("message")} for one in found]
        print_table(_RESULT, shown)


@sql.command(epilog="Example: chaplain sql check --cluster demo --node 2")
@click.option("--stream", default="", metavar="S", help="Check only the database of this stream.")
@cluster_options
def check(stream: str, cluster: str, node: int | None, output: str) -> None:
    """Check all rows of the SQLite databases on this machine, and of their copies. Exit code 3: one is damaged.

    Nodes may be up or down. The command changes nothing. A running node repairs a damaged database by itself when it
    finds the damage, at the latest when it is started after a kill.
    """
    from chaplain.config import choose_nodes, find_cluster, load_cluster  # noqa: PLC0415
    from chaplain.runtime.databases.sqlite.integrity import check_report, files_in  # noqa: PLC0415

    directory = find_cluster(cluster).parent
    folders = [
        (one.id, directory / f"node-{one.id}" / "databases") for one in choose_nodes(load_cluster(cluster).nodes, node)
    ]
    files = [(of, name, file) for of, folder in folders for name, file in files_in(folder) if stream in ("", name)]
    if not files:
        raise Missing("there is no SQLite database of these nodes on this machine")
    rows: list[dict[str, object]] = []
    for number, (of, name, file) in enumerate(files, 1):
        progress(f"reading {file}, {number} of {len(files)}")
        rows.append({"node": of, "stream": name, "file": file.name, **check_report(file, name)})
    if output == "json":
        print_json(rows)
    else:
        print_table(["node", "stream", "file", "position", "rows", "damage"], rows)
    if any(row["damage"] for row in rows):
        raise click.exceptions.Exit(BREAK_FOUND)


def _value(text: str) -> Any:
    """Parse numbers, null and JSON strings; everything else is text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, bool | list | dict) else value


def row_json(row: Row) -> dict[str, object]:
    return {name: json_value(value) if isinstance(value, bytes) else value for name, value in row.items()}


def result_json(result: Result) -> dict[str, object]:
    shown = {"timestamp": timestamp(result.timestamp), "rows": [row_json(row) for row in result.rows]}
    return {**dict(result), **shown}


def _put_rows(rows: list[Row]) -> None:
    if rows:
        print_table(list(rows[0]), [row_json(row) for row in rows])
    else:
        click.echo("No rows.")
