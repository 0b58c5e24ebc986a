"""`chaplain journal`: writes to and reads streams in one agreed order, on disk at a quorum."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import click

from chaplain.cli.support.broken_pipe import discard_output, stop_on_closed_output
from chaplain.cli.support.connection_options import cluster_options, connected, named, reader_options
from chaplain.cli.support.input_bytes import to_bytes
from chaplain.cli.support.output import (
    print_json,
    print_rows,
    print_table,
    progress,
    refuse_table_with_follow,
    table_requested,
)
from chaplain.errors import Unreachable
from chaplain.json_values import json_value, timestamp

if TYPE_CHECKING:
    from chaplain.client.sync import Client
    from chaplain.client.sync.journal import Journal
    from chaplain.client.types.journal import Message, Receipt

_PROGRESS_EVERY = 50_000
"""Lines between two progress reports of `--lines`; receipts are printed as often."""
_ONE_SOURCE = "give either TEXT, or --file, or - for standard input"
MESSAGE_COLUMNS = ["offset", "key", "value", "headers", "timestamp", "client_id"]
_RECEIPT = ["stream", "offset", "regime", "index", "timestamp", "client_id", "client_message_id"]


@click.group(epilog="Example: chaplain journal write '12 apples' --stream orders --cluster demo")
def journal() -> None:
    """Write to and read streams in one agreed order. A message is on disk at a quorum before its receipt."""


@journal.command(epilog='Example: chaplain journal write "hello" --stream orders --key k1 --cluster demo')
@click.argument("text", required=False)
@click.option("--stream", required=True, metavar="S", help="The stream to append to.")
@click.option("--key", metavar="K", help="Key of the messages.")
@click.option("--file", type=click.File("rb"), metavar="F", help="Read the message from a file.")
@click.option("--lines", is_flag=True, help="Write each line of the input as a separate message.")
@click.option(
    "--expect-offset", type=click.IntRange(0), metavar="N", help="Write only if the message gets this offset."
)
@click.option(
    "--expect-key-version",
    type=click.IntRange(-1),
    metavar="N",
    help="Write only if the key has no message after this offset; -1: none at all.",
)
@click.option(
    "--fence", type=(str, click.IntRange(0)), metavar="NAME TOKEN", help="Write only if no higher token was seen."
)
@click.option(
    "--type",
    "message_type",
    type=click.IntRange(0, 239),
    default=0,
    metavar="N",
    help="Type of the messages, 0 or 2 to 239, by which readers can select.  [default: 0]",
)
@cluster_options
def write(
    text: str | None,
    stream: str,
    key: str | None,
    file: BinaryIO | None,
    lines: bool,
    expect_offset: int | None,
    expect_key_version: int | None,
    fence: tuple[str, int] | None,
    message_type: int,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Append TEXT, a file or standard input (-, or no TEXT), and show the receipts, one per line.

    A receipt means that the message is agreed and on disk at a quorum. Receipts are JSON unless the output is a
    terminal. If a condition (`--expect-offset`, `--expect-key-version`, `--fence`) does not hold, nothing is written.
    """
    if lines and (expect_offset, expect_key_version, fence) != (None, None, None):
        raise click.UsageError("--lines writes many requests: conditions are for one message")
    source = _source(text, file)
    keyed = None if key is None else to_bytes(key)
    value = b"" if lines else source.read() if source else to_bytes(text or "")
    if text is None and file is None and not (lines or value):
        raise click.UsageError(_ONE_SOURCE)  # an empty message by accident, such as `< /dev/null`
    with connected(cluster, node) as client, _usage():
        if node is not None:
            _check_accepts_writes(client, node)
        target = client.journal(stream)
        if lines:
            _write_lines(
                target, source or iter(to_bytes(text or "").splitlines()), keyed, message_type, _for_people(output)
            )
        else:
            receipt = target.write(
                value,
                keyed,
                type=message_type,
                expect_offset=expect_offset,
                expect_key_version=expect_key_version,
                fence=fence,
            )
            _print_receipts([receipt], _for_people(output))


def _check_accepts_writes(client: Client, node: int) -> None:
    """Fail at once if the only node that may be used accepts no writes: a writer would wait for another one."""
    nodes = client.nodes().nodes
    if any(one.id == node and "ingest" not in one.roles for one in nodes):
        others = ", ".join(str(one.id) for one in nodes if "ingest" in one.roles)
        raise Unreachable(f"node {node} accepts no writes, because it is no ingest node: omit --node, or name {others}")


def _source(text: str | None, file: BinaryIO | None) -> BinaryIO | None:
    """Return the file to read the input from, or None if the argument TEXT is the input. Without TEXT and `--file` the
    input is standard input, unless that is a terminal.
    """
    both, neither = text is not None and file is not None, text is None and file is None
    if both or (neither and sys.stdin.isatty()):
        raise click.UsageError(_ONE_SOURCE)
    return file or (sys.stdin.buffer if text in (None, "-") else None)


@journal.command(epilog="Example: chaplain journal read orders --from 100 --cluster demo")
@named("--stream", "The stream to read.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="First offset to read.  [default: the first one retained]",
)
@click.option("--to", "stop", type=click.IntRange(0), metavar="OFFSET", help="Stop before this offset.")
@click.option("--follow", is_flag=True, help="Continue with new messages.")
@click.option(
    "--type",
    "types",
    type=click.IntRange(0, 255),
    multiple=True,
    metavar="N",
    help="Show only messages of this type; repeatable.",
)
@reader_options
def read(
    stream: str,
    start: int | None,
    stop: int | None,
    follow: bool,
    types: tuple[int, ...],
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Show messages, one JSON object per line (or with --output table a table), up to the present end of the stream.

    Bytes that are not UTF-8 are shown as {"base64": "…"}; timestamps are UTC with nanoseconds.
    """
    refuse_table_with_follow(follow)
    if stop is not None and start is not None and stop < start:
        raise click.UsageError(f"there is nothing from {start} to before {stop}: --to is the first one left out")
    with connected(cluster, node) as client, _usage(), stop_on_closed_output():
        found = client.journal(stream).read("earliest" if start is None else start, stop, follow, types=types or None)
        print_rows((message_json(message) for message in found), MESSAGE_COLUMNS)


def _write_lines(target: Journal, lines: Iterable[bytes], key: bytes | None, message_type: int, people: bool) -> None:
    with target.writer(receipts=not people, type=message_type) as writer:
        for number, line in enumerate(lines, 1):
            writer.write(line.removesuffix(b"\n"), key)
            if number % _PROGRESS_EVERY == 0:
                progress(f"{number} lines read, {writer.count} written")
                if not people:
                    _print_unless_closed(writer.take_receipts())
        writer.flush()
        if not people:
            _print_unless_closed(writer.take_receipts())
    if people:
        end = f", the last one at offset {writer.last.offset}" if writer.last else ""
        click.echo(f"{writer.count} messages written to {writer.stream}{end}.")


def _print_unless_closed(receipts: list[Receipt]) -> None:
    """Print receipts. A closed output does not end the command: the rest of the input would not be written."""
    try:
        _print_receipts(receipts, people=False)
    except BrokenPipeError:
        discard_output()


def _print_receipts(receipts: list[Receipt], people: bool) -> None:
    shown = [receipt_json(receipt) for receipt in receipts]
    if people and shown:
        print_table(_RECEIPT, shown)
    for row in () if people else shown:
        print_json(row)


def receipt_json(receipt: Receipt) -> dict[str, object]:
    return {**dict(receipt), "timestamp": timestamp(receipt.timestamp), "hash": receipt.hash.hex()}


def message_json(message: Message) -> dict[str, object]:
    shown = {
        **dict(message),
        "key": None if message.key is None else json_value(message.key),
        "value": json_value(message.value),
        "timestamp": timestamp(message.timestamp),
    }
    if message.headers:
        shown["headers"] = {name: json_value(value) for name, value in message.headers.items()}
    else:
        del shown["headers"]
    return shown


def _for_people(output: str) -> bool:
    """Return whether to print for people: `--output table` was typed, or the output is a terminal."""
    return table_requested() or (output == "table" and sys.stdout.isatty())


@contextmanager
def _usage() -> Iterator[None]:
    """Turn errors about argument values, which the library raises, into usage errors."""
    try:
        yield
    except (ValueError, TypeError) as wrong:
        from chaplain.errors import ChaplainError, Misused  # noqa: PLC0415

        if isinstance(wrong, ChaplainError) and not isinstance(wrong, Misused):
            raise
        raise click.UsageError(str(wrong)) from None
