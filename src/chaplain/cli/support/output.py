"""What commands share: the options that name a cluster and a form of output, and the output itself."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import click
from click.core import ParameterSource

PIPE_COLUMNS = 200
"""Where nobody watches, lines are not broken to fit a window."""

TABLE_ROWS_MAX = 1000

F = TypeVar("F", bound=Callable[..., Any])


def cluster_option(command: F) -> F:
    """`--cluster DIR|FILE`, or `--dir`, or the environment."""
    return click.option(
        "--cluster",
        "--dir",
        "cluster",
        metavar="DIR|FILE",
        required=True,
        envvar="CHAPLAIN_CLUSTER",
        show_envvar=True,
        help="The cluster's directory, or its cluster.toml.",
    )(command)


def output_option(command: F) -> F:
    kinds = click.Choice(["table", "json"])
    return click.option("--output", type=kinds, default="table", show_default=True, help="For people or programs.")(
        command
    )


def put_json(value: object) -> None:
    click.echo(json.dumps(value))


def shown_value(value: bytes) -> str | dict[str, str]:
    """Bytes as JSON shows them: text where they are UTF-8, else base64, marked as such."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def put_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]], caption: str = "") -> None:
    """Rows by column name; what a row lacks is shown as a dash. In a narrow window cells are broken, never cut."""
    # Imported here: it takes a tenth of a second that `--output json` can do without.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    plain = bool(os.environ.get("NO_COLOR"))  # meant for people who want no codes in the output, bold ones included
    table = Table(
        caption=Text(caption) if caption else None,
        caption_justify="left",
        header_style="" if plain else "table.header",
        caption_style="" if plain else "table.caption",
    )
    for column in columns:
        table.add_column(Text(visible(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(_cell(row.get(column)))) for column in columns))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    with console.capture() as drawn:  # written by itself, it would end the program if nobody reads all of it
        console.print(table)
    sys.stdout.write(drawn.get())


def asked_for_table() -> bool:
    """Whether somebody said so: what is read is shown in lines of JSON otherwise, to people and programs alike."""
    context = click.get_current_context()
    said = context.get_parameter_source("output") is not ParameterSource.DEFAULT
    return said and context.params["output"] == "table"


def check_rows(follow: bool) -> None:
    if follow and asked_for_table():
        raise click.UsageError("a table is shown once all of it is there: leave out --follow, or --output table")


def put_rows(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> None:
    """One JSON object a line; or, if one was asked for, a table, anew after so many rows as one may hold."""
    if not asked_for_table():
        for row in rows:
            put_json(row)
        return
    left = iter(rows)
    while some := list(islice(left, TABLE_ROWS_MAX)):
        put_table(columns, some)


def visible(text: str) -> str:
    """What others wrote, for a terminal: codes that would move its cursor or change its colours are spelled out."""
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


def _cell(value: object) -> str:
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


BROKEN = 3
"""What a command ends with whose proof found a break."""


def somebody_answers() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def progress(text: str) -> None:
    """A line on how far we are, for people only: never into what a program reads."""
    if sys.stderr.isatty():
        click.echo(visible(text), err=True)
