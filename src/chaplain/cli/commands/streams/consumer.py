"""`chaplain consumer`: lists, shows, resets and removes the named consumers of streams."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.connection_options import cluster_options, connected
from chaplain.cli.support.output import print_json, print_table
from chaplain.errors import Missing

if TYPE_CHECKING:
    from chaplain.client.types.consumers import ConsumerRecord, ConsumerStart

_COLUMNS = ["stream", "name", "mode", "position", "head", "lag", "workers", "leased", "waiting", "dropped"]
_STREAM = click.option("--stream", metavar="S", help="The stream of the consumer; needed if two have the name.")
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(epilog="Example: chaplain consumer list --stream orders --cluster demo")
def consumer() -> None:
    """Show and manage named consumers, whose positions the cluster stores."""


@consumer.command("list", epilog="Example: chaplain consumer list --cluster demo --output json")
@click.option("--stream", metavar="S", default="", help="Only consumers of this stream.")
@cluster_options
def list_(stream: str, cluster: str, node: int | None, output: str) -> None:
    """List consumers with their position and lag."""
    with connected(cluster, node) as client:
        found = [{name: one[name] for name in _COLUMNS} for one in client.consumers(stream)]
    if output == "json":
        print_json(found)
    else:
        print_table(_COLUMNS, found)


@consumer.command(epilog="Example: chaplain consumer show billing --stream orders --cluster demo")
@click.argument("name")
@_STREAM
@cluster_options
def show(name: str, stream: str | None, cluster: str, node: int | None, output: str) -> None:
    """Show one consumer with its workers and their slots or leased messages."""
    with connected(cluster, node) as client:
        where = _stream_of(client.consumers(stream or ""), name)
        details = client.consumer(where, name)
    if output == "json":
        print_json(details)
        return
    print_table(_COLUMNS, [{column: details[column] for column in _COLUMNS}])
    if details["members"]:
        click.echo()
        print_table(["token", "client", "slots", "challenged"], list(details["members"]))


@consumer.command(epilog="Example: chaplain consumer reset billing --stream orders --to 1200 --cluster demo")
@click.argument("name")
@_STREAM
@click.option("--to", "start", default="earliest", metavar="WHERE", show_default=True, help="Where to.")
@_YES
@cluster_options
def reset(name: str, stream: str | None, start: str, yes: bool, cluster: str, node: int | None, output: str) -> None:
    """Let a consumer continue at another message: `earliest`, `latest`, an offset, or a time with its zone."""
    place = _start_of(start)
    with connected(cluster, node) as client:
        where = _stream_of(client.consumers(stream or ""), name)
        _confirm(yes, f"Move consumer {name} of {where} to {start}?")
        client.reset_consumer(where, name, place)
        (done,) = [one for one in client.consumers(where) if one.name == name]
    print_json({column: done[column] for column in _COLUMNS})


@consumer.command(epilog="Example: chaplain consumer remove billing --stream orders --yes --cluster demo")
@click.argument("name")
@_STREAM
@_YES
@cluster_options
def remove(name: str, stream: str | None, yes: bool, cluster: str, node: int | None, output: str) -> None:
    """Delete a consumer and its position. Its workers fail."""
    with connected(cluster, node) as client:
        where = _stream_of(client.consumers(stream or ""), name)
        _confirm(yes, f"Delete consumer {name} of {where} and its position?")
        client.remove_consumer(where, name)
    print_json({"stream": where, "removed": name})


def _confirm(yes: bool, question: str) -> None:
    if not yes:
        click.confirm(question, abort=True, err=True)


def _stream_of(found: Sequence[ConsumerRecord], name: str) -> str:
    """The stream of the consumer with this name."""
    streams = [one.stream for one in found if one.name == name]
    if not streams:
        raise Missing(f"there is no consumer {name!r}; `chaplain consumer list` shows those there are")
    if len(streams) > 1:
        raise click.UsageError(f"consumer {name} exists for the streams {', '.join(streams)}: give --stream")
    return streams[0]


def _start_of(text: str) -> ConsumerStart:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--to is `earliest`, `latest`, an offset, or a time such as 2030-01-01T00:00:00Z, not {text!r}"
        ) from None
