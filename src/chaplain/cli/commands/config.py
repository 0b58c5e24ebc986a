"""`chaplain config`: what a node is configured with, and where each value is from."""

from __future__ import annotations

from pathlib import Path

import click

from chaplain.cli.support.output import output_option, put_json, put_table


@click.group(epilog="Example: chaplain config show --config demo/node-1/node.toml")
def config() -> None:
    """See what a node is configured with."""


@config.command(epilog="Example: chaplain config show --config demo/node-1/node.toml")
@click.option("--config", "file", required=True, type=click.Path(path_type=Path), help="The node's TOML file.")
@click.option("--changed", is_flag=True, help="Only what is not the default.")
@output_option
def show(file: Path, changed: bool, output: str) -> None:
    """Show every setting of a node, its value, and whether a file, the environment or nobody set it."""
    from chaplain.config import SETTINGS, load_node, variable_of  # noqa: PLC0415

    found = load_node(file)
    rows = [
        {
            "setting": setting.name,
            "value": found.values[setting.name],
            "origin": found.origins[setting.name],
            "variable": variable_of(setting.name),
        }
        for setting in SETTINGS
        if not changed or found.origins[setting.name] != "default"
    ]
    if output == "json":
        put_json(rows)
    else:
        put_table(["setting", "value", "origin"], rows)
