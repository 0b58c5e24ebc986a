"""`chaplain pool`: groups that anyone may talk to."""

from __future__ import annotations

import click

from chaplain.cli.support.broken_pipe import while_somebody_reads
from chaplain.cli.support.connection_options import reach, talks
from chaplain.cli.support.input_bytes import given
from chaplain.cli.support.output import put_json, shown_value, visible


@click.group(epilog="Example: chaplain pool listen --pool chat --cluster demo")
def pool() -> None:
    """Broadcasts to whoever has joined a pool."""


@pool.command(epilog="Example: chaplain pool broadcast hello --pool chat --cluster demo")
@click.argument("text")
@click.option("--pool", "name", required=True, help="The pool to talk to.")
@talks
def broadcast(text: str, name: str, cluster: str, node: int | None, output: str) -> None:
    """Send TEXT, or with - what comes on standard input, to everyone who has joined the pool."""
    value = given(text)
    with reach(cluster, node) as client:
        client.pool(name).broadcast(value)
    if output == "json":
        put_json({"pool": name, "broadcast": True})


@pool.command(epilog="Example: chaplain pool listen --pool chat --cluster demo")
@click.option("--pool", "name", required=True, help="The pool to join.")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after so many seconds without a message.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@talks
def listen(name: str, timeout: float | None, count: int | None, cluster: str, node: int | None, output: str) -> None:
    """Join a pool and show what is said in it, one message a line."""
    with reach(cluster, node) as client, while_somebody_reads(), client.pool(name).listen(timeout=timeout) as messages:
        for number, each in enumerate(messages, 1):
            if output == "json":
                put_json(
                    {
                        "pool": each.pool,
                        "value": shown_value(each.value),
                        "sender": each.sender,
                        "client": each.client,
                        "missed": each.missed,
                    }
                )
            else:
                lost = f" ({each.missed} lost before this)" if each.missed else ""
                said = visible(each.value.decode(errors="backslashreplace"))
                click.echo(f"{visible(each.client)}@{each.sender}: {said}{lost}")
            if number == count:
                break
