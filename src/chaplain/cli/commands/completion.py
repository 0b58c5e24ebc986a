"""`chaplain completion`: prints the script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(epilog="Example: chaplain completion bash >> ~/.bashrc")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete chaplain's commands. Append it to the shell's start-up file."""
    script = get_completion_class(shell)
    assert script is not None, "click has scripts for these three shells"
    root = click.get_current_context().find_root().command
    click.echo(script(root, {}, "chaplain", "_CHAPLAIN_COMPLETE").source())
