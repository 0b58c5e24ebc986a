"""`chaplain graph`: events that hang together by their hashes, written on either side of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaplain.cli.commands.journal import timestamp
from chaplain.cli.support.broken_pipe import while_somebody_reads
from chaplain.cli.support.connection_options import reach, talks, wait_for_news
from chaplain.cli.support.input_bytes import given, lines_of
from chaplain.cli.support.output import check_rows, put_json, put_rows, shown_value
from chaplain.errors import Missing

if TYPE_CHECKING:
    from chaplain.client.api.graph import GraphEvent

_EVENT = ["id", "parents", "author", "timestamp", "value", "read", "confirms"]


@click.group(epilog="Example: chaplain graph append 'first note' --stream notes --cluster demo")
def graph() -> None:
    """Signed events linked by hashes: writable in a partition, in the end the same on every node."""


@graph.command(epilog='Example: chaplain graph append "hello" --stream notes --cluster demo')
@click.argument("text")
@click.option("--stream", required=True, metavar="S", help="The stream to append to.")
@click.option("--lines", is_flag=True, help="Each line of the input is an event of its own.")
@talks
def append(text: str, stream: str, lines: bool, cluster: str, node: int | None, output: str) -> None:
    """Append TEXT, or with - what comes on standard input, as an event; show its id.

    When this returns, the event is on the disk of the node that took it.
    """
    value = given(text)
    with reach(cluster, node) as client:
        for one in lines_of(value) if lines else [value]:
            put_json({"id": client.graph(stream).append(one).id})


@graph.command(epilog="Example: chaplain graph read --stream notes --only-read --cluster demo")
@click.option("--stream", required=True, metavar="S", help="The stream to read.")
@click.option("--only-read", is_flag=True, help="Leave out events that too few members have.")
@click.option("--follow", is_flag=True, help="As they came, and whatever comes from now on.")
@click.option("--timeout", type=click.FloatRange(0), help="With --follow: stop after so many seconds without news.")
@talks
def read(
    stream: str, only_read: bool, follow: bool, timeout: float | None, cluster: str, node: int | None, output: str
) -> None:
    """Show events, one JSON object a line, in the order that is the same on every node.

    With --follow they come in the order in which the node got them, parents always before their children.
    """
    if timeout is not None and not follow:
        raise click.UsageError("--timeout is for --follow")
    check_rows(follow)
    with reach(cluster, node) as client, while_somebody_reads():
        found = client.graph(stream)
        if not follow and not wait_for_news(lambda: any(True for _ in found.read())):
            raise Missing(f"graph {stream!r} has no events here: write one with `chaplain graph append`")
        put_rows((event_json(event) for event in found.read(only_read, follow, timeout)), _EVENT)


def event_json(event: GraphEvent) -> dict[str, object]:
    return {**dict(event), "value": shown_value(event.value), "timestamp": timestamp(event.timestamp)}
