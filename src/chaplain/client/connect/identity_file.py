"""The format of a client's identity file: its key, and optionally the cluster's name, seal and node keys.

    chaplain identity 1
    secret …
    key …
    cluster NAME          this line and those below are optional
    seal aes-256-gcm
    hmac …                the secret that packs are signed with instead of the key
    node KEY              one line for each node

With the optional lines a client needs only endpoints to connect. Decides the format; opens no files.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.signing import SECRET_BYTES
from chaplain.link.auth.identity import KEY_BYTES, Identity, from_text, to_text

_IDENTITY_LINES = 3
_LINES_MAX = 512


class IdentityFile(Frozen, frozen=True):
    """The contents of an identity file. `repr` shows no secret."""

    identity: Identity
    cluster: str = ""
    seal: str = ""
    node_keys: tuple[bytes, ...] = ()
    secret: bytes = b""
    """The HMAC secret, if packs are signed by HMAC."""

    def __repr__(self) -> str:
        return f"IdentityFile({self.identity!r}, {self.cluster!r}, {self.seal!r}, {len(self.node_keys)} nodes)"


def format_identity_file(
    identity: Identity, cluster: str, seal: str, node_keys: Iterable[bytes], secret: bytes = b""
) -> str:
    """The text of an identity file. It contains the secret key: create the file with mode 0600."""
    nodes = "".join(f"node {to_text(key)}\n" for key in node_keys)
    hmac = f"hmac {to_text(secret)}\n" if secret else ""
    return f"{identity.text()}cluster {cluster}\nseal {seal}\n{hmac}{nodes}"


def parse_identity_file(text: str) -> IdentityFile:
    """Parse an identity file. Raises `Malformed`."""
    lines = text.split("\n")
    if lines[-1] or len(lines) > _LINES_MAX:
        raise Malformed(
            f"identity: every line must end in a line feed, and there may be at most {_LINES_MAX - 1} lines"
        )
    identity = Identity.parse("\n".join([*lines[:_IDENTITY_LINES], ""]))
    found: dict[str, str] = {}
    keys: list[bytes] = []
    for line in lines[_IDENTITY_LINES:-1]:
        word, _, value = line.partition(" ")
        if word == "node":
            keys.append(from_text(value, KEY_BYTES, "identity: node"))
        elif word in ("cluster", "seal", "hmac") and word not in found and value:
            found[word] = value
        else:
            raise Malformed(f"identity: line {word[:20]!r} is unknown or repeated")
    secret = from_text(found["hmac"], SECRET_BYTES, "identity: hmac") if "hmac" in found else b""
    return IdentityFile(identity, found.get("cluster", ""), found.get("seal", ""), tuple(keys), secret)
