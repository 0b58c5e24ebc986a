"""`chaplain event`: sends gossip events to every node, and listens to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaplain.cli.support.broken_pipe import stop_on_closed_output
from chaplain.cli.support.connection_options import cluster_options, connected
from chaplain.cli.support.input_bytes import text_or_stdin
from chaplain.cli.support.output import escaped, print_json, print_table
from chaplain.json_values import json_value

if TYPE_CHECKING:
    from chaplain.client.types.results import Event, MemberNews


@click.group(epilog="Example: chaplain event fire deployed v2 --cluster demo")
def event() -> None:
    """Send events to every node, and listen to them. Each node receives an event once."""


@event.command(epilog="Example: chaplain event fire deployed v2 --cluster demo")
@click.argument("type")
@click.argument("text", default="")
@click.option(
    "--to", type=click.IntRange(0, 2**32 - 1), metavar="NODE", help="Send only to this node, by id or identifier."
)
@click.option("--acknowledge", is_flag=True, help="Wait until every receiver has the event, and show which have it.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.05, 60),
    default=5.0,
    show_default=True,
    help="With --acknowledge: seconds to wait.",
)
@cluster_options
def fire(
    type: str,  # noqa: A002  the argument's public name
    text: str,
    to: int | None,
    acknowledge: bool,
    timeout: float,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Send an event of type TYPE with the content TEXT (- reads standard input) to all nodes, or with --to to one."""
    content = text_or_stdin(text)
    with connected(cluster, node) as client:
        seen = None
        if acknowledge:
            seen = client.fire(type, content, to, acknowledge=True, timeout=timeout)
        else:
            client.fire(type, content, to)
    if output == "json":
        print_json({"fired": type, **({} if seen is None else dict(seen))})
    elif seen is not None:
        print_table(["acknowledged", "missing"], [dict(seen)])


@event.command(epilog="Example: chaplain event listen --cluster demo --timeout 10")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after this many seconds without an event.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many events.")
@click.option("--members", is_flag=True, help="Also show which nodes connect and leave, and which pools they join.")
@cluster_options
def listen(
    timeout: float | None, count: int | None, members: bool, cluster: str, node: int | None, output: str
) -> None:
    """Show every event from now on, one per line."""
    with connected(cluster, node) as client, stop_on_closed_output():
        listening = client.events(timeout=timeout, members=True) if members else client.events(timeout=timeout)
        with listening as events:
            for number, each in enumerate(events, 1):
                if output == "json":
                    print_json(_fields(each))
                else:
                    click.echo(_line(each))
                if number == count:
                    break


def _fields(event: Event | MemberNews) -> dict[str, object]:
    from chaplain.client.types.results import Event  # noqa: PLC0415  `--help` needs no client

    if isinstance(event, Event):
        value = json_value(event.content)
        return {"kind": event.kind, "id": event.id, "type": event.type, "sender": event.sender, "value": value}
    return {name: event[name] for name in ("kind", "node", "pool", "state", "was", "reason")}


def _line(event: Event | MemberNews) -> str:
    from chaplain.client.types.results import Event  # noqa: PLC0415  likewise

    if isinstance(event, Event):
        return f"{escaped(event.type)} from {event.sender}: {escaped(event.content.decode(errors='backslashreplace'))}"
    rest = [escaped(event[name]) for name in ("pool", "state", "reason") if event[name]]
    return " ".join([f"node {event.node}: {event.kind}", *rest])
