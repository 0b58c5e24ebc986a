"""`chaplain stream`: lists the streams of the journal and shows what one contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaplain.cli.commands.streams.journal import MESSAGE_COLUMNS, message_json
from chaplain.cli.support.broken_pipe import stop_on_closed_output
from chaplain.cli.support.connection_options import cluster_options, connected, named, reader_options
from chaplain.cli.support.output import print_json, print_rows, print_table, refuse_table_with_follow
from chaplain.errors import Missing, Refused
from chaplain.json_values import timestamp

if TYPE_CHECKING:
    from chaplain.client.sync import Client
    from chaplain.client.types.journal import StreamRecord

_STREAM = ["stream", "messages", "first_offset", "next_offset"]
_DETAILS = [*_STREAM, "first_timestamp", "last_timestamp", "chain"]


@click.group(epilog="Example: chaplain stream list --cluster demo")
def stream() -> None:
    """List the streams of the journal, and show what one contains."""


@stream.command("list", epilog="Example: chaplain stream list --cluster demo --output json")
@cluster_options
def list_(cluster: str, node: int | None, output: str) -> None:
    """Show the streams that this client may read, with their offsets."""
    with connected(cluster, node) as client:
        found = [_offsets(each) for each in client.streams()]
    if output == "json":
        print_json(found)
    else:
        print_table(_STREAM, found)


@stream.command(epilog="Example: chaplain stream show orders --cluster demo")
@named("--stream", "The stream to show.")
@cluster_options
def show(stream: str, cluster: str, node: int | None, output: str) -> None:
    """Show a stream's offsets, the times of its first and last retained message, and its chain hash."""
    with connected(cluster, node) as client:
        record = _record(client, stream)
        details = {**_offsets(record), "chain": record.chain}
        if record.next_offset > record.first_offset:
            details["first_timestamp"] = _time_of(client, stream, record.first_offset)
            details["last_timestamp"] = _time_of(client, stream, record.next_offset - 1)
    if output == "json":
        print_json(details)
    else:
        print_table(_DETAILS, [details])


@stream.command(epilog="Example: chaplain stream tail orders --follow --cluster demo")
@named("--stream", "The stream to read.")
@click.option("-n", "--count", type=click.IntRange(0), default=10, show_default=True, help="Number of messages.")
@click.option("--follow", is_flag=True, help="Continue with new messages.")
@reader_options
def tail(stream: str, count: int, follow: bool, cluster: str, node: int | None, output: str) -> None:
    """Show the last messages of a stream, one JSON object per line."""
    refuse_table_with_follow(follow)
    with connected(cluster, node) as client, stop_on_closed_output():
        record = _record(client, stream)
        start = max(record.first_offset, record.next_offset - count)
        stop = None if follow else record.next_offset
        found = client.journal(stream).read(start, stop, follow)
        print_rows((message_json(message) for message in found), MESSAGE_COLUMNS)


@stream.command(hidden=True, epilog="Example: chaplain stream delete orders --cluster demo")
@named("--stream", "The stream.")
@cluster_options
def delete(stream: str, cluster: str, node: int | None, output: str) -> None:
    """Say why a single stream cannot be deleted."""
    raise Refused(
        f"stream {stream!r} cannot be deleted alone: all streams share one log, which a chain of hashes protects."
        " `chaplain pipeline compress` and `journal.keep_bytes` drop the start of the log, of all streams"
    )


def _record(client: Client, name: str) -> StreamRecord:
    for each in client.streams():
        if each.stream == name:
            return each
    raise Missing(f"there is no stream {name!r} that this client may read; `chaplain stream list` shows those it may")


def _offsets(record: StreamRecord) -> dict[str, object]:
    return {
        "stream": record.stream,
        "messages": record.next_offset - record.first_offset,
        "first_offset": record.first_offset,
        "next_offset": record.next_offset,
    }


def _time_of(client: Client, name: str, offset: int) -> str:
    with client.journal(name).read(offset, offset + 1) as messages:
        return timestamp(next(iter(messages)).timestamp)
