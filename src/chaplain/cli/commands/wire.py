"""`chaplain wire`: documented messages as bytes and as JSON, for people who debug."""

from __future__ import annotations

import json
import sys

import click

from chaplain.cli.support.output import output_option, put_json

LAYERS = (
    *("mesh", "parcel", "order", "cluster", "config", "verdict", "ingest", "request", "commit", "statement", "run"),
    *("event", "graph-request", "sequence-request", "knock", "greeting", "beacon"),
)
"""Here too, because what knows them is slow to load."""


@click.group(epilog="Example: chaplain wire decode aaa1060007")
def wire() -> None:
    """Messages as bytes and as JSON, for people who debug."""


@wire.command(epilog="Example: chaplain wire decode aaa1060007")
@click.argument("text", metavar="HEX")
@click.option("--layer", type=click.Choice(LAYERS), help="What it is.  [default: mesh or parcel, by its first octets]")
@output_option
def decode(text: str, layer: str | None, output: str) -> None:
    """Show an unsealed message, given in hexadecimal (or - for standard input), as JSON."""
    from chaplain.cli.wire_format.json_form import to_json  # noqa: PLC0415

    put_json(to_json(_bytes(_given(text)), layer))


@wire.command(epilog='Example: chaplain wire encode \'{"layer": "mesh", "command": "PING", "sequence": 7}\'')
@click.argument("text", metavar="JSON")
@output_option
def encode(text: str, output: str) -> None:
    """Show the bytes of a message, given as `wire decode` shows it (or - for standard input), in hexadecimal."""
    from chaplain.cli.wire_format.json_form import from_json  # noqa: PLC0415

    try:
        value = json.loads(_given(text))
    except ValueError as error:
        raise click.BadParameter(f"this is not JSON: {error}", param_hint="JSON") from None
    shown = from_json(value).hex()
    if output == "json":
        put_json({"hex": shown})
    else:
        click.echo(shown)


def _given(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise click.BadParameter("give pairs of hexadecimal digits", param_hint="HEX") from None
