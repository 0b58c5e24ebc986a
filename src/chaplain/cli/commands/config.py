"""`chaplain config`: shows a node's settings and where each value comes from."""

from __future__ import annotations

from pathlib import Path

import click

from chaplain.cli.support.output import output_option, print_json, print_table


@click.group(epilog="Example: chaplain config show --config demo/node-1/node.toml")
def config() -> None:
    """Show a node's settings and where each value comes from."""


@config.command(epilog="Example: chaplain config show --config demo/node-1/node.toml")
@click.option("--config", "file", required=True, type=click.Path(path_type=Path), help="The node's TOML file.")
@click.option("--changed", is_flag=True, help="Only settings that differ from the default.")
@output_option
def show(file: Path, changed: bool, output: str) -> None:
    """Show every setting of a node, its value and its origin: a file, the environment or the default."""
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
        print_json(rows)
    else:
        print_table(["setting", "value", "origin"], rows)
