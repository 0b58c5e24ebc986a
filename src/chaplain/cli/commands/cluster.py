"""`chaplain cluster`: creates clusters, and starts, inspects and stops one whose nodes run on this machine.

A cluster on this machine is one directory: `cluster.toml` for clients and `node-I/` for each node. The module turns
options into calls of `chaplain.runtime.cluster` and formats what they return; it does not know how nodes are started.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from chaplain.cli.support.connection_options import cluster_options
from chaplain.cli.support.output import cluster_option, escaped, output_option, print_json, print_table, progress
from chaplain.clock import FIFTH

CHANGES_SHOWN = 5
"""`cluster status` shows this many of the latest membership changes."""
CLOCK_OFF_S = 5.0
"""`cluster status` reports a node whose own time differs from the system clock by this much. A node follows a clock
that was set only slowly; at a difference of one minute the other nodes refuse its messages."""
DATABASES = ["sqlite", "postgres", "none"]
SEALS = ["aes-256-gcm", "hmac-sha256"]
FORMER_NAMES = {"found": "create"}
"""Former names of sub-commands. They still work; neither help nor completion lists them."""
_FOLDER = click.Path(path_type=Path, file_okay=False)


class _ClusterCommands(click.Group):
    """Accepts former names of sub-commands, too."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, FORMER_NAMES.get(cmd_name, cmd_name))


def _index_only_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that decide which nodes of a new cluster store payloads."""
    index_only = "The first N nodes serialize and store no payloads.  [default: all nodes serialize and store payloads]"
    copies = "With --index-only: number of nodes that must store a payload before it is ordered.  [default: 2]"
    command = click.option("--copies", type=click.IntRange(0, 254), default=0, help=copies, metavar="N")(command)
    return click.option("--index-only", type=click.IntRange(0, 254), default=0, help=index_only, metavar="N")(command)


def _seal_option(command: Callable[..., None]) -> Callable[..., None]:
    text = (
        "How frames on the network are protected: encrypted and authenticated, or (hmac-sha256) authenticated only."
        "  [default: aes-256-gcm]"
    )
    return click.option("--seal", type=click.Choice(SEALS), help=text)(command)


def _check_installed(database: str | None) -> None:
    """Fail before anything is created if the nodes would lack the packages for this database."""
    if database == "postgres":
        for name in ("pglast", "psycopg"):
            importlib.import_module(name)


@click.group(cls=_ClusterCommands, epilog="Example: chaplain cluster up --nodes 3 --dir demo")
def cluster() -> None:
    """Create, start, inspect and stop a cluster."""


@cluster.command(epilog="Example: chaplain cluster up --nodes 3 --dir demo")
@click.option("--nodes", type=click.IntRange(1, 254), help="Number of nodes of a new cluster.  [default: 3]")
@click.option(
    "--dir",
    "--cluster",
    "place",
    metavar="DIR|FILE",
    required=True,
    type=click.Path(path_type=Path),
    envvar="CHAPLAIN_CLUSTER",
    show_envvar=True,
    help="The cluster's directory, created if it does not exist, or its cluster.toml.",
)
@click.option("--node", type=click.IntRange(1), metavar="I", help="Start only node I.")
@click.option("--database", type=click.Choice(DATABASES), help="Database that executes SQL.  [default: sqlite]")
@click.option(
    "--base-port", type=click.IntRange(1, 65535), help="First of 2N consecutive ports.  [default: any free ports]"
)
@_index_only_options
@_seal_option
@output_option
def up(
    nodes: int | None,
    place: Path,
    node: int | None,
    database: str | None,
    base_port: int | None,
    index_only: int,
    copies: int,
    seal: str | None,
    output: str,
) -> None:
    """Start N nodes in the background and wait until they serve.

    If the directory contains a cluster already, start its nodes that are down. If a node does not start, the command
    reports the reason and fails; the other nodes keep running.
    """
    from chaplain.config import CLUSTER_FILE, load_cluster  # noqa: PLC0415
    from chaplain.errors import ConfigError  # noqa: PLC0415
    from chaplain.runtime.cluster.create import NodeSplit, make_cluster  # noqa: PLC0415
    from chaplain.runtime.cluster.local import base_port_of, bring_up, database_of  # noqa: PLC0415

    directory = place.parent if place.name == CLUSTER_FILE and place.is_file() else place
    if directory.is_file():
        raise click.BadParameter(f"{directory} is a file and no {CLUSTER_FILE}", param_hint="--dir")
    is_new = not (directory / CLUSTER_FILE).exists()
    if is_new:
        _check_installed(database)
        split = NodeSplit(index_only, copies)
        make_cluster(directory, nodes or 3, database or "sqlite", base_port, split, seal=seal or SEALS[0])
    elif nodes is not None and nodes != (there := len(load_cluster(directory).nodes)):
        raise ConfigError(f"{directory} holds a cluster of {there} nodes, not {nodes}; choose another directory")
    elif base_port is not None and base_port != (first := base_port_of(directory)):
        raise ConfigError(f"{directory} holds a cluster whose ports begin with {first}, not {base_port}: they stay")
    elif index_only or copies:
        raise ConfigError(f"{directory} holds a cluster: --index-only and --copies apply only to a new cluster")
    elif database is not None and (chosen := database_of(directory)) not in (None, database):
        raise ConfigError(f"{directory} holds a cluster with --database {chosen}, not {database}: that stays as it is")
    elif seal is not None and seal != (chosen := load_cluster(directory).seal):
        raise ConfigError(f"{directory} holds a cluster that seals with {chosen}: --seal applies only to a new cluster")
    started = bring_up(directory.resolve(), progress, only=node, created=is_new)
    if output == "json":
        print_json({"started": started, **_status(directory)})
    else:
        serving = len(load_cluster(directory).nodes) if node is None else 1
        click.echo(f"{serving} node{'s' * (serving != 1)} serve{'s' * (serving == 1)}, {len(started)} started now.")
        for line in _troubles(_status(directory)["nodes"]):
            click.echo(line)
        click.echo(f"Next: chaplain cluster status --cluster {shlex.quote(str(directory))}")


@cluster.command(epilog="Example: chaplain cluster create --dir ours --at tcp://10.0.0.1:7400 --at tcp://10.0.0.2:7400")
@click.option(
    "--dir", "directory", required=True, type=_FOLDER, help="The cluster's directory, created if it does not exist."
)
@click.option(
    "--at",
    "endpoints",
    required=True,
    multiple=True,
    metavar="ENDPOINT",
    help="Endpoint of node 1, of node 2 and so on: repeat the option for each node.",
)
@click.option(
    "--database", type=click.Choice(DATABASES), default="sqlite", show_default=True, help="Database that executes SQL."
)
@click.option("--http", default="127.0.0.1:7480", show_default=True, help="Address of each node's monitoring server.")
@_index_only_options
@_seal_option
@output_option
def create(
    directory: Path,
    endpoints: tuple[str, ...],
    database: str,
    http: str,
    index_only: int,
    copies: int,
    seal: str | None,
    output: str,
) -> None:
    """Write the keys and settings of a new cluster on several machines, without starting a node.

    Copy DIR/node-I to machine I and run `chaplain node run` there. Clients need cluster.toml and client.identity.
    """
    from chaplain.runtime.cluster.create import NodeSplit, make_distributed_cluster  # noqa: PLC0415

    _check_installed(database)
    make_distributed_cluster(directory, endpoints, database, http, NodeSplit(index_only, copies), seal=seal or SEALS[0])
    folders = [str(directory / f"node-{number}") for number in range(1, len(endpoints) + 1)]
    if output == "json":
        print_json({"cluster": str(directory), "nodes": folders})
        return
    for folder, endpoint in zip(folders, endpoints, strict=True):
        click.echo(f"{folder} is for the machine of {endpoint}: chaplain node run --config node.toml")
    click.echo(f"{directory}/cluster.toml and {directory}/client.identity are for clients. Keep what is here secret.")


@cluster.command(epilog="Example: chaplain cluster status --cluster demo --output json")
@cluster_options
def status(cluster: str, node: int | None, output: str) -> None:
    """Show the nodes, their roles, the streams of every kind and the latest membership changes.

    If nodes differ, the status of a stream is that of the node that is furthest ahead; with --node I, that of node I.
    """
    found = _status(Path(cluster), node)
    if output == "json":
        print_json(found)
        return
    nodes = found["nodes"]
    columns = ["id", "endpoint", "pid", "state", "roles", "master", "members", "standing"]
    optional = ("disk_full", "reserved", "index_only")
    columns += [name for name in optional if any(node[name] for node in nodes)]  # an empty column only takes up width
    copies = f", serializers are index-only: {found['copies']} copies of each payload" if found["copies"] else ""
    print_table(columns, nodes, f"regime {found['regime'] or '-'}{copies}")
    for line in _how_to_start(Path(cluster), {node["id"]: node["pid"] for node in nodes if node["state"] == "down"}):
        click.echo(line)
    for line in (*(_too_few_data_nodes(found) if node is None else ()), *_troubles(nodes)):
        click.echo(escaped(line))
    if unlisted := ", ".join(map(str, found["unlisted"])):
        click.echo(f"cluster.toml is old: it lacks node {unlisted}; copy the file from where `member add` was called.")
    if changes := found["changes"]:
        print_table(["change", "nodes", "stage", "open", "why"], changes[-CHANGES_SHOWN:], "changes of nodes")
    if rows := list(_streams(found)):
        print_table(["kind", "stream", "head", "state"], rows, _order(found["sequence"]))


@cluster.command(epilog="Example: chaplain cluster down --cluster demo")
@cluster_option
@click.option("--node", type=click.IntRange(1), metavar="I", help="Stop only node I.")
@output_option
def down(cluster: str, node: int | None, output: str) -> None:
    """Stop the cluster's nodes. Their data stays in the directory."""
    from chaplain.config import find_cluster  # noqa: PLC0415
    from chaplain.runtime.cluster.local import bring_down  # noqa: PLC0415

    stopped = bring_down(find_cluster(cluster).parent.resolve(), node)
    if output == "json":
        print_json({"stopped": stopped})
    else:
        click.echo(f"{len(stopped)} node{'s' * (len(stopped) != 1)} stopped.")


def _too_few_data_nodes(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if serializers are index-only and fewer nodes with data are up than must have a payload."""
    here = [str(node["id"]) for node in found["nodes"] if node["state"] != "down" and not node["index_only"]]
    if len(here) < found["copies"]:
        yield (
            f"too few data nodes are up: {found['copies']} must store a payload before it is ordered, and"
            f" {'only node ' + ', '.join(here) if here else 'no such node'} is up. Writes wait; start one, or add one."
        )


def _troubles(nodes: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each problem: no master, no vote, a node that runs twice, a wrong clock, a full disk, a database
    that is stopped or damaged.
    """
    here = [node for node in nodes if node["state"] != "down"]
    if here and not any(node["master"] for node in here):
        yield f"no node is master: nothing is written until a majority serializes; {len(here)} of {len(nodes)} are up."
    for node in here:
        standing = node.get("standing") or "sound"
        if standing != "sound":
            voteless = "" if standing.startswith("sound") else " has no vote until it has caught up"
            yield f"node {node['id']}{voteless}: {standing}"
    doubles = {double["id"]: double["endpoints"] for node in here for double in node.get("used_twice", ())}
    for twice, endpoints in sorted(doubles.items()):
        yield f"node {twice} runs twice, at {' and '.join(endpoints)}: stop the one whose directory is a copy."
    for node in here:
        if abs(off_s := node.get("clock_error_seconds", 0)) >= CLOCK_OFF_S:
            follows = f"the node catches up in {FIFTH * abs(off_s):.0f} s, or at once if it is restarted"
            yield f"the clock of node {node['id']} was set, and is {off_s:+.0f} s from the node's own: {follows}."
    if full := [str(node["id"]) for node in nodes if node["disk_full"]]:
        yield f"no room on the disk of node {', '.join(full)}: nothing is written there until there is more."
    for node in nodes:
        for stream, database in node.get("databases", {}).items():
            if "trouble" in database or "needs_copy" in database:
                trouble = database.get("trouble") or "it waits for another node's copy"
                truncated = ", and the log it needs was dropped: after a restart it takes another node's copy"
                more = truncated if "needs_copy" in database else ""
                yield f"node {node['id']}, database of {stream}: {database['state']}, {trouble}{more}"
            elif "damage" in database:
                yield f"node {node['id']}, database of {stream}: was damaged and is made anew, {database['damage']}"


def _streams(found: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield a table row for each stream. `head` is the next offset of a journal stream, and the number of events of
    other kinds.
    """
    for name, one in found["streams"].items():
        state = f"kept from offset {one['first']} on" if one.get("first") else ""
        yield {"kind": "journal", "stream": name, "head": one["head"], "state": state}
    if (unlisted := found["streams_count"] - len(found["streams"])) > 0:
        yield {"kind": "journal", "stream": "", "state": f"{unlisted} more, which `Client.streams()` lists"}
    for name, one in found["graph"].items():
        state = f"{one['read']} read, {one['leaves']} leaves"
        if len(found["nodes"]) > 1:
            state += ", the same on every node" if one["same"] else f", by node {_counts(one['nodes'])}"
        if one.get("held_by"):
            state += f", old events retained for node {', '.join(map(str, one['held_by']))}"
        yield {"kind": "graph", "stream": name, "head": one["events"], "state": state}
    for name, one in (found["sequence"] or {"streams": {}})["streams"].items():
        yield {"kind": "sequence", "stream": name, "head": one["head"], "state": found["sequence"]["state"]}
    for name, one in found["pools"].items():
        yield {"kind": "pool", "stream": name, "state": f"heard at node {', '.join(map(str, one['nodes']))}"}


def _counts(by_node: Mapping[str, int]) -> str:
    return ", ".join(f"{node}: {count}" for node, count in by_node.items())


def _order(sequence: Mapping[str, Any] | None) -> str:
    """Describe the state that all sequence streams share: the cluster numbers their events in one order."""
    if not sequence or not sequence["history"]:
        return ""
    members = ", ".join(map(str, sequence["work_set"])) or "empty"
    return (
        f"sequence {sequence['state']}: history {sequence['history']}, work set {members}, number {sequence['number']}"
    )


def _how_to_start(cluster: Path, down: Mapping[int, int | None]) -> Iterator[str]:
    """Yield what to do about each node that does not answer. `down` maps it to its process id, if it has a process."""
    from chaplain.config import find_cluster, load_cluster  # noqa: PLC0415

    directory = find_cluster(cluster).parent
    here = {node.id for node in load_cluster(cluster).nodes if node.http}
    for node, pid in down.items():
        if pid is not None:
            yield f"node {node} runs as process {pid} but does not answer; its log is {directory}/node-{node}/log."
        elif node not in here:
            yield f"node {node} does not answer: on its machine, `chaplain node run --config node.toml` starts it."
    if stopped := [str(node) for node, pid in down.items() if pid is None and node in here]:
        start = f"`chaplain cluster up --dir {shlex.quote(str(directory))}`"
        are = "node {} is" if len(stopped) == 1 else "nodes {} are"
        yield f"{are.format(', '.join(stopped))} down: {start} starts what is down."


def _status(where: Path, node: int | None = None) -> dict[str, Any]:
    from chaplain.config import find_cluster  # noqa: PLC0415
    from chaplain.runtime.cluster.status import describe  # noqa: PLC0415

    return describe(find_cluster(where).parent.resolve(), node)
