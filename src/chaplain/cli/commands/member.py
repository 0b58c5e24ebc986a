"""`chaplain member`: who is in the cluster, and who shall be."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.connection_options import reach, talks
from chaplain.cli.support.output import progress, put_json, put_table, somebody_answers

if TYPE_CHECKING:
    from chaplain.client.types.journal import ChangeRecord

ROLES = ("executor", "ingest", "config")


@click.group(epilog="Example: chaplain member list --cluster demo")
def member() -> None:
    """Nodes of a cluster: who there is, who joins and leaves, and who serializes."""


@member.command("list", epilog="Example: chaplain member list --cluster demo --node 2")
@talks
def list_(cluster: str, node: int | None, output: str) -> None:
    """Show the membership list of one node: its own view."""
    with reach(cluster, node) as client:
        members: list[dict[str, object]] = [
            {
                "id": each.id,
                "uri": each.uri,
                "state": each.state,
                "incarnation": each.incarnation,
                **({"headers": each.headers} if each.headers else {}),
            }
            for each in client.members()
        ]
    if output == "json":
        put_json(members)
    else:
        put_table(["id", "uri", "state", "incarnation"], members)


@member.command(epilog="Example: chaplain member add --cluster demo")
@click.option("--id", "number", type=click.IntRange(1, 254), help="The node's number; of a known node: give it roles.")
@click.option("--role", "roles", multiple=True, type=click.Choice(ROLES), help="May be repeated.  [default: all three]")
@click.option("--at", "endpoint", default="", metavar="ENDPOINT", help="Where the node will listen on another machine.")
@click.option("--http", default="127.0.0.1:7480", show_default=True, help="With --at: for monitoring, there.")
@talks
def add(
    number: int | None, roles: tuple[str, ...], endpoint: str, http: str, cluster: str, node: int | None, output: str
) -> None:
    """Make a node's directory, let it in, start it, and give it its roles once it has caught up.

    With --at it is for another machine: the directory is made here, and the node is let in; take the directory there
    and run it, then give it its other roles with --id. It serializes only after `member serializers`.
    """
    from chaplain.cli.support.member_changes import add_node  # noqa: PLC0415
    from chaplain.config import find_cluster  # noqa: PLC0415

    directory = find_cluster(cluster).parent.resolve()
    with reach(cluster, node) as client:
        added = add_node(client, directory, number, roles or ROLES, endpoint, http)
    if output == "json":
        put_json(added)
    elif added["waits"]:
        click.echo(f"Take {added['folder']} to its machine, and run: chaplain node run --config node.toml")
        click.echo(f"Then: chaplain member add --id {added['id']} --cluster {shlex.quote(str(cluster))}")
    else:
        click.echo(f"node {added['id']} is live as {added['shown']}.")


@member.command(epilog="Example: chaplain member remove 3 --cluster demo")
@click.argument("number", type=click.IntRange(1, 254))
@click.option("--role", "roles", multiple=True, type=click.Choice(("executor", "ingest")), help="Only this role.")
@talks
def remove(number: int, roles: tuple[str, ...], cluster: str, node: int | None, output: str) -> None:
    """Take a node out of the serializers, then as ingest and config node, then as executor; stop it if it is here.

    Its number and its key are spent for ever. What it holds stays in its directory.
    """
    from chaplain.cli.support.member_changes import remove_node  # noqa: PLC0415
    from chaplain.config import find_cluster  # noqa: PLC0415

    directory = find_cluster(cluster).parent.resolve()
    with reach(cluster, node) as client:
        removed = remove_node(client, directory, number, roles)
    if output == "json":
        put_json(removed)
    else:
        click.echo(f"node {number} is no longer {removed['shown']}.")


@member.command(epilog="Example: chaplain member serializers 1 2 3 4 5 --cluster demo")
@click.argument("numbers", type=click.IntRange(1, 254), nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask, also if fewer failures are survived then.")
@talks
def serializers(numbers: tuple[int, ...], yes: bool, cluster: str, node: int | None, output: str) -> None:
    """Have these nodes, all of them and no others, agree on the order from now on; the first is to be master.

    All of them must be members that answer. Nothing stops meanwhile. If fewer failures are survived then, this says so
    and asks first; where nobody can be asked, it only says so.
    """
    from chaplain.cli.support.member_changes import Changes, weakened  # noqa: PLC0415

    with reach(cluster, node) as client:
        warning = weakened(client.nodes().serializers, numbers)
        if warning and not yes:
            click.echo(warning, err=True)
            if somebody_answers() and not click.confirm("Go on?", err=True):
                raise click.ClickException("nothing has changed")
        change: ChangeRecord = Changes(client, progress).follow(client.new_serializers(numbers))
    if output == "json":
        put_json({"serializers": list(change.nodes), "stage": change.stage, "index": change.index})
    else:
        click.echo(f"{', '.join(map(str, change.nodes))} serialize, as of message {change.index}.")
