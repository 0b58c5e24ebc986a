"""`chaplain member`: lists, adds and removes nodes, and chooses the serializers."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from chaplain.cli.support.broken_pipe import stop_on_closed_output
from chaplain.cli.support.connection_options import cluster_options, connected
from chaplain.cli.support.input_bytes import text_or_stdin
from chaplain.cli.support.output import escaped, is_interactive, print_json, print_table, progress
from chaplain.errors import Unreachable
from chaplain.json_values import json_value

if TYPE_CHECKING:
    from chaplain.client.types.journal import ChangeRecord

ROLES = ("executor", "ingest", "config")


@click.group(epilog="Example: chaplain member list --cluster demo")
def member() -> None:
    """List, add and remove the nodes of a cluster, and choose its serializers."""


@member.command("list", epilog="Example: chaplain member list --cluster demo --node 2")
@cluster_options
def list_(cluster: str, node: int | None, output: str) -> None:
    """Show the membership list as one node sees it. A member that was silent until it was given up has failed; one that
    was stopped or removed has just left.
    """
    with connected(cluster, node) as client:
        members: list[dict[str, object]] = [
            {
                "id": each.id,
                "uri": each.uri,
                "state": each.state,
                "incarnation": each.incarnation,
                "failed": each.failed,
                **({"headers": each.headers} if each.headers else {}),
            }
            for each in client.members()
        ]
    if output == "json":
        print_json(members)
    else:
        shown = [
            {**each, "state": f"{each['state']} (failed)" if each["failed"] else each["state"]} for each in members
        ]
        print_table(["id", "uri", "state", "incarnation"], shown)


@member.command(epilog="Example: chaplain member send 2 hello --cluster demo")
@click.argument("member", metavar="ID", type=click.IntRange(0, 2**32 - 1))
@click.argument("text")
@click.option(
    "--timeout",
    type=click.FloatRange(0.05, 60),
    default=5.0,
    show_default=True,
    help="Seconds to wait for the member's acknowledgement.",
)
@cluster_options
def send(member: int, text: str, timeout: float, cluster: str, node: int | None, output: str) -> None:
    """Send TEXT (- reads standard input) to all clients that listen to messages at member ID.

    The command fails if the message was dropped, because nobody listens there, or has expired.
    """
    value = text_or_stdin(text)
    with connected(cluster, node) as client:
        delivery = client.member(member).send(value, timeout)
    if output == "json":
        print_json(dict(delivery))
    if delivery.outcome != "delivered":
        raise Unreachable(f"the message to node {member} was {delivery.outcome}: {delivery.reason}")


@member.command(epilog="Example: chaplain member listen --node 2 --cluster demo")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after this many seconds without a message.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@cluster_options
def listen(timeout: float | None, count: int | None, cluster: str, node: int | None, output: str) -> None:
    """Show the messages that are sent to the clients of one node (`--node`), one per line."""
    with (
        connected(cluster, node) as client,
        stop_on_closed_output(),
        client.messages(timeout=timeout) as messages,
    ):
        for number, each in enumerate(messages, 1):
            if output == "json":
                print_json(
                    {
                        "value": json_value(each.value),
                        "sender": each.sender,
                        "client": each.client,
                        "missed": each.missed,
                    }
                )
            else:
                lost = f" ({each.missed} lost before this)" if each.missed else ""
                text = escaped(each.value.decode(errors="backslashreplace"))
                click.echo(f"{escaped(each.client)}@{each.sender}: {text}{lost}")
            if number == count:
                break


@member.command(epilog="Example: chaplain member add --cluster demo")
@click.option(
    "--id", "number", type=click.IntRange(1, 254), help="The node's number. An existing node gets further roles."
)
@click.option(
    "--role", "roles", multiple=True, type=click.Choice(ROLES), help="Role; repeatable.  [default: all three]"
)
@click.option("--at", "endpoint", default="", metavar="ENDPOINT", help="Endpoint of a node on another machine.")
@click.option(
    "--http", default="127.0.0.1:7480", show_default=True, help="With --at: address of its monitoring server."
)
@cluster_options
def add(
    number: int | None, roles: tuple[str, ...], endpoint: str, http: str, cluster: str, node: int | None, output: str
) -> None:
    """Create a node's directory, add the node, start it, and give it its roles once it has caught up.

    With --at the node runs on another machine: the command creates its directory here and adds it with its first role.
    Copy the directory to that machine and run the node, then give it its other roles with --id. A new node does not
    serialize until `member serializers` names it.
    """
    from chaplain.cli.support.member_changes import add_node  # noqa: PLC0415
    from chaplain.config import find_cluster  # noqa: PLC0415

    directory = find_cluster(cluster).parent.resolve()
    with connected(cluster, node) as client:
        added = add_node(client, directory, number, roles or ROLES, endpoint, http)
    if output == "json":
        print_json(added)
    elif added["waits"]:
        click.echo(f"Copy {added['folder']} to its machine, and run: chaplain node run --config node.toml")
        click.echo(f"Then: chaplain member add --id {added['id']} --cluster {shlex.quote(str(cluster))}")
    else:
        click.echo(f"node {added['id']} is live as {added['shown']}.")


@member.command(epilog="Example: chaplain member remove 3 --cluster demo")
@click.argument("number", type=click.IntRange(1, 254))
@click.option(
    "--role", "roles", multiple=True, type=click.Choice(("executor", "ingest")), help="Remove only this role."
)
@cluster_options
def remove(number: int, roles: tuple[str, ...], cluster: str, node: int | None, output: str) -> None:
    """Remove a node: as serializer, then as ingest and config node, then as executor. Stop it if it runs here.

    Its number and its key can never be used again. Its data stays in its directory.
    """
    from chaplain.cli.support.member_changes import remove_node  # noqa: PLC0415
    from chaplain.config import find_cluster  # noqa: PLC0415

    directory = find_cluster(cluster).parent.resolve()
    with connected(cluster, node) as client:
        removed = remove_node(client, directory, number, roles)
    if output == "json":
        print_json(removed)
    else:
        click.echo(f"node {number} is no longer {removed['shown']}.")


@member.command(epilog="Example: chaplain member serializers 1 2 3 4 5 --cluster demo")
@click.argument("numbers", type=click.IntRange(1, 254), nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation if the new set tolerates fewer failures.")
@cluster_options
def serializers(numbers: tuple[int, ...], yes: bool, cluster: str, node: int | None, output: str) -> None:
    """Make exactly these nodes the serializers, which agree on the order. The first one becomes master.

    All of them must be members that answer. Writes continue during the change. If the new set tolerates fewer failures
    than the old one, the command asks for confirmation; without a terminal, it needs --yes.
    """
    from chaplain.cli.support.member_changes import ChangeFollower, lost_fault_tolerance  # noqa: PLC0415

    with connected(cluster, node) as client:
        warning = lost_fault_tolerance(client.nodes().serializers, numbers)
        if warning and not yes:
            if not is_interactive():
                raise click.ClickException(f"{warning} Nothing has changed: repeat the command with --yes")
            click.echo(warning, err=True)
            if not click.confirm("Go on?", err=True):
                raise click.ClickException("nothing has changed")
        change: ChangeRecord = ChangeFollower(client, progress).follow(client.new_serializers(numbers))
    if output == "json":
        print_json({"serializers": list(change.nodes), "stage": change.stage, "index": change.index})
    else:
        click.echo(f"{', '.join(map(str, change.nodes))} serialize, as of message {change.index}.")
