"""How commands reach a cluster: the options that name it and one of its nodes, and a client for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from chaplain.cli.show import F, cluster_option, output_option

if TYPE_CHECKING:
    from chaplain.client.sync import Client


def talks(command: F) -> F:
    """The options of every command that talks to a cluster."""
    node = click.option("--node", type=click.IntRange(1), metavar="I", help="Ask node I, and no other.")
    return cluster_option(node(output_option(command)))


@contextmanager
def reach(cluster: str, node: int | None) -> Iterator[Client]:
    # Imported here: `--help` needs neither sockets nor cryptography.
    from chaplain.client.sync import Client  # noqa: PLC0415

    with Client.connect(cluster, node=node) as client:
        try:
            yield client
        except ValueError as error:  # a name or a size that no call takes
            raise click.UsageError(str(error)) from None
