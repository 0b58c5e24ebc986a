"""Compares two checkpoints of a log: the later one must extend the earlier one, otherwise both are reported with their
signers.

The hashes between the two come from tiles, which may be wrong. A successful comparison does not depend on the source of
the tiles. A failed one reports whether the tiles or the checkpoints are wrong.
"""

from __future__ import annotations

from chaplain.core import Frozen
from chaplain.errors import Unproven
from chaplain.proofs import merkle, policy
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.merkle import Node
from chaplain.proofs.policy import Policy


class Forked(Unproven):
    """The two checkpoints contradict each other."""

    def __init__(self, reason: str, signers: tuple[str, ...], evidence: str = "") -> None:
        super().__init__(reason)
        self.signers = signers
        """Names in the policy of the keys that signed both."""
        self.evidence = evidence
        """Both checkpoints with the signatures of these keys, if these alone prove the misbehaviour."""


class Extended(Frozen, frozen=True):
    """The later checkpoint extends the earlier one."""

    origin: str
    old_size: int
    new_size: int
    signers: tuple[str, ...]
    """Names in the policy of the keys that signed the later one; empty without a policy."""

    @property
    def line(self) -> str:
        by = f", signed by {', '.join(self.signers)}" if self.signers else ", signatures not checked (no --policy)"
        grown = "is the same" if self.new_size == self.old_size else f"extends it by {self.new_size - self.old_size}"
        return f"{self.origin}: the checkpoint of {self.new_size} entries {grown}{by}"


def compare(
    old: SignedCheckpoint, new: SignedCheckpoint, trusted: Policy | None = None, node: Node | None = None
) -> Extended:
    """Return how the log grew from `old` to `new`. `node` returns hashes of subtrees of the tree of `new`; it is needed
    only if the sizes differ. Raises `Forked` if the checkpoints contradict each other, and `Unproven` if nothing is
    proven.
    """
    first, second = old.checkpoint, new.checkpoint
    if first.origin != second.origin:
        raise Unproven(f"these are two logs, {first.origin} and {second.origin}")
    if trusted is not None:
        policy.check(trusted, old)
        policy.check(trusted, new)
    if policy.is_fork(first, second):
        names = policy.double_signers(trusted, old, new) if trusted is not None else ()
        by = f"; {', '.join(names)} signed both" if names else ""
        evidence = _evidence(trusted, old, new, names) if trusted is not None else ""
        raise Forked(f"there are two different checkpoints of {first.size} entries{by}", names, evidence)
    if second.size < first.size:
        raise Unproven(f"the second checkpoint is older: it has {second.size} entries, the first has {first.size}")
    if first.size not in {0, second.size}:
        if node is None:
            raise Unproven("the sizes differ, and there are no tiles to compare them with")
        _compare_trees(trusted, old, new, node)
    signers = policy.signers_of(trusted, new).witnesses if trusted is not None else ()
    return Extended(second.origin, first.size, second.size, signers)


def _compare_trees(trusted: Policy | None, old: SignedCheckpoint, new: SignedCheckpoint, node: Node) -> None:
    first, second = old.checkpoint, new.checkpoint
    path = merkle.consistency_proof(first.size, second.size, node)
    if merkle.is_extension(first.size, first.root, second.size, second.root, path):
        return
    if merkle.root_at(second.size, node) != second.root:
        raise Unproven(f"the tiles are damaged, or of another log: they do not give the root of {second.size} entries")
    names = _both(trusted, old, new) if trusted is not None else ()
    by = f"; {', '.join(names)} signed both" if names else ""
    raise Forked(
        f"the log was rewritten: the checkpoint of {second.size} entries does not extend that of {first.size}{by}",
        names,
    )


def _both(trusted: Policy, old: SignedCheckpoint, new: SignedCheckpoint) -> tuple[str, ...]:
    later = policy.signers_of(trusted, new).witnesses
    return tuple(name for name in policy.signers_of(trusted, old).witnesses if name in later)


def _evidence(trusted: Policy, old: SignedCheckpoint, new: SignedCheckpoint, names: tuple[str, ...]) -> str:
    keys = [key for name, key in trusted.witnesses if name in names]
    keys += [key for key in trusted.logs if key.name in names]
    parts = []
    for signed in (old, new):
        lines = tuple(line for line in signed.signatures if any(line.is_by(key) for key in keys))
        parts.append(SignedCheckpoint(signed.checkpoint, lines).text)
    return "\n".join(parts) if keys else ""
