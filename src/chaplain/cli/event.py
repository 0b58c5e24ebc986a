"""`chaplain event`: news for every node."""

from __future__ import annotations

import click

from chaplain.cli.audience import while_somebody_reads
from chaplain.cli.reach import reach, talks
from chaplain.cli.show import put_json, put_table, shown_value, visible


@click.group(epilog="Example: chaplain event fire deployed v2 --cluster demo")
def event() -> None:
    """Events that reach every node once."""


@event.command(epilog="Example: chaplain event fire deployed v2 --cluster demo")
@click.argument("type")
@click.argument("text", default="")
@click.option(
    "--to", type=click.IntRange(0, 2**32 - 1), metavar="NODE", help="Only for this node: its id, or its identifier."
)
@click.option("--acknowledge", is_flag=True, help="Wait until every node it is for has seen it, and show which have.")
@click.option(
    "--timeout", type=click.FloatRange(0.05, 60), default=5.0, show_default=True, help="Seconds to wait for that."
)
@talks
def fire(
    type: str,  # noqa: A002  the surface's name
    text: str,
    to: int | None,
    acknowledge: bool,
    timeout: float,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Send an event of this TYPE, with TEXT as its content, to everyone, or to one node."""
    with reach(cluster, node) as client:
        seen = None
        if acknowledge:
            seen = client.fire(type, text.encode(), to, acknowledge=True, timeout=timeout)
        else:
            client.fire(type, text.encode(), to)
    if output == "json":
        put_json({"fired": type, **({} if seen is None else dict(seen))})
    elif seen is not None:
        put_table(["acknowledged", "missing"], [dict(seen)])


@event.command(epilog="Example: chaplain event listen --cluster demo --timeout 10")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after so many seconds without an event.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many events.")
@talks
def listen(timeout: float | None, count: int | None, cluster: str, node: int | None, output: str) -> None:
    """Show every event from now on, one a line."""
    with reach(cluster, node) as client, while_somebody_reads(), client.events(timeout=timeout) as events:
        for number, each in enumerate(events, 1):
            if output == "json":
                put_json({"id": each.id, "type": each.type, "sender": each.sender, "value": shown_value(each.content)})
            else:
                said = visible(each.content.decode(errors="backslashreplace"))
                click.echo(f"{visible(each.type)} from {each.sender}: {said}")
            if number == count:
                break
