"""`chaplain event`: news for every node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaplain.cli.support.broken_pipe import while_somebody_reads
from chaplain.cli.support.connection_options import reach, talks
from chaplain.cli.support.input_bytes import given
from chaplain.cli.support.output import put_json, put_table, shown_value, visible

if TYPE_CHECKING:
    from chaplain.client.types.results import Event, MemberNews


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
    """Send an event of this TYPE, with TEXT (or with - standard input) as its content, to everyone, or to one node."""
    content = given(text)
    with reach(cluster, node) as client:
        seen = None
        if acknowledge:
            seen = client.fire(type, content, to, acknowledge=True, timeout=timeout)
        else:
            client.fire(type, content, to)
    if output == "json":
        put_json({"fired": type, **({} if seen is None else dict(seen))})
    elif seen is not None:
        put_table(["acknowledged", "missing"], [dict(seen)])


@event.command(epilog="Example: chaplain event listen --cluster demo --timeout 10")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after so many seconds without an event.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many events.")
@click.option(
    "--members", is_flag=True, help="Show, too, which nodes come and go, and which pools they join and leave."
)
@talks
def listen(
    timeout: float | None, count: int | None, members: bool, cluster: str, node: int | None, output: str
) -> None:
    """Show every event from now on, one a line."""
    with reach(cluster, node) as client, while_somebody_reads():
        heard = client.events(timeout=timeout, members=True) if members else client.events(timeout=timeout)
        with heard as events:
            for number, each in enumerate(events, 1):
                if output == "json":
                    put_json(_fields(each))
                else:
                    click.echo(_line(each))
                if number == count:
                    break


def _fields(heard: Event | MemberNews) -> dict[str, object]:
    from chaplain.client.types.results import Event  # noqa: PLC0415  `--help` needs no client

    if isinstance(heard, Event):
        value = shown_value(heard.content)
        return {"kind": heard.kind, "id": heard.id, "type": heard.type, "sender": heard.sender, "value": value}
    return {name: heard[name] for name in ("kind", "node", "pool", "state", "was", "reason")}


def _line(heard: Event | MemberNews) -> str:
    from chaplain.client.types.results import Event  # noqa: PLC0415  likewise

    if isinstance(heard, Event):
        return f"{visible(heard.type)} from {heard.sender}: {visible(heard.content.decode(errors='backslashreplace'))}"
    rest = [visible(heard[name]) for name in ("pool", "state", "reason") if heard[name]]
    return " ".join([f"node {heard.node}: {heard.kind}", *rest])
