"""`chaplain prove`, `chaplain check`, `chaplain checkpoint` and `chaplain witness`: proofs and signed checkpoints.

`check` and `checkpoint compare` need no cluster. They exit with code 3 if nothing is proven.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from chaplain.cli.support.connection_options import cluster_options, connected, named
from chaplain.cli.support.output import BREAK_FOUND, cluster_option, escaped, output_option, print_json
from chaplain.errors import ConfigError, Malformed, Unproven
from chaplain.json_values import json_value

if TYPE_CHECKING:
    from chaplain.proofs.checkpoint import SignedCheckpoint
    from chaplain.proofs.note import VerifierKey
    from chaplain.proofs.policy import Policy
    from chaplain.proofs.tiles import TileSource

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=False)
_NEW_FILE = click.Path(path_type=Path, dir_okay=False, writable=True)
_DIRECTORY = click.Path(path_type=Path, exists=True, file_okay=False)


def _policy_option(required: bool) -> Callable[[Any], Any]:
    text = "The policy file: keys of nodes and witnesses, and how many of them must have signed."
    return click.option("--policy", "policy_file", required=required, type=_FILE, help=text)


@click.command(epilog="Example: chaplain prove --stream orders --offset 0 --cluster demo > order.proof")
@named("--stream", "The stream of the message.")
@click.option("--offset", required=True, type=click.IntRange(0), help="The offset of the message.")
@click.option("--tables", metavar="DIR", help="Prove a row of the landed table in this directory, without a cluster.")
@click.option("--out", type=_NEW_FILE, help="Write the proof to this file instead of the standard output.")
@click.option(
    "--cluster",
    "--dir",
    metavar="DIR|FILE",
    envvar="CHAPLAIN_CLUSTER",
    show_envvar=True,
    help="The cluster's directory, or its cluster.toml.",
)
@click.option("--node", type=click.IntRange(1), metavar="I", help="Connect only to node I.")
@output_option
def prove(stream: str, offset: int, tables: str | None, out: Path | None, cluster: str | None, node: int | None,
          output: str) -> None:  # fmt: skip
    """Make a proof of one message. Waits until a checkpoint that most nodes signed covers the message.

    The proof shows the message and at most 1 KiB of its neighbours. Check it with `chaplain check`.
    """
    if tables is None and cluster is None:
        raise click.UsageError("Missing option '--cluster' / '--dir' (env var: 'CHAPLAIN_CLUSTER'), or '--tables'")
    if cluster is not None and tables is None:
        with connected(cluster, node) as client:
            proof = client.prove(stream, offset)
    else:
        from chaplain.pipeline import prove_row  # noqa: PLC0415

        proof = prove_row(tables=str(tables), stream=stream, offset=offset)
    _print_or_save(proof.text, out, output, {"stream": stream, "offset": offset, "proof": proof.text})


@click.command(epilog="Example: chaplain check order.proof --policy cluster.policy")
@click.argument("file", type=_FILE)
@_policy_option(required=True)
@click.option("--stream", help="Refuse a proof about another stream.")
@click.option("--offset", type=click.IntRange(0), help="Refuse a proof about another offset.")
@click.option("--value", "value_file", type=_FILE, help="Refuse a proof about another value than this file's content.")
@output_option
def check(
    file: Path, policy_file: Path, stream: str | None, offset: int | None, value_file: Path | None, output: str
) -> None:
    """Check the proof of one message. This needs no cluster and no network.

    Exit code 0 and one line say what is proven; with `--output json` the line contains the message. Exit code 3 means
    that nothing is proven, and why.
    """
    from chaplain.proofs import proof  # noqa: PLC0415

    value = None if value_file is None else value_file.read_bytes()
    try:
        trusted = _read_policy(policy_file)
        found = proof.parse(_read(file, proof.PROOF_BYTES_MAX))
        proven = proof.check(found, trusted, stream=stream, offset=offset, value=value)
    except (Malformed, Unproven) as error:
        _stop(f"{file}: not proven: {error}")
    if output == "table":
        click.echo(escaped(proven.line))
        return
    message = {"key": None if proven.key is None else json_value(proven.key), "value": json_value(proven.value)}
    print_json({
        "cluster": proven.cluster,
        "stream": proven.stream,
        "offset": proven.offset,
        **message,
        "author": proven.author.hex(),
        "author_signed": proven.is_signed,
        "regime": proven.regime,
        "message": proven.message,
        "timestamp_ns": proven.timestamp_ns,
        "tree_size": proven.tree_size,
        "signers": proven.signers,
    })  # fmt: skip


@click.group(epilog="Example: chaplain checkpoint save today.checkpoint --cluster demo")
def checkpoint() -> None:
    """Show, save and compare signed checkpoints of a log, and print the policy to check them with."""


@checkpoint.command(epilog="Example: chaplain checkpoint show --cluster demo")
@cluster_options
def show(cluster: str, node: int | None, output: str) -> None:
    """Print the newest checkpoint of the log that most nodes signed."""
    _print_checkpoint(cluster, node, output, None)


@checkpoint.command(epilog="Example: chaplain checkpoint save today.checkpoint --cluster demo")
@click.argument("file", type=_NEW_FILE)
@cluster_options
def save(file: Path, cluster: str, node: int | None, output: str) -> None:
    """Save the newest checkpoint of the log that most nodes signed. Keep it: `compare` proves later logs against it."""
    _print_checkpoint(cluster, node, output, file)


def _print_checkpoint(cluster: str, node: int | None, output: str, out: Path | None) -> None:
    with connected(cluster, node) as client:
        signed = client.checkpoint()
    tree = signed.checkpoint
    facts = {"origin": tree.origin, "size": tree.size, "root": tree.root.hex(), "checkpoint": signed.text}
    _print_or_save(signed.text, out, output, facts)


def _print_or_save(text: str, out: Path | None, output: str, facts: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(text, encoding="utf-8")
    if output == "json":
        print_json(facts)
    elif out is None:
        click.echo(text, nl=False)


@checkpoint.command(epilog="Example: chaplain checkpoint compare old.checkpoint new.checkpoint --tiles segments")
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@_policy_option(required=False)
@click.option("--tiles", type=_DIRECTORY, help="Directory with the log's tiles, which contains the directory `tile`.")
@click.option(
    "--cluster",
    metavar="DIR|FILE",
    envvar="CHAPLAIN_CLUSTER",
    show_envvar=True,
    help="Cluster whose nodes have the tiles. Without --policy, more than half of its nodes must have signed.",
)
@click.option("--node", type=click.IntRange(1), metavar="I", help="Read tiles from node I only.")
@output_option
def compare(
    old: Path,
    new: Path,
    policy_file: Path | None,
    tiles: Path | None,
    cluster: str | None,
    node: int | None,
    output: str,
) -> None:
    """Check that the log of checkpoint NEW begins with the log of checkpoint OLD.

    Exit code 0: it does. Exit code 3: it does not, or nothing is proven. If a node signed two different checkpoints of
    one size, both are printed with its signatures: they prove its misbehaviour to everybody.
    """
    from chaplain.proofs.compare import Forked  # noqa: PLC0415
    from chaplain.proofs.compare import compare as compare_checkpoints  # noqa: PLC0415
    from chaplain.proofs.tiles import node_source  # noqa: PLC0415

    source = _tile_source(tiles, cluster, node)
    try:
        trusted = _read_policy(policy_file) if policy_file is not None else _policy_of(cluster)
        first, second = _read_checkpoint(old), _read_checkpoint(new)
        subtrees = None if source is None else node_source(second.checkpoint.size, source)
        found = compare_checkpoints(first, second, trusted, subtrees)
    except Forked as fork:
        if fork.evidence:
            click.echo(f"{escaped(', '.join(fork.signers))}: proof of misbehaviour, two checkpoints of one size:\n")
            click.echo(escaped(fork.evidence), nl=False)
        _stop(str(fork))
    except (Malformed, Unproven) as error:
        _stop(f"not proven: {error}")
    if output == "json":
        sizes = {"old_size": found.old_size, "new_size": found.new_size}
        print_json({"origin": found.origin, **sizes, "signers": found.signers})
    else:
        click.echo(escaped(found.line))


@checkpoint.command("policy", epilog="Example: chaplain checkpoint policy --cluster demo > cluster.policy")
@cluster_option
@click.option(
    "--node", "nodes", type=click.IntRange(1), multiple=True, help="Only this node; repeatable.  [default: all]"
)
@click.option("--enough", type=click.IntRange(1), help="Nodes that must have signed.  [default: more than half]")
@click.option(
    "--witness", "witnesses", multiple=True, help="Verifier key of a witness that must have signed; repeatable."
)
@output_option
def print_policy(
    cluster: str, nodes: tuple[int, ...], enough: int | None, witnesses: tuple[str, ...], output: str
) -> None:
    """Print the policy of a cluster: all that an auditor needs to check proofs and checkpoints.

    Give it to the auditor over a channel that the nodes do not control: whoever can change the policy decides what
    counts as proven.
    """
    from chaplain.proofs.note import parse_key  # noqa: PLC0415

    text = policy_text(cluster, nodes, enough, [parse_key(one) for one in witnesses])
    if output == "json":
        print_json({"policy": text})
    else:
        click.echo(text, nl=False)


@click.group(epilog="Example: chaplain witness serve --policy cluster.policy --port 7480")
def witness() -> None:
    """Run a witness, which cosigns the checkpoints of logs and refuses forks."""


@witness.command(epilog="Example: chaplain witness serve --policy cluster.policy --port 7480 --dir witness")
@_policy_option(required=True)
@click.option("--port", required=True, type=click.IntRange(0, 65535), help="Port to serve at; 0: any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to serve at.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("witness"),
    show_default=True,
    help="Directory with the witness's key and the checkpoints that it signed last; created if it is missing.",
)
@click.option("--name", default="", help="Name of a new key, such as example.com/witness.  [default: a random name]")
@output_option
def serve(policy_file: Path, port: int, host: str, directory: Path, name: str, output: str) -> None:
    """Cosign checkpoints that the policy accepts and that extend what this witness signed before.

    Speaks C2SP's tlog-witness protocol. Ctrl-C ends it. Keep the directory: a witness that lost it is a new witness.
    """
    from threading import Event  # noqa: PLC0415

    from chaplain.proofs.note import check_name  # noqa: PLC0415
    from chaplain.runtime.http.witness_server import WitnessServer, WitnessStore  # noqa: PLC0415

    if name:
        check_name(name)
    trusted = _read_policy(policy_file)
    store = WitnessStore(directory, name)
    server = WitnessServer(host, port, trusted, store)
    url, key = f"http://{server.endpoint}", store.secret.verifier.text()
    if output == "json":
        print_json({"url": url, "key": key})
    else:
        click.echo(f"The witness is at {url} (Ctrl-C ends it). Its key for policies:\n{key}")
    sys.stdout.flush()
    try:
        with suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
            Event().wait()
    finally:
        server.end()
        store.close()


def _stop(reason: str) -> NoReturn:
    click.echo(f"chaplain: {escaped(reason)}", err=True)
    raise click.exceptions.Exit(BREAK_FOUND)


def _read(file: Path, most: int) -> bytes:
    """Return at most `most` + 1 octets of a file. If there are more than `most`, the decoder refuses the file."""
    with file.open("rb") as stream:
        return stream.read(most + 1)


def _read_checkpoint(file: Path) -> SignedCheckpoint:
    from chaplain.proofs import checkpoint as checkpoints  # noqa: PLC0415
    from chaplain.proofs.note import NOTE_BYTES_MAX  # noqa: PLC0415

    try:
        return checkpoints.parse(_read(file, NOTE_BYTES_MAX))
    except Malformed as error:
        raise Malformed(f"{file}: {error}") from None


def _read_policy(file: Path) -> Policy:
    from chaplain.proofs import policy  # noqa: PLC0415

    try:
        return policy.parse(_read(file, policy.POLICY_BYTES_MAX))
    except Malformed as error:
        raise Malformed(f"{file}: {error}") from None


def _policy_of(cluster: str | None) -> Policy | None:
    from chaplain.proofs import policy  # noqa: PLC0415

    return None if cluster is None else policy.parse(policy_text(cluster, (), None, ()).encode())


def _tile_source(tiles: Path | None, cluster: str | None, only: int | None) -> TileSource | None:
    from chaplain.config import choose_nodes, load_cluster  # noqa: PLC0415
    from chaplain.proofs.tile_files import directory_source  # noqa: PLC0415

    if tiles is not None:
        return directory_source(tiles)
    if cluster is None:
        return None
    from chaplain.runtime.http.tile_client import http_source  # noqa: PLC0415

    return http_source([node.http for node in choose_nodes(load_cluster(cluster).nodes, only) if node.http])


def policy_text(
    cluster: str, nodes: Sequence[int] = (), enough: int | None = None, witnesses: Sequence[VerifierKey] = ()
) -> str:
    """The policy of a cluster: by default, more than half of its nodes have to sign."""
    from chaplain.config import load_cluster  # noqa: PLC0415
    from chaplain.proofs import policy  # noqa: PLC0415
    from chaplain.runtime.secret_files import read_public_key  # noqa: PLC0415

    file = load_cluster(cluster)
    keys = {node.id: read_public_key(node.key, f"node {node.id}") for node in file.nodes}
    unknown = sorted({*nodes} - {*keys})
    if unknown:
        raise ConfigError(f"there is no node {unknown[0]}: choose from {', '.join(map(str, sorted(keys)))}")
    chosen = {node: key for node, key in keys.items() if not nodes or node in nodes}
    if enough is not None and enough > len(chosen):
        raise ConfigError(f"--enough {enough} is more than the {len(chosen)} nodes")
    return policy.cluster_policy(file.cluster, chosen, enough, witnesses)
