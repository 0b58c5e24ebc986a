"""`chaplain sequence`: one agreed, gapless numbering of events, in memory."""

from __future__ import annotations

import click

from chaplain.cli.support.broken_pipe import while_somebody_reads
from chaplain.cli.support.connection_options import reach, talks, wait_for_news
from chaplain.cli.support.input_bytes import given, lines_of
from chaplain.cli.support.output import check_rows, put_json, put_rows, shown_value
from chaplain.errors import Missing

_EVENT = ["number", "value", "publisher", "hash"]


@click.group(epilog="Example: chaplain sequence publish hello --stream greetings --cluster demo")
def sequence() -> None:
    """One agreed, gapless numbering of events, held in the memories of a work set."""


@sequence.command(epilog='Example: chaplain sequence publish "tick" --stream ticks --cluster demo')
@click.argument("text")
@click.option("--stream", required=True, metavar="S", help="The stream to publish to.")
@click.option("--lines", is_flag=True, help="Each line of the input is an event of its own.")
@talks
def publish(text: str, stream: str, lines: bool, cluster: str, node: int | None, output: str) -> None:
    """Publish TEXT, or with - what comes on standard input; show the number it got.

    A number means: a majority of the work set holds this event and every one before it.
    """
    data = given(text)
    values = lines_of(data) if lines else [data]
    with reach(cluster, node) as client:
        first = client.sequence(stream).publish_many(values)
    for number in range(first, first + len(values)):
        put_json({"number": number})


@sequence.command(epilog="Example: chaplain sequence read --stream ticks --follow --cluster demo")
@click.option("--stream", required=True, metavar="S", help="The stream to read.")
@click.option("--from", "start", type=click.IntRange(1), metavar="NUMBER", help="Begin with this one.")
@click.option("--to", "stop", type=click.IntRange(1), metavar="NUMBER", help="Stop before this one.")
@click.option("--follow", is_flag=True, help="Go on with whatever is published from now on.")
@talks
def read(
    stream: str, start: int | None, stop: int | None, follow: bool, cluster: str, node: int | None, output: str
) -> None:
    """Show events, one JSON object a line, from the oldest that the node remembers up to the last one now."""
    from chaplain.client.api.sequence_calls import shape  # noqa: PLC0415  `--help` needs no client

    if start is not None and stop is not None and stop <= start:
        raise click.UsageError(f"there is nothing from {start} to before {stop}: --to is the first one left out")
    check_rows(follow)
    with reach(cluster, node) as client, while_somebody_reads():
        found = client.sequence(stream)
        # One that stands right behind the last event has seen everything, and is told nothing.
        behind = [start] if start in (None, 1) else [start, (start or 0) - 1]
        if not follow and not wait_for_news(lambda: any(True for begin in behind for _ in found.read(begin))):
            where = "" if start is None else f" from number {start} on"
            raise Missing(f"sequence {stream!r} has no events{where}: publish one with `chaplain sequence publish`")
        put_rows((shape(event, shown_value(event.value)) for event in found.read(start, stop, follow)), _EVENT)
