"""`chaplain client`: who may write and read."""

from __future__ import annotations

import shlex
from base64 import b64encode
from pathlib import Path
from random import SystemRandom

import click

from chaplain.cli.support.connection_options import reach, talks
from chaplain.cli.support.output import put_json, put_table

_COLUMNS = ["name", "status", "admin", "writes", "reads", "lanes", "signature", "key"]


@click.group(epilog="Example: chaplain client add alice --write orders --cluster demo")
def client() -> None:
    """Signed clients, their streams and rights."""


@client.command(epilog="Example: chaplain client add alice --write 'orders*' --read '*' --cluster demo")
@click.argument("name")
@click.option("--write", "writes", multiple=True, metavar="PATTERN", help="Streams it may write; may be repeated.")
@click.option("--read", "reads", multiple=True, metavar="PATTERN", help="Streams it may read; may be repeated.")
@click.option("--admin", is_flag=True, help="It may add and remove others.")
@click.option("--key", metavar="KEY", help="The public key of an identity that is there already.")
@click.option(
    "--signature",
    type=click.Choice(["ed25519", "hmac"]),
    default="ed25519",
    show_default=True,
    help="How it signs what it writes. hmac is cheaper, and proves nothing to third parties.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The identity file to write.  [default: NAME.identity]")
@talks
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
    """Let a client in under NAME, with rights by patterns of streams, in which * stands for anything.

    With neither --write nor --read it may write and read everything.

    Makes a new identity, in a file with which one can connect, unless --key names one that is there. Keep the file.
    """
    from chaplain.client.connect.identity_file import format_identity_file  # noqa: PLC0415
    from chaplain.config import load_cluster  # noqa: PLC0415
    from chaplain.journal.messages.signing import SECRET_BYTES  # noqa: PLC0415
    from chaplain.link.auth.identity import KEY_BYTES, Identity, from_text, to_text  # noqa: PLC0415
    from chaplain.link.settings import HMAC  # noqa: PLC0415
    from chaplain.runtime.secret_files import write_secret  # noqa: PLC0415

    if signature == "hmac" and key is not None:
        raise click.UsageError("--signature hmac makes a secret, which goes into the identity file: leave out --key")
    if signature == "hmac" and load_cluster(cluster).seal == HMAC:
        raise click.UsageError(f"this cluster seals with {HMAC}, and its secret would travel readable: use ed25519")
    everything = ("*",) if not writes and not reads else ()
    file = None if key is not None else out or Path(f"{name}.identity")
    with reach(cluster, node) as admins:
        shown = key or ""
        secret = SystemRandom().randbytes(SECRET_BYTES) if signature == "hmac" else b""
        if file is not None:
            identity = Identity.generate(SystemRandom())
            known = load_cluster(cluster)
            nodes = [from_text(one.key, KEY_BYTES, "a node's key") for one in known.nodes]
            write_secret(file, format_identity_file(identity, known.cluster, known.seal, nodes, secret))
            shown = to_text(identity.key)
        try:
            acl = admins.add_client(name, shown, writes or everything, reads or everything, admin, secret=secret)
        except ValueError as wrong:
            _remove(file)
            raise click.UsageError(str(wrong)) from None
        except BaseException as failure:
            if _certain(failure):
                _remove(file)
            raise
    if output == "json":
        put_json({"name": name, "acl": acl, "key": shown, "file": None if file is None else str(file)})
    else:
        click.echo(f"{name} may connect" + (f" with {file}" if file is not None else "") + f"; its key is {shown}.")
        if file is not None:
            click.echo(f"Commands go as {name} with CHAPLAIN_IDENTITY={shlex.quote(str(file))} before them.")


@client.command(epilog="Example: chaplain client remove alice --cluster demo")
@click.argument("name")
@talks
def remove(name: str, cluster: str, node: int | None, output: str) -> None:
    """End a client: its lanes, its sessions, for ever. What it has written stays."""
    with reach(cluster, node) as admins:
        admins.remove_client(name)
    if output == "json":
        put_json({"removed": name})
    else:
        click.echo(f"{name} is removed.")


@client.command("list", epilog="Example: chaplain client list --cluster demo --output json")
@talks
def list_clients(cluster: str, node: int | None, output: str) -> None:
    """Show all clients that there are or were, and which are compromised."""
    from chaplain.link.auth.identity import to_text  # noqa: PLC0415

    with reach(cluster, node) as admins:
        rows = [{**dict(one), "key": to_text(bytes.fromhex(one.key))} for one in admins.clients()]
    if output == "json":
        put_json(rows)
    else:
        put_table(_COLUMNS, rows)


@client.command(epilog="Example: chaplain client proof mallory --cluster demo --output json > proof.json")
@click.argument("name")
@talks
def proof(name: str, cluster: str, node: int | None, output: str) -> None:
    """Show what NAME was found to be compromised by: two requests that its key signed for one id.

    The JSON form holds both requests whole, for whoever wants to check their signatures without this cluster.
    """
    from chaplain.link.auth.identity import to_text  # noqa: PLC0415

    with reach(cluster, node) as admins:
        found = admins.proof(name)
    rows = [{**dict(one), "pack": b64encode(one.pack).decode()} for one in found.requests]
    if output == "json":
        whole = {"name": name, "cluster": found.cluster, "key": to_text(found.key), "holds": found.holds}
        put_json({**whole, "requests": rows})
    else:
        says = "Both signatures hold" if found.holds else "These signatures prove nothing to third parties"
        put_table(["stream", "client_id", "first_id", "requests", "digest"], rows, f"{says}: key {to_text(found.key)}")


def _remove(file: Path | None) -> None:
    if file is not None:
        file.unlink(missing_ok=True)


def _certain(failure: BaseException) -> bool:
    """Whether the client was certainly not added: only then its key is of no use."""
    from chaplain.errors import ConfigError, Refused  # noqa: PLC0415

    return isinstance(failure, Refused | ConfigError)
