"""The command `chaplain`: a noun, then a verb. Each noun is a file of this folder, imported when it is used.

Exit codes: 0 done, 1 failed and said why in one sentence, 2 bad usage, 3 a verification found a break.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

from chaplain import __version__
from chaplain.errors import ChaplainError

NOUNS = {
    "cluster": "Start, look at and stop a cluster on this machine.",
    "node": "Run one node.",
    "member": "See who is in a cluster.",
    "client": "Let clients in, with their rights, and end them.",
    "journal": "Write to streams in one agreed order, on disk, and read them.",
    "sequence": "Publish events under one agreed, gapless numbering in memory, and read them.",
    "sql": "Execute SQL in one agreed order on every node's database, and query it.",
    "graph": "Append events that survive partitions, and read them.",
    "query": "Ask the whole cluster a question.",
    "event": "Fire events that reach every node, and listen to them.",
    "pool": "Broadcast to whoever has joined a pool, and listen.",
    "pipeline": "Land streams in tables and prove them, with Spark.",
    "key": "Make keys, and replace the cluster's.",
    "console": "See a cluster live, as a web page.",
    "drill": "Break a cluster on purpose and check every promise.",
    "demo": "See it all: three nodes, every stream kind, a kill -9, a verdict.",
    "config": "See what a node is configured with, and why.",
    "completion": "Completion for your shell.",
    "wire": "Messages as bytes and as JSON, for people who debug.",
}
"""Each noun is `chaplain.cli.NOUN`, which has a click command of the same name."""


class Nouns(click.Group):
    """Knows what there is without importing it: starting a node must not load everything else."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        command = getattr(importlib.import_module(f"chaplain.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(NOUNS.items()))


@click.command(
    cls=Nouns,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: chaplain cluster up --nodes 3 --dir demo",
)
@click.version_option(__version__, prog_name="chaplain")
def cli() -> None:
    """Events in an order that can be proven, for Python and Spark, without a broker."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    try:
        code = cli.main(args=arguments, prog_name="chaplain", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        code = end.exit_code
    except click.ClickException as mistake:
        mistake.show()
        code = mistake.exit_code
    except ChaplainError as error:
        click.echo(f"chaplain: {error}", err=True)
        code = 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("chaplain: interrupted", err=True)
        code = 1
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
