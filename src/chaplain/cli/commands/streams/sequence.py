"""`chaplain sequence`: publishes and reads events that get agreed, gapless numbers and live in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
from chaplain.cli.support.output import (
    BREAK_FOUND,
    escaped,
    print_json,
    print_rows,
    refuse_table_with_follow,
)
from chaplain.errors import Missing, Unproven
from chaplain.json_values import json_value

_EVENT = ["number", "value", "publisher", "hash"]


@click.group(epilog="Example: chaplain sequence publish hello --stream greetings --cluster demo")
def sequence() -> None:
    """Publish and read events with agreed, gapless numbers, held in the memory of a work set of nodes."""


@sequence.command(epilog='Example: chaplain sequence publish "tick" --stream ticks --cluster demo')
@click.argument("text")
@click.option("--stream", required=True, metavar="S", help="The stream to publish to.")
@click.option("--lines", is_flag=True, help="Publish each line of the input as a separate event.")
@cluster_options
def publish(text: str, stream: str, lines: bool, cluster: str, node: int | None, output: str) -> None:
    """Publish TEXT (- reads standard input) and show its number.

    A number means that a majority of the work set holds this event and all events before it.
    """
    data = text_or_stdin(text)
    values = split_lines(data) if lines else [data]
    with connected(cluster, node) as client:
        first = client.sequence(stream).publish_many(values)
    for number in range(first, first + len(values)):
        print_json({"number": number})


@sequence.command(epilog="Example: chaplain sequence read ticks --follow --cluster demo")
@named("--stream", "The stream to read.")
@click.option("--from", "start", type=click.IntRange(1), metavar="NUMBER", help="First number to read.")
@click.option("--to", "stop", type=click.IntRange(1), metavar="NUMBER", help="Stop before this number.")
@click.option("--follow", is_flag=True, help="Continue with new events.")
@click.option("--fresh", is_flag=True, help="Include everything that was published before, at any node.")
@click.option("--verify", is_flag=True, help="Recompute the hash chain; exit with code 3 where it is broken.")
@reader_options
def read(
    stream: str,
    start: int | None,
    stop: int | None,
    follow: bool,
    fresh: bool,
    verify: bool,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Show events, one JSON object per line, from the oldest one in the node's memory to the present end."""
    from chaplain.client.api.sequence_calls import shape  # noqa: PLC0415  `--help` needs no client

    if start is not None and stop is not None and stop <= start:
        raise click.UsageError(f"there is nothing from {start} to before {stop}: --to is the first one left out")
    refuse_table_with_follow(follow)
    with connected(cluster, node) as client, stop_on_closed_output(), _exit_if_unproven():
        found = client.sequence(stream)
        # A reader that starts right after the last event gets an empty result, not an error. So the event before
        # `start` counts as evidence, too, that the stream exists and has got this far.
        starts = [start] if start in (None, 1) else [start, (start or 0) - 1]
        if not follow and not wait_for_replication(lambda: any(True for begin in starts for _ in found.read(begin))):
            where = "" if start is None else f" from number {start} on"
            raise Missing(f"sequence {stream!r} has no events{where}: publish one with `chaplain sequence publish`")
        events = found.read(start, stop, follow, verify=verify, fresh=fresh)
        print_rows((shape(event, json_value(event.value)) for event in events), _EVENT)


@contextmanager
def _exit_if_unproven() -> Iterator[None]:
    try:
        yield
    except Unproven as error:
        click.echo(f"chaplain: {escaped(str(error))}", err=True)
        raise click.exceptions.Exit(BREAK_FOUND) from None
