"""The manifest: a signed record of how far a log is verified, from which the next verification continues.

    {"chaplain manifest": 1, "proven": {…}, "signer": "…", "signature": "…"}

The signature, by an Ed25519 identity, covers the octets of `proven`. A verification accepts only a manifest that was
signed with the identity that it is given: an attacker who can change the log and the manifest, but does not have the
key, cannot hide a change. The verified part of the log is not read again; its last hash shows whether the log still
continues it.
"""

from __future__ import annotations

import base64
import json
import os
import random
from pathlib import Path

import msgspec

from chaplain import durable
from chaplain.client.connect.identity_file import parse_identity_file
from chaplain.core import Frozen
from chaplain.errors import ConfigError, Malformed
from chaplain.link.auth.identity import KEY_BYTES, SIGNATURE_BYTES, Identity, from_text, to_text, verify
from chaplain.verification.header_scan import ScanStart
from chaplain.verification.keys import AllowedSigners
from chaplain.verification.proof_segments import ProofState
from chaplain.wire.packed import unpack

FORMAT = 1
LABEL = b"chaplain manifest 1"
IDENTITY_VARIABLE = "CHAPLAIN_IDENTITY"


class ManifestContent(Frozen, frozen=True):
    """Everything that the next verification needs to continue."""

    cluster: str
    state: ProofState
    start: ScanStart | None
    """The file and position at which the last verified message begins."""
    rows: int
    """Number of stream messages verified so far."""
    signers: AllowedSigners | None = None
    """The clients that may sign later messages; None if signatures were not verified."""


_proven = msgspec.msgpack.Decoder(ManifestContent)


def encode(proven: ManifestContent, identity: Identity) -> str:
    body = msgspec.msgpack.encode(proven)
    note = {
        "chaplain manifest": FORMAT,
        "index": proven.state.point.index if proven.state.point else 0,
        "rows": proven.rows,
        "proven": base64.b64encode(body).decode(),
        "signer": to_text(identity.key),
        "signature": to_text(identity.sign(LABEL, body)),
    }
    return json.dumps(note, indent=1) + "\n"


def decode(text: str, signer: bytes) -> ManifestContent:
    """Decode a manifest. Raises `Malformed` unless `signer` signed exactly this content."""
    try:
        note = json.loads(text)
        body = base64.b64decode(note["proven"], validate=True)
        key = from_text(note["signer"], KEY_BYTES, "manifest: signer")
        signature = from_text(note["signature"], SIGNATURE_BYTES, "manifest: signature")
        if note["chaplain manifest"] != FORMAT:
            raise Malformed("manifest: of another version")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Malformed(f"manifest: {error!r}") from None
    if key != signer:
        raise Malformed("manifest: signed by another identity")
    if not verify(key, LABEL, body, signature):
        raise Malformed("manifest: the signature is invalid")
    return unpack(_proven, body, "manifest")


def read(path: Path, identity: Identity) -> ManifestContent | None:
    """Read a manifest; None if the file does not exist."""
    if not path.exists():
        return None
    try:
        return decode(path.read_text(), identity.key)
    except Malformed as error:
        raise ConfigError(f"{path}: {error}: give {_WHOSE}, or remove it to verify everything again") from None


def write(path: Path, proven: ManifestContent, identity: Identity) -> None:
    """Write the manifest atomically."""
    durable.put(path, encode(proven, identity), mode=0o666)


_WHOSE = "the identity that signed it (for a cluster, by default the cluster's client)"


def signer_for(path: Path, given: str, *, to_write: bool = True) -> Identity:
    """Return the identity that signs a manifest.

    That is the given one, the one in `CHAPLAIN_IDENTITY`, or a key beside the manifest, which is created if `to_write`.
    """
    chosen = given or os.environ.get(IDENTITY_VARIABLE, "")
    if chosen:
        try:
            return parse_identity_file(Path(chosen).read_text()).identity
        except (OSError, Malformed) as error:
            raise ConfigError(f"identity {chosen}: {error}") from None
    own = path.with_name(path.name + ".identity")
    if not own.exists() and not to_write:
        raise ConfigError(f"{path} has no key beside it: give {_WHOSE}")
    if not own.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(Identity.generate(random.SystemRandom()).text())
    return parse_identity_file(own.read_text()).identity
