"""`chaplain member`: who is in the cluster."""

from __future__ import annotations

import click

from chaplain.cli.reach import reach, talks
from chaplain.cli.show import put_json, put_table


@click.group()
def member() -> None:
    """Nodes of a cluster, as its members see them."""


@member.command("list", epilog="Example: chaplain member list --cluster demo --node 2")
@talks
def list_(cluster: str, node: int | None, output: str) -> None:
    """Show the membership list of one node: its own view."""
    with reach(cluster, node) as client:
        members = [
            {"id": each.id, "uri": each.uri, "state": each.state, "incarnation": each.incarnation}
            for each in client.members()
        ]
    if output == "json":
        put_json(members)
    else:
        put_table(["id", "uri", "state", "incarnation"], members)
