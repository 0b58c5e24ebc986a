"""`chaplain graph`: appends to and reads the hash-linked event graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaplain.cli.support.broken_pipe import stop_on_closed_output
from chaplain.cli.support.connection_options import (
    cluster_options,
    connected,
    named,
    reader_options,
    wait_for_replication,
)
from chaplain.cli.support.input_bytes import split_lines, text_or_stdin
from chaplain.cli.support.output import print_json, print_rows, refuse_table_with_follow
from chaplain.errors import Missing
from chaplain.json_values import json_value, timestamp

if TYPE_CHECKING:
    from chaplain.client.api.graph_calls import GraphEvent

_EVENT = ["id", "parents", "author", "timestamp", "value", "read", "confirms"]


@click.group(epilog="Example: chaplain graph append 'first note' --stream notes --cluster demo")
def graph() -> None:
    """Append and read signed, hash-linked events: writable during a partition, eventually the same on every node."""


@graph.command(epilog='Example: chaplain graph append "hello" --stream notes --cluster demo')
@click.argument("text")
@click.option("--stream", required=True, metavar="S", help="The stream to append to.")
@click.option("--lines", is_flag=True, help="Append each line of the input as a separate event.")
@cluster_options
def append(text: str, stream: str, lines: bool, cluster: str, node: int | None, output: str) -> None:
    """Append TEXT (- reads standard input) as an event, and show its id.

    When the command returns, the event is on the disk of the node that accepted it.
    """
    value = text_or_stdin(text)
    with connected(cluster, node) as client:
        for one in split_lines(value) if lines else [value]:
            print_json({"id": client.graph(stream).append(one).id})


@graph.command(epilog="Example: chaplain graph read notes --unread --cluster demo")
@named("--stream", "The stream to read.")
@click.option("--unread", is_flag=True, help="Also show events that too few members have confirmed so far.")
@click.option("--only-read", is_flag=True, hidden=True)
@click.option("--follow", is_flag=True, help="Continue with new events, in order of arrival.")
@click.option(
    "--timeout", type=click.FloatRange(0), help="With --follow: stop after this many seconds without an event."
)
@reader_options
def read(
    stream: str,
    unread: bool,
    only_read: bool,
    follow: bool,
    timeout: float | None,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Show the events that enough members have confirmed, one JSON object per line, in an order that is the same on
    every node.

    With --follow they appear in the order in which they became read at the node (with --unread: arrived), parents
    before their children.
    """
    if unread and only_read:
        raise click.UsageError("--only-read is the opposite of --unread: give one of them")
    if timeout is not None and not follow:
        raise click.UsageError("--timeout is for --follow")
    refuse_table_with_follow(follow)
    with connected(cluster, node) as client, stop_on_closed_output():
        found = client.graph(stream)
        if not follow and not wait_for_replication(lambda: any(True for _ in found.read(unread))):
            raise Missing(_absence(stream, any(True for _ in found.read(unread=True))))
        print_rows((event_json(event) for event in found.read(unread, follow, timeout)), _EVENT)


def _absence(stream: str, has_unread: bool) -> str:
    if has_unread:
        return f"graph {stream!r} has only events that too few members confirmed: --unread shows them"
    return f"graph {stream!r} has no events here: write one with `chaplain graph append`"


def event_json(event: GraphEvent) -> dict[str, object]:
    return {**dict(event), "value": json_value(event.value), "timestamp": timestamp(event.timestamp)}
