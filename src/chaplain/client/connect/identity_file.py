"""A client's identity file: its key, and, if somebody wrote them down, the cluster's name, seal and node keys.

    chaplain identity 1
    secret …
    key …
    cluster NAME          these lines may be missing
    seal aes-256-gcm
    hmac …                the secret that packs are signed with instead of the key
    node KEY              one for each node

With the further lines a client needs nothing but endpoints. Decides how the file is written and read; opens none.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.signing import SECRET_BYTES
from chaplain.link.auth.identity import KEY_BYTES, Identity, from_text, to_text

_IDENTITY_LINES = 3
_LINES_MAX = 512


class Passport(Frozen, frozen=True):
    """What an identity file holds. `repr` shows no secret."""

    identity: Identity
    cluster: str = ""
    seal: str = ""
    node_keys: tuple[bytes, ...] = ()
    secret: bytes = b""
    """Of an HMAC, if packs are signed by one."""

    def __repr__(self) -> str:
        return f"Passport({self.identity!r}, {self.cluster!r}, {self.seal!r}, {len(self.node_keys)} nodes)"


def write_passport(identity: Identity, cluster: str, seal: str, node_keys: Iterable[bytes], secret: bytes = b"") -> str:
    """The content of a file that a client can connect with. It holds the secret: keep its mode at 0600."""
    nodes = "".join(f"node {to_text(key)}\n" for key in node_keys)
    hmac = f"hmac {to_text(secret)}\n" if secret else ""
    return f"{identity.text()}cluster {cluster}\nseal {seal}\n{hmac}{nodes}"


def read_passport(text: str) -> Passport:
    lines = text.split("\n")
    if lines[-1] or len(lines) > _LINES_MAX:
        raise Malformed("identity: every line ends in a line feed, and there are not so many")
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
            raise Malformed(f"identity: a line of {word[:20]!r} is not known, or there twice")
    secret = from_text(found["hmac"], SECRET_BYTES, "identity: hmac") if "hmac" in found else b""
    return Passport(identity, found.get("cluster", ""), found.get("seal", ""), tuple(keys), secret)
