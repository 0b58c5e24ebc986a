"""`chaplain node`: runs one node in the foreground."""

from __future__ import annotations

import gc
from pathlib import Path

import click


@click.group(epilog="Example: chaplain node run --config demo/node-1/node.toml")
def node() -> None:
    """Run one node."""


@node.command(epilog="Example: chaplain node run --config demo/node-1/node.toml --set mesh.heartbeat_seconds=0.5")
@click.option("--config", "file", required=True, type=click.Path(path_type=Path), help="The node's TOML file.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Override a setting; repeatable.")
@click.option("--parent", type=click.IntRange(1), metavar="PID", help="Stop when this process, the parent, has ended.")
def run(file: Path, sets: tuple[str, ...], parent: int | None) -> None:
    """Run a node in the foreground until SIGTERM or Ctrl-C.

    Log lines go to standard error as JSON. Exit code 1: the node could not start, or stopped because it could not keep
    a guarantee; 4: the cluster removed this node, and it must not be started again; 70: a bug in chaplain.
    """
    from chaplain.runtime.supported_platform import check_platform  # noqa: PLC0415

    check_platform()
    gc.disable()  # imported modules never become garbage; scanning them takes a twelfth of the start-up time
    from chaplain.config import load_node  # noqa: PLC0415
    from chaplain.runtime.layers.node import run_node  # noqa: PLC0415
    from chaplain.runtime.parent_watch import stop_with_parent  # noqa: PLC0415

    gc.enable()
    flags: dict[str, str] = {}
    for text in sets:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--set")
        flags[name] = value
    config = load_node(file, flags=flags)
    if parent is not None:
        stop_with_parent(parent)
    click.get_current_context().exit(run_node(config))
