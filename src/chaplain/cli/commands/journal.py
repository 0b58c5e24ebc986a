"""`chaplain journal`: streams in one agreed order, on disk at a quorum."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO

import click

from chaplain.cli.support.broken_pipe import discard_output, while_somebody_reads
from chaplain.cli.support.connection_options import reach, talks
from chaplain.cli.support.input_bytes import octets
from chaplain.cli.support.output import (
    asked_for_table,
    check_rows,
    progress,
    put_json,
    put_rows,
    put_table,
    shown_value,
)

if TYPE_CHECKING:
    from chaplain.client.api.journal_sync import Journal
    from chaplain.client.types.journal import Message, Receipt

_NS = 1_000_000_000
_PROGRESS_EVERY = 50_000
_ONE_SOURCE = "give either TEXT, or --file, or - for standard input"
_MESSAGE = ["offset", "key", "value", "headers", "timestamp", "client_id"]
_RECEIPT = ["stream", "offset", "regime", "index", "timestamp", "client_id", "client_message_id"]


@click.group(epilog="Example: chaplain journal write '12 apples' --stream orders --cluster demo")
def journal() -> None:
    """Streams in one agreed order, on disk at a quorum before the receipt."""


@journal.command(epilog='Example: chaplain journal write "hello" --stream orders --key k1 --cluster demo')
@click.argument("text", required=False)
@click.option("--stream", required=True, metavar="S", help="The stream to append to.")
@click.option("--key", metavar="K", help="The messages' key.")
@click.option("--file", type=click.File("rb"), metavar="F", help="Take the message from a file.")
@click.option("--lines", is_flag=True, help="Each line of the input is a message of its own.")
@talks
def write(
    text: str | None,
    stream: str,
    key: str | None,
    file: BinaryIO | None,
    lines: bool,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Append TEXT, a file, or what comes on standard input (-, or nothing); show the receipts, one a line.

    A receipt means: agreed, and on disk at a quorum. Receipts are JSON unless a person looks at them.
    """
    source = _source(text, file)
    keyed = None if key is None else octets(key)
    value = b"" if lines else source.read() if source else octets(text or "")
    if text is None and file is None and not (lines or value):
        raise click.UsageError(_ONE_SOURCE)  # nobody meant to say nothing
    with reach(cluster, node) as client, _usage():
        target = client.journal(stream)
        if lines:
            _write_lines(target, source or iter(octets(text or "").splitlines()), keyed, _for_people(output))
        else:
            _show_receipts([target.write(value, keyed)], _for_people(output))


def _source(text: str | None, file: BinaryIO | None) -> BinaryIO | None:
    """What to read from; None: the text is all. Without either it is standard input, unless a person sits there."""
    both, neither = text is not None and file is not None, text is None and file is None
    if both or (neither and sys.stdin.isatty()):
        raise click.UsageError(_ONE_SOURCE)
    return file or (sys.stdin.buffer if text in (None, "-") else None)


@journal.command(epilog="Example: chaplain journal read --stream orders --from 100 --cluster demo")
@click.option("--stream", required=True, metavar="S", help="The stream to read.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Begin with this one; without it, with the first one kept.",
)
@click.option("--to", "stop", type=click.IntRange(0), metavar="OFFSET", help="Stop before this one.")
@click.option("--follow", is_flag=True, help="Go on with whatever is written from now on.")
@talks
def read(
    stream: str, start: int | None, stop: int | None, follow: bool, cluster: str, node: int | None, output: str
) -> None:
    """Show messages, one JSON object a line, up to where the stream ends now; with --output table, a table of them.

    Octets that are not UTF-8 are shown as {"base64": "…"}; timestamps are UTC with nanoseconds.
    """
    check_rows(follow)
    if stop is not None and start is not None and stop < start:
        raise click.UsageError(f"there is nothing from {start} to before {stop}: --to is the first one left out")
    with reach(cluster, node) as client, _usage(), while_somebody_reads():
        found = client.journal(stream).read("earliest" if start is None else start, stop, follow)
        put_rows((message_json(message) for message in found), _MESSAGE)


def _write_lines(target: Journal, lines: Iterable[bytes], key: bytes | None, people: bool) -> None:
    with target.writer(receipts=not people) as writer:
        for number, line in enumerate(lines, 1):
            writer.write(line.removesuffix(b"\n"), key)
            if number % _PROGRESS_EVERY == 0:
                progress(f"{number} lines read, {writer.count} written")
                if not people:
                    _show_to_whoever_reads(writer.take_receipts())
        writer.flush()
        if not people:
            _show_to_whoever_reads(writer.take_receipts())
    if people:
        end = f", the last one at offset {writer.last.offset}" if writer.last else ""
        click.echo(f"{writer.count} messages written to {writer.stream}{end}.")


def _show_to_whoever_reads(receipts: list[Receipt]) -> None:
    """Whoever has seen enough of the receipts does not end the writing: the rest of the input would be lost."""
    try:
        _show_receipts(receipts, people=False)
    except BrokenPipeError:
        discard_output()


def _show_receipts(receipts: list[Receipt], people: bool) -> None:
    shown = [receipt_json(receipt) for receipt in receipts]
    if people and shown:
        put_table(_RECEIPT, shown)
    for row in () if people else shown:
        put_json(row)


def receipt_json(receipt: Receipt) -> dict[str, object]:
    return {**dict(receipt), "timestamp": timestamp(receipt.timestamp), "hash": receipt.hash.hex()}


def message_json(message: Message) -> dict[str, object]:
    shown = {
        **dict(message),
        "key": None if message.key is None else shown_value(message.key),
        "value": shown_value(message.value),
        "timestamp": timestamp(message.timestamp),
    }
    if message.headers:
        shown["headers"] = {name: shown_value(value) for name, value in message.headers.items()}
    else:
        del shown["headers"]
    return shown


def timestamp(time_ns: int) -> str:
    """UTC with all nanoseconds: a number that large would lose its last digits in many JSON readers."""
    seconds, rest = divmod(time_ns, _NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def _for_people(output: str) -> bool:
    """A table if one was asked for, or if nobody said and a person looks."""
    return asked_for_table() or (output == "table" and sys.stdout.isatty())


@contextmanager
def _usage() -> Iterator[None]:
    """What the library calls a wrong value is wrong usage here."""
    try:
        yield
    except (ValueError, TypeError) as wrong:
        from chaplain.errors import ChaplainError, Misused  # noqa: PLC0415

        if isinstance(wrong, ChaplainError) and not isinstance(wrong, Misused):
            raise
        raise click.UsageError(str(wrong)) from None
