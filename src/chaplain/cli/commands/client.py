"""`chaplain client`: adds, removes and lists the clients that may connect, and their rights on streams."""

from __future__ import annotations

import shlex
from base64 import b64encode
from pathlib import Path
from random import SystemRandom

import click

from chaplain.cli.support.connection_options import cluster_options, connected
from chaplain.cli.support.new_client import add_with_identity, rights
from chaplain.cli.support.output import print_json, print_table

_COLUMNS = ["name", "status", "admin", "writes", "reads", "lanes", "signature", "key"]


@click.group(epilog="Example: chaplain client add alice --write orders --cluster demo")
def client() -> None:
    """Add, list and remove clients and their rights on streams."""


@client.command(epilog="Example: chaplain client add alice --write 'orders*' --read '*' --cluster demo")
@click.argument("name")
@click.option("--write", "writes", multiple=True, metavar="PATTERN", help="Streams it may write; repeatable.")
@click.option("--read", "reads", multiple=True, metavar="PATTERN", help="Streams it may read; repeatable.")
@click.option("--admin", is_flag=True, help="It may add and remove clients and nodes.")
@click.option("--key", metavar="KEY", help="The public key of an existing identity; no identity file is written.")
@click.option(
    "--signature",
    type=click.Choice(["ed25519", "hmac"]),
    default="ed25519",
    show_default=True,
    help="How it signs its requests. hmac is cheaper, but third parties cannot verify it.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The identity file to write.  [default: NAME.identity]")
@cluster_options
def add(
    name: str,
    writes: tuple[str, ...],
    reads: tuple[str, ...],
    admin: bool,
    key: str | None,
    signature: str,
    out: Path | None,
    cluster: str,
    node: int | None,
    output: str,
) -> None:
    """Add a client called NAME. Its rights are patterns of stream names, in which * matches any text.

    With neither --write nor --read it may write and read all streams.

    Without --key the command creates an identity and writes it to a file. The client connects with this file: keep it
    secret and keep it safe.
    """
    from chaplain.config import load_cluster  # noqa: PLC0415
    from chaplain.journal.messages.signing import SECRET_BYTES  # noqa: PLC0415
    from chaplain.link.settings import HMAC  # noqa: PLC0415

    if signature == "hmac" and key is not None:
        raise click.UsageError("--signature hmac makes a secret, which goes into the identity file: leave out --key")
    if signature == "hmac" and load_cluster(cluster).seal == HMAC:
        raise click.UsageError(f"this cluster seals with {HMAC}, and its secret would travel readable: use ed25519")
    file = None if key is not None else out or Path(f"{name}.identity")
    with connected(cluster, node) as admins:
        if file is None:
            public_key = key or ""
            acl = admins.add_client(name, public_key, *rights(writes, reads), admin)
        else:
            secret = SystemRandom().randbytes(SECRET_BYTES) if signature == "hmac" else b""
            acl, public_key = add_with_identity(
                admins, load_cluster(cluster), name, file, rights(writes, reads), admin=admin, secret=secret
            )
    if output == "json":
        print_json({"name": name, "acl": acl, "key": public_key, "file": None if file is None else str(file)})
    else:
        click.echo(
            f"{name} may connect" + (f" with {file}" if file is not None else "") + f"; its key is {public_key}."
        )
        if file is not None:
            click.echo(f"To run commands as {name}, set CHAPLAIN_IDENTITY={shlex.quote(str(file))}")


@client.command(epilog="Example: chaplain client remove alice --cluster demo")
@click.argument("name")
@cluster_options
def remove(name: str, cluster: str, node: int | None, output: str) -> None:
    """Remove a client for good: its sessions and lanes end. The messages that it wrote stay."""
    with connected(cluster, node) as admins:
        admins.remove_client(name)
    if output == "json":
        print_json({"removed": name})
    else:
        click.echo(f"{name} is removed.")


@client.command("list", epilog="Example: chaplain client list --cluster demo --output json")
@cluster_options
def list_clients(cluster: str, node: int | None, output: str) -> None:
    """List all clients, including removed and compromised ones."""
    from chaplain.link.auth.identity import to_text  # noqa: PLC0415

    with connected(cluster, node) as admins:
        rows = [{**dict(one), "key": to_text(bytes.fromhex(one.key))} for one in admins.clients()]
    if output == "json":
        print_json(rows)
    else:
        print_table(_COLUMNS, rows)


@client.command(epilog="Example: chaplain client proof mallory --cluster demo --output json > proof.json")
@click.argument("name")
@cluster_options
def proof(name: str, cluster: str, node: int | None, output: str) -> None:
    """Show why NAME counts as compromised: two different requests that its key signed with the same id.

    The JSON form contains both requests completely, so that third parties can verify the signatures offline.
    """
    from chaplain.link.auth.identity import to_text  # noqa: PLC0415

    with connected(cluster, node) as admins:
        found = admins.proof(name)
    rows = [{**dict(one), "pack": b64encode(one.pack).decode()} for one in found.requests]
    if output == "json":
        whole = {"name": name, "cluster": found.cluster, "key": to_text(found.key), "holds": found.holds}
        print_json({**whole, "requests": rows})
    else:
        says = "Both signatures hold" if found.holds else "These signatures prove nothing to third parties"
        print_table(
            ["stream", "client_id", "first_id", "requests", "digest"], rows, f"{says}: key {to_text(found.key)}"
        )
