"""`chaplain key`: files with keys."""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom
from typing import Any

import click

from chaplain.cli.support.connection_options import reach, talks
from chaplain.cli.support.output import output_option, progress, put_json, put_table


@click.group(epilog="Example: chaplain key new --kind identity --out alice.identity")
def key() -> None:
    """Make keys, and replace the cluster's."""


@key.command(epilog="Example: chaplain key new --kind identity --out alice.identity")
@click.option(
    "--kind",
    type=click.Choice(["identity", "keyring"]),
    default="identity",
    show_default=True,
    help="The key of a node or client, or a ring with one new cluster key.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The file to write.  [default: the kind]")
@output_option
def new(kind: str, out: Path | None, output: str) -> None:
    """Make a key and write it to a new file that only you can read.

    Shows what may be shown: an identity's public key, or the id of a cluster key.
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
        put_json({"kind": kind, "file": str(file), **shown})
    else:
        click.echo(f"{file}: " + ", ".join(f"{name} {value}" for name, value in shown.items()))


@key.command(epilog="Example: chaplain key rotate --cluster demo")
@talks
def rotate(cluster: str, node: int | None, output: str) -> None:
    """Give every member a new cluster key, then retire the old one.

    The old key is retired only when every configured node has confirmed the new one; until then both are accepted, and
    asking again goes on where it stopped.
    """
    with reach(cluster, node) as client:
        progress("waiting for every node to take the new key; who holds it up is named after half a minute")
        done = client.rotate_keys()
    if output == "json":
        put_json(done)
    else:
        click.echo("Every node uses the new key; the old one is retired.")


@key.command("list", epilog="Example: chaplain key list --cluster demo")
@talks
def list_(cluster: str, node: int | None, output: str) -> None:
    """Show which cluster keys each node accepts, by their ids.

    Each proves itself with the used one. Older and newer ones are there while a rotation is not finished.
    """
    from chaplain.config import find_cluster  # noqa: PLC0415
    from chaplain.runtime.cluster.status import describe  # noqa: PLC0415

    found: dict[str, Any] = describe(find_cluster(cluster).parent.resolve(), node)
    rows = [{"node": one["id"], "state": one["state"], **one.get("keys", {})} for one in found["nodes"]]
    if output == "json":
        put_json(rows)
    else:
        put_table(["node", "state", "used", "older", "newer"], rows)
