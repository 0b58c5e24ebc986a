"""Adds a client with an identity of its own, which goes into a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, TypeAlias

import click

if TYPE_CHECKING:
    from chaplain.client.sync import Client
    from chaplain.config import ClusterFile

Rights: TypeAlias = tuple[Sequence[str], Sequence[str]]
"""Patterns of the streams that a client may write, and read."""


def rights(writes: Sequence[str], reads: Sequence[str]) -> Rights:
    """The given patterns; everything if there are none."""
    everything = ("*",) if not writes and not reads else ()
    return writes or everything, reads or everything


def add_with_identity(
    admins: Client,
    cluster: ClusterFile,
    name: str,
    file: Path,
    patterns: Rights,
    *,
    admin: bool = False,
    secret: bytes = b"",
) -> tuple[str, str]:
    """Create an identity, write its file and register the client. Returns its ACL id and its public key.

    The file is deleted again if the client was certainly not added.
    """
    from chaplain.client.connect.identity_file import format_identity_file  # noqa: PLC0415
    from chaplain.link.auth.identity import KEY_BYTES, Identity, from_text, to_text  # noqa: PLC0415
    from chaplain.runtime.secret_files import write_secret  # noqa: PLC0415

    identity = Identity.generate(SystemRandom())
    nodes = [from_text(one.key, KEY_BYTES, "a node's key") for one in cluster.nodes]
    write_secret(file, format_identity_file(identity, cluster.cluster, cluster.seal, nodes, secret))
    public_key = to_text(identity.key)
    try:
        return admins.add_client(name, public_key, *patterns, admin, secret=secret), public_key
    except ValueError as wrong:
        file.unlink(missing_ok=True)
        raise click.UsageError(str(wrong)) from None
    except BaseException as failure:
        if _is_certain(failure):
            file.unlink(missing_ok=True)
        raise


def _is_certain(failure: BaseException) -> bool:
    """Return whether the client was certainly not added. Otherwise its identity file must not be deleted."""
    from chaplain.errors import ConfigError, Refused  # noqa: PLC0415

    return isinstance(failure, Refused | ConfigError)
