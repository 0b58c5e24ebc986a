"""Output of commands as tables or JSON, and the options `--cluster` and `--output` that all commands share.

Data goes to standard output; progress and warnings go to standard error. Text that other clients wrote is escaped
before it reaches a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import click
from click.core import ParameterSource

PIPE_COLUMNS = 200
"""Width of tables that do not go to a terminal, wide enough that lines rarely wrap."""

TABLE_ROWS_MAX = 1000
"""Longer results are printed as several tables, because a table is laid out in memory."""

F = TypeVar("F", bound=Callable[..., Any])


def cluster_option(command: F) -> F:
    """Add `--cluster DIR|FILE`, with the alternative spelling `--dir` and the variable CHAPLAIN_CLUSTER."""
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
    return _output_option(command, "table")


def json_output_option(command: F) -> F:
    """Add `--output` to a command that prints one JSON object per line unless `--output table` is typed."""
    return _output_option(command, "json")


def _output_option(command: F, default: str) -> F:
    kinds = click.Choice(["table", "json"])
    text = "Output format: a table for people, JSON for programs."
    return click.option("--output", type=kinds, default=default, show_default=True, help=text)(command)


def print_json(value: object) -> None:
    click.echo(json.dumps(value))


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, object]], caption: str = "") -> None:
    """Print rows by column name. A missing value is a dash. In a narrow terminal cells wrap; nothing is cut off."""
    # Imported here: rich takes a tenth of a second to import, and `--output json` does not need it.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    plain = bool(os.environ.get("NO_COLOR"))  # no escape codes at all, not even bold
    table = Table(
        caption=Text(caption) if caption else None,
        caption_justify="left",
        header_style="" if plain else "table.header",
        caption_style="" if plain else "table.caption",
    )
    for column in columns:
        table.add_column(Text(escaped(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(escaped(_cell(row.get(column)))) for column in columns))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    with console.capture() as drawn:  # rich itself would exit with code 1 on a closed pipe
        console.print(table)
    sys.stdout.write(drawn.get())


def table_requested() -> bool:
    """Return whether the user typed `--output table`."""
    context = click.get_current_context()
    explicit = context.get_parameter_source("output") is not ParameterSource.DEFAULT
    return explicit and context.params["output"] == "table"


def refuse_table_with_follow(follow: bool) -> None:
    if follow and table_requested():
        raise click.UsageError("a table is printed only when it is complete: leave out --follow or --output table")


def print_rows(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print one JSON object per line or, with `--output table`, tables of at most `TABLE_ROWS_MAX` rows."""
    if not table_requested():
        for row in rows:
            print_json(row)
        return
    left = iter(rows)
    while some := list(islice(left, TABLE_ROWS_MAX)):
        print_table(columns, some)


def escaped(text: str) -> str:
    """Escape control characters in text that others wrote: they could move a terminal's cursor or set colours."""
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


def _cell(value: object) -> str:
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


BREAK_FOUND = 3
"""Exit code of a command whose verification found a break."""

NOT_LOOKED = 4
"""Exit code of a command that could not read what it should verify, so that it says nothing about it."""


def is_interactive() -> bool:
    """Return whether a person can answer a question: input and standard error are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def progress(text: str) -> None:
    """Print a progress line on standard error if that is a terminal. Programs never see it."""
    if sys.stderr.isatty():
        click.echo(escaped(text), err=True)
