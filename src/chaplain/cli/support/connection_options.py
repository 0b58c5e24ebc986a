"""How commands reach a cluster: the options that name it and one of its nodes, and a client for them."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.output import F, cluster_option, output_option
from chaplain.errors import Unreachable

if TYPE_CHECKING:
    from chaplain.client.sync import Client

PATIENCE_S = 8.0
"""A person at a prompt is told within ten seconds that nobody answers; Python's own start takes one of them."""
ABSENCE_S = 2.0
"""Nodes whose ports are closed for so long are down; one that is just being started again is waited for."""
NEWS_S = 3.0
"""As long as nodes take to tell each other what they have, unless they are cut off."""
POLL_S = 0.1


def talks(command: F) -> F:
    """The options of every command that talks to a cluster."""
    node = click.option("--node", type=click.IntRange(1), metavar="I", help="Ask node I, and no other.")
    return cluster_option(node(output_option(command)))


@contextmanager
def reach(cluster: str, node: int | None) -> Iterator[Client]:
    check_presence(cluster, node)
    # Imported here: `--help` needs neither sockets nor cryptography.
    from chaplain.client.sync import Client  # noqa: PLC0415

    with Client.connect(cluster, node=node, timeout=PATIENCE_S) as client:
        try:
            yield client
        except ValueError as error:  # a name or a size that no call takes
            raise click.UsageError(str(error)) from None


def check_presence(cluster: str, node: int | None) -> None:
    """Raise soon if every port is closed; whoever has an open one may take a client's whole patience."""
    from chaplain.config import endpoints_of, find_cluster, load_cluster  # noqa: PLC0415

    endpoints = endpoints_of(load_cluster(cluster).nodes, node)
    end_s = time.monotonic() + ABSENCE_S
    while endpoints and all(map(_is_closed, endpoints)):
        if time.monotonic() > end_s:
            start = f"`chaplain cluster up --dir {shlex.quote(str(find_cluster(cluster).parent))}`"
            raise Unreachable(
                f"nobody listens at {', '.join(endpoints)}: is the cluster up? {start} starts what is down"
            )
        time.sleep(POLL_S)


def wait_for_news(is_there: Callable[[], bool]) -> bool:
    """Whether something is there, or comes soon: what was just written at one node is on its way to the others."""
    end_s = time.monotonic() + NEWS_S
    while not (there := is_there()) and time.monotonic() < end_s:
        time.sleep(POLL_S)
    return there


def _is_closed(endpoint: str) -> bool:
    """Whether its machine says that nobody listens there. An endpoint that cannot be asked is the client's business."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False
