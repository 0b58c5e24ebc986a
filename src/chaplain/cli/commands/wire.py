"""`chaplain wire`: converts documented messages between bytes and JSON, for debugging."""

from __future__ import annotations

import json
import sys

import click

from chaplain.cli.support.output import output_option, print_json

LAYERS = (
    *("mesh", "parcel", "order", "cluster", "config", "verdict", "ingest", "request", "commit", "statement", "run"),
    *("event", "graph-request", "sequence-request", "knock", "greeting", "beacon"),
)
"""A copy of the names in `wire_format.layers`, because that module is slow to import; a test compares them."""


@click.group(epilog="Example: chaplain wire decode aaa1060007")
def wire() -> None:
    """Convert messages between bytes and JSON, for debugging."""


@wire.command(epilog="Example: chaplain wire decode aaa1060007")
@click.argument("text", metavar="HEX")
@click.option(
    "--layer", type=click.Choice(LAYERS), help="Kind of message.  [default: mesh or parcel, by its first bytes]"
)
@output_option
def decode(text: str, layer: str | None, output: str) -> None:
    """Show an unsealed message as JSON. HEX is its bytes in hexadecimal; - reads standard input."""
    from chaplain.cli.wire_format.json_form import to_json  # noqa: PLC0415

    print_json(to_json(_bytes(_text_or_stdin(text)), layer))


@wire.command(epilog='Example: chaplain wire encode \'{"layer": "mesh", "command": "PING", "sequence": 7}\'')
@click.argument("text", metavar="JSON")
@output_option
def encode(text: str, output: str) -> None:
    """Show the bytes of a message in hexadecimal. JSON is what `wire decode` prints; - reads standard input."""
    from chaplain.cli.wire_format.json_form import from_json  # noqa: PLC0415

    try:
        value = json.loads(_text_or_stdin(text))
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint="JSON") from None
    shown = from_json(value).hex()
    if output == "json":
        print_json({"hex": shown})
    else:
        click.echo(shown)


def _text_or_stdin(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise click.BadParameter("give pairs of hexadecimal digits", param_hint="HEX") from None
