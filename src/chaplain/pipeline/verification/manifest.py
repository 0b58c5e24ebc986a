"""A signed note of how far a log is proven, so that the next proof goes on from there.

    {"chaplain manifest": 1, "proven": {…}, "signer": "…", "signature": "…"}

The signature, by an Ed25519 identity, covers the octets of `proven`. A proof goes on only from a manifest that was
signed by the identity it is given: whoever can change the log and the manifest, but has not that key, gains nothing.
What is proven is not read again; that it is still the same is known from its last hash.
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
from chaplain.pipeline.source.header_scan import Start
from chaplain.pipeline.verification.keys import Signers
from chaplain.pipeline.verification.proof_segments import ProofState
from chaplain.wire.packed import unpack

FORMAT = 1
LABEL = b"chaplain manifest 1"
IDENTITY_VARIABLE = "CHAPLAIN_IDENTITY"


class Proven(Frozen, frozen=True):
    """Everything that the next proof is measured against."""

    cluster: str
    state: ProofState
    start: Start | None
    """Where the last message begins, in the file in which it was found."""
    rows: int
    """Messages of streams that were proven in all."""
    signers: Signers | None = None
    """Who may sign what follows; None if signatures were not checked."""


_proven = msgspec.msgpack.Decoder(Proven)


def encode(proven: Proven, identity: Identity) -> str:
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


def decode(text: str, signer: bytes) -> Proven:
    """What this signer has proven. `Malformed` if it is not what it signed."""
    try:
        note = json.loads(text)
        body = base64.b64decode(note["proven"], validate=True)
        key = from_text(note["signer"], KEY_BYTES, "manifest: signer")
        signature = from_text(note["signature"], SIGNATURE_BYTES, "manifest: signature")
        if note["chaplain manifest"] != FORMAT:
            raise Malformed("manifest: of another version")
    except (ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise Malformed(f"manifest: {wrong!r}") from None
    if key != signer:
        raise Malformed("manifest: signed by somebody else")
    if not verify(key, LABEL, body, signature):
        raise Malformed("manifest: the signature does not hold")
    return unpack(_proven, body, "manifest")


def read(path: Path, identity: Identity) -> Proven | None:
    """What the manifest says; None if there is none yet."""
    if not path.exists():
        return None
    try:
        return decode(path.read_text(), identity.key)
    except Malformed as wrong:
        raise ConfigError(f"{path}: {wrong}: give {_WHOSE}, or remove it to prove everything again") from None


def write(path: Path, proven: Proven, identity: Identity) -> None:
    """Whole or not at all."""
    durable.put(path, encode(proven, identity), mode=0o666)


_WHOSE = "the identity that signed it (of a proof of a cluster, that cluster's client)"


def signer_for(path: Path, given: str, *, to_write: bool = True) -> Identity:
    """The identity that was given, or the environment names, or a key of the manifest's own, made when first needed."""
    chosen = given or os.environ.get(IDENTITY_VARIABLE, "")
    if chosen:
        try:
            return parse_identity_file(Path(chosen).read_text()).identity
        except (OSError, Malformed) as wrong:
            raise ConfigError(f"identity {chosen}: {wrong}") from None
    own = path.with_name(path.name + ".identity")
    if not own.exists() and not to_write:
        raise ConfigError(f"{path} was not signed with a key of its own: give {_WHOSE}")
    if not own.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(Identity.generate(random.SystemRandom()).text())
    return parse_identity_file(own.read_text()).identity
