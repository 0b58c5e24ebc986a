"""`chaplain key`: creates key files, and rotates and lists the cluster's keys."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom
from typing import Any

import click

from chaplain.cli.support.connection_options import cluster_options, connected
from chaplain.cli.support.output import output_option, print_json, print_table, progress


@click.group(epilog="Example: chaplain key new --kind identity --out alice.identity")
def key() -> None:
    """Create keys, and rotate the cluster key."""


@key.command(epilog="Example: chaplain key new --kind identity --out alice.identity")
@click.option(
    "--kind",
    type=click.Choice(["identity", "keyring"]),
    default="identity",
    show_default=True,
    help="identity: key pair of a node or client; keyring: key ring with one new cluster key.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The file to write.  [default: the kind]")
@output_option
def new(kind: str, out: Path | None, output: str) -> None:
    """Create a key and write it to a new file that only you can read.

    The output contains nothing secret: an identity's public key, or the id of a cluster key.
    """
    from chaplain.link.auth.identity import Identity, to_text  # noqa: PLC0415
    from chaplain.link.auth.keyring import CLUSTER_KEY_BYTES, KeyRing  # noqa: PLC0415
    from chaplain.runtime.secret_files import write_secret  # noqa: PLC0415

    file = out or Path(kind)
    if kind == "identity":
        identity = Identity.generate(SystemRandom())
        text, shown = identity.text(), {"key": to_text(identity.key), "identifier": identity.identifier}
    else:
        ring = KeyRing(SystemRandom().randbytes(CLUSTER_KEY_BYTES))
        text, shown = ring.text(), {"key_id": ring.used_id.hex()}
    write_secret(file, text)
    if output == "json":
        print_json({"kind": kind, "file": str(file), **shown})
    else:
        click.echo(f"{file}: " + ", ".join(f"{name} {value}" for name, value in shown.items()))


@key.command(epilog="Example: chaplain key rotate --cluster demo")
@cluster_options
def rotate(cluster: str, node: int | None, output: str) -> None:
    """Give every member a new cluster key, then retire the old one.

    The old key is retired only after every configured node has confirmed the new one. Until then nodes accept both. If
    the command is interrupted, run it again: it resumes the rotation.
    """
    with connected(cluster, node) as client:
        progress("waiting until every node accepts the new key; after 30 s the nodes that do not are named")
        done = client.rotate_keys()
    if output == "json":
        print_json(done)
    else:
        click.echo("Every node uses the new key; the old one is retired.")


@key.command("list", epilog="Example: chaplain key list --cluster demo")
@cluster_options
def list_(cluster: str, node: int | None, output: str) -> None:
    """Show the ids of the cluster keys that each node accepts.

    A node authenticates with the used key. Older and newer keys exist only while a rotation is in progress.
    """
    from chaplain.config import find_cluster  # noqa: PLC0415
    from chaplain.runtime.cluster.status import describe  # noqa: PLC0415

    found: dict[str, Any] = describe(find_cluster(cluster).parent.resolve(), node)
    rows = [{"node": one["id"], "state": one["state"], **one.get("keys", {})} for one in found["nodes"]]
    if output == "json":
        print_json(rows)
    else:
        print_table(["node", "state", "used", "older", "newer"], rows)
