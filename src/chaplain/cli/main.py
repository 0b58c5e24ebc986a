"""The command `chaplain`: a noun, then a verb. Each noun is a file of this folder, imported when it is used.

Exit codes: 0 done, 1 failed and said why in one sentence, 2 bad usage, 3 a verification found a break. A node has two
more, see `chaplain node run --help`.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Any

import click

from chaplain import __version__
from chaplain.cli.support.broken_pipe import discard_output
from chaplain.cli.support.output import visible
from chaplain.errors import ASSERTIONS_OFF, ChaplainError

NOUNS = {
    "cluster": "Start, look at and stop a cluster on this machine.",
    "node": "Run one node.",
    "member": "See who is in a cluster, add nodes and remove them.",
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


class _Unread(Exception):
    """Whoever read our output has seen enough."""


class Nouns(click.Group):
    """Knows what there is without importing it: starting a node must not load everything else."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NOUNS:
            return None
        command = getattr(importlib.import_module(f"chaplain.cli.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as closed:
            raise _Unread from closed  # click would end with code 1, as if something had failed

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
    _prepare_streams()
    if not __debug__:
        click.echo(f"chaplain: {ASSERTIONS_OFF}", err=True)
        sys.exit(1)
    try:
        code = cli.main(args=arguments, prog_name="chaplain", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        code = end.exit_code
    except click.exceptions.NoArgsIsHelpError as unfinished:
        unfinished.show()
        code = unfinished.exit_code
    except click.ClickException as mistake:
        click.echo(f"chaplain: {visible(_told(mistake))}", err=True)
        code = mistake.exit_code
    except ChaplainError as error:
        click.echo(f"chaplain: {visible(str(error))}", err=True)
        code = 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("chaplain: interrupted", err=True)
        code = 1
    except (_Unread, BrokenPipeError):
        discard_output()
        code = 0
    except OSError as error:
        where = "" if error.filename is None else f" {os.fsdecode(error.filename)}"
        click.echo(f"chaplain: cannot read or write{where or ' the output'}: {error.strerror or error}", err=True)
        discard_output()
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _told(mistake: click.ClickException) -> str:
    """What is wrong with the words that were typed, and where to read on, in one sentence."""
    said = " ".join(mistake.format_message().split()).rstrip(".")
    context = getattr(mistake, "ctx", None)
    if context is None:
        return said
    return f"{said}{_nearest(mistake, context)}; see `{context.command_path} --help`"


def _nearest(mistake: click.ClickException, context: click.Context) -> str:
    """The noun that was meant; click cannot know those that are not imported."""
    typed = getattr(mistake, "command_name", "")
    if not typed or not isinstance(context.command, Nouns):
        return ""
    import difflib  # noqa: PLC0415  only for a message

    near = difflib.get_close_matches(typed, NOUNS, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _prepare_streams() -> None:
    """What a terminal's encoding lacks is spelled out; where something was closed before we began, nobody is there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  for as long as we run
        elif isinstance(stream, io.TextIOWrapper) and mode == "w" and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
