"""The options that name a cluster and one of its nodes, and the client that a command opens with them."""

from __future__ import annotations

import functools
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from chaplain.cli.support.output import F, cluster_option, json_output_option, output_option
from chaplain.errors import Unreachable

if TYPE_CHECKING:
    from chaplain.client.sync import Client

CONNECT_S = 8.0
"""Time-out of the client. With a second for Python's own start, the user gets an answer within ten seconds."""
REFUSED_S = 2.0
"""A cluster is down if all its ports refuse connections for this long. It is longer than the gap of a restart."""
REPLICATION_S = 3.0
"""Connected nodes replicate graph and sequence events to each other within this time."""
POLL_S = 0.1


def cluster_options(command: F) -> F:
    """Add the options of every command that connects to a cluster: `--cluster`, `--node` and `--output`."""
    return cluster_option(_node_option(output_option(command)))


def reader_options(command: F) -> F:
    """As `cluster_options`, for commands that print one JSON object per line unless `--output table` is given."""
    return cluster_option(_node_option(json_output_option(command)))


def _node_option(command: F) -> F:
    return click.option("--node", type=click.IntRange(1), metavar="I", help="Connect only to node I.")(command)


def named(option: str, help_text: str) -> Callable[[F], F]:
    """Add a name (of a stream or a pool) that may be given as an argument or as `option`. The command gets it as the
    parameter that is called like the option.
    """
    parameter = option.removeprefix("--")

    def add(command: F) -> F:
        @functools.wraps(command)
        def with_name(*args: Any, name_argument: str | None, name_option: str | None, **others: Any) -> Any:
            if (name_argument is None) == (name_option is None):
                raise click.UsageError(f"give one {parameter}: as the argument or as {option}")
            return command(*args, **{parameter: name_argument if name_option is None else name_option}, **others)

        metavar = parameter.upper()
        given = click.option(option, "name_option", metavar=metavar[0], help=help_text)(with_name)
        return click.argument("name_argument", metavar=f"[{metavar}]", required=False)(given)  # type: ignore[return-value]

    return add


@contextmanager
def connected(cluster: str, node: int | None) -> Iterator[Client]:
    """Open a client of the cluster, or of its node `node`, for the duration of the block."""
    check_reachable(cluster, node)
    # Imported here: `--help` needs neither sockets nor cryptography.
    from chaplain.client.sync import Client  # noqa: PLC0415

    with Client.connect(cluster, node=node, timeout=CONNECT_S) as client:
        try:
            yield client
        except ValueError as error:  # the client rejected an argument, such as an invalid stream name
            raise click.UsageError(str(error)) from None


def check_reachable(cluster: str, node: int | None) -> None:
    """Raise after `REFUSED_S` if every port refuses connections. If one is open, the client's own time-out applies."""
    from chaplain.config import endpoints_of, find_cluster, load_cluster  # noqa: PLC0415

    endpoints = endpoints_of(load_cluster(cluster).nodes, node)
    end_s = time.monotonic() + REFUSED_S
    while endpoints and all(map(_is_closed, endpoints)):
        if time.monotonic() > end_s:
            start = f"`chaplain cluster up --dir {shlex.quote(str(find_cluster(cluster).parent))}`"
            raise Unreachable(
                f"nobody listens at {', '.join(endpoints)}: is the cluster up? {start} starts what is down"
            )
        time.sleep(POLL_S)


def wait_for_replication(has_arrived: Callable[[], bool]) -> bool:
    """Wait up to `REPLICATION_S` for events that another node has just acknowledged; return True if they arrived."""
    end_s = time.monotonic() + REPLICATION_S
    while not (arrived := has_arrived()) and time.monotonic() < end_s:
        time.sleep(POLL_S)
    return arrived


def _is_closed(endpoint: str) -> bool:
    """Return whether the machine refuses connections to this port. Every other failure is left to the client, whose
    error message says more.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False
