"""`chaplain pool`: best-effort broadcasts to the members of a pool."""

from __future__ import annotations

import click

from chaplain.cli.support.broken_pipe import stop_on_closed_output
from chaplain.cli.support.connection_options import cluster_options, connected, named
from chaplain.cli.support.input_bytes import text_or_stdin
from chaplain.cli.support.output import escaped, print_json
from chaplain.json_values import json_value


@click.group(epilog="Example: chaplain pool listen --pool chat --cluster demo")
def pool() -> None:
    """Broadcast to all members of a pool, and listen."""


@pool.command(epilog="Example: chaplain pool broadcast hello --pool chat --cluster demo")
@click.argument("text")
@click.option("--pool", "name", required=True, help="The pool to broadcast to.")
@cluster_options
def broadcast(text: str, name: str, cluster: str, node: int | None, output: str) -> None:
    """Send TEXT (- reads standard input) to all members of the pool."""
    value = text_or_stdin(text)
    with connected(cluster, node) as client:
        client.pool(name).broadcast(value)
    if output == "json":
        print_json({"pool": name, "broadcast": True})


@pool.command(epilog="Example: chaplain pool listen chat --cluster demo")
@named("--pool", "The pool to join.")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after this many seconds without a message.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@cluster_options
def listen(pool: str, timeout: float | None, count: int | None, cluster: str, node: int | None, output: str) -> None:
    """Join a pool and show its messages, one per line."""
    with (
        connected(cluster, node) as client,
        stop_on_closed_output(),
        client.pool(pool).listen(timeout=timeout) as messages,
    ):
        for number, each in enumerate(messages, 1):
            if output == "json":
                print_json(
                    {
                        "pool": each.pool,
                        "value": json_value(each.value),
                        "sender": each.sender,
                        "client": each.client,
                        "missed": each.missed,
                    }
                )
            else:
                lost = f" ({each.missed} lost before this)" if each.missed else ""
                text = escaped(each.value.decode(errors="backslashreplace"))
                click.echo(f"{escaped(each.client)}@{each.sender}: {text}{lost}")
            if number == count:
                break
