"""A witness (C2SP tlog-witness): it cosigns checkpoints of logs that it knows, never two that contradict each other.

Decides the answer to an `add-checkpoint` request from the request and the checkpoint that the witness signed last. It
opens no file and no socket: the caller keeps one checkpoint for each origin, serializes the requests, and has the new
one on disk before it sends the answer.

Invariants: the witness signs a checkpoint only if it extends the last signed one, so its signatures are over one
growing tree. The policy must also accept the checkpoint, so a minority of the nodes of a cluster cannot deceive the
witness.
"""

from __future__ import annotations

from hashlib import sha256

from chaplain.core import Frozen
from chaplain.errors import Malformed, Unproven
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import cosignature, merkle, note, policy
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.merkle import EMPTY_ROOT, HASH_BYTES, PROOF_HASHES_MAX
from chaplain.proofs.note import NOTE_BYTES_MAX, SecretKey
from chaplain.proofs.policy import Policy

REQUEST_BYTES_MAX = NOTE_BYTES_MAX + 64 * (PROOF_HASHES_MAX + 1)
TEXT = "text/plain; charset=utf-8"
SIZE_TEXT = "text/x.tlog.size"


class AddCheckpoint(Frozen, frozen=True):
    """A request to cosign a checkpoint."""

    old_size: int
    path: tuple[bytes, ...]
    """The consistency proof from `old_size`."""
    signed: SignedCheckpoint

    def encode(self) -> str:
        hashes = "".join(f"{note.to_base64(one)}\n" for one in self.path)
        return f"old {self.old_size}\n{hashes}\n{self.signed.text}"


class WitnessResponse(Frozen, frozen=True):
    """An HTTP response. If `stored` is set, it has to be on disk before the response is sent."""

    status: int
    body: str
    content_type: str = TEXT
    stored: SignedCheckpoint | None = None


def parse(body: bytes) -> AddCheckpoint:
    """Read a request."""
    if len(body) > REQUEST_BYTES_MAX:
        raise Malformed(f"request: at most {REQUEST_BYTES_MAX} octets, not {len(body)}")
    heading, blank, signed = body.partition(b"\n\n")
    try:
        first, *hashes = heading.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise Malformed("request: its first lines are not ASCII") from None
    if not blank or not first.startswith("old ") or len(hashes) > PROOF_HASHES_MAX:
        raise Malformed(f"request: `old`, at most {PROOF_HASHES_MAX} hashes, an empty line and a checkpoint wanted")
    old_size = checkpoints.parse_number(first.removeprefix("old "), "request: old")
    path = tuple(note.from_base64(one, "request: a hash") for one in hashes)
    if any(len(one) != HASH_BYTES for one in path):
        raise Malformed(f"request: a hash has {HASH_BYTES} octets")
    return AddCheckpoint(old_size, path, checkpoints.parse(signed))


def origin_hash(origin: str) -> str:
    """Return the name under which the checkpoint of an origin is served, and stored."""
    return sha256(origin.encode()).hexdigest()


class Witness:
    def __init__(self, trusted: Policy, secret: SecretKey) -> None:
        assert secret.algorithm == note.COSIGNATURE
        self._policy = trusted
        self._secret = secret

    @property
    def origins(self) -> tuple[str, ...]:
        """The logs that the witness knows."""
        return tuple(dict.fromkeys(key.name for key in self._policy.logs))

    def check(self, request: AddCheckpoint) -> WitnessResponse | None:
        """Return the refusal of a request that must be refused regardless of earlier signatures, or None."""
        tree = request.signed.checkpoint
        if tree.origin not in self.origins:
            return WitnessResponse(404, f"this witness does not know the log {tree.origin}\n")
        try:
            policy.check(self._policy, request.signed, assumed=self._secret.verifier)
        except Unproven as reason:
            return WitnessResponse(403, f"{reason}\n")
        if request.old_size > tree.size:
            return WitnessResponse(400, f"the log cannot shrink from {request.old_size} to {tree.size} entries\n")
        return None

    def answer(self, request: AddCheckpoint, last: SignedCheckpoint | None, time_s: int) -> WitnessResponse:
        """Answer a request that `check` did not refuse. `last` is the checkpoint of its origin that was signed last."""
        tree = request.signed.checkpoint
        assert last is None or last.checkpoint.origin == tree.origin
        last_size, last_root = (last.checkpoint.size, last.checkpoint.root) if last is not None else (0, EMPTY_ROOT)
        if request.old_size != last_size:
            return WitnessResponse(409, f"{last_size}\n", SIZE_TEXT)
        if not merkle.is_extension(last_size, last_root, tree.size, tree.root, request.path):
            return WitnessResponse(
                422, f"the checkpoint does not extend that of {last_size} entries, or the proof is wrong\n"
            )
        secret = self._secret
        mine = cosignature.sign(tree.text, secret.name, secret.key, secret.sign, time_s)
        others = [one for one in request.signed.signatures if not one.is_by(secret.verifier)]
        return WitnessResponse(200, mine.line(), stored=SignedCheckpoint(tree, (*others, mine)))
