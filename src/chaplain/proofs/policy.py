"""Policies (C2SP tlog-policy): which keys may sign the checkpoints of a log, and how many of them are enough.

An auditor needs to trust only a policy. It lists the keys of the nodes twice. Of the keys in `log` lines, one must have
signed. Of the keys in `witness` lines, a group must have signed. Witnesses of other people are further `witness` lines.

A policy that chaplain writes ends in a comment with the hash of everything before it, the seal. A damaged file is
refused. A file that was edited by hand is also refused, until the line is removed. Other tools ignore the line.

Invariants: each key counts once, even if it signed several times. A wrong signature of a known key makes the whole
checkpoint invalid.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256

from chaplain.core import Frozen
from chaplain.errors import Malformed, Unproven
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs.checkpoint import Checkpoint, SignedCheckpoint
from chaplain.proofs.note import COSIGNATURE, VerifierKey, check_name, parse_key

POLICY_BYTES_MAX = 256 << 10
LOGS_MAX = 256
WITNESSES_MAX = 300
GROUPS_MAX = 64
NONE = "none"
NODES = "nodes"
_SEAL = "# seal "
_HASH = re.compile(r"[0-9a-f]{64}")
_DECIMAL = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


class WitnessGroup(Frozen, frozen=True):
    name: str
    threshold: int
    members: tuple[str, ...]
    """Names of witnesses and of earlier groups."""


class Policy(Frozen, frozen=True):
    logs: tuple[VerifierKey, ...]
    witnesses: tuple[tuple[str, VerifierKey], ...]
    groups: tuple[WitnessGroup, ...]
    quorum: str
    """Name of the witness or group that must have signed, or `none`."""


class Signers(Frozen, frozen=True):
    """Keys of a policy that signed a checkpoint."""

    logs: tuple[VerifierKey, ...]
    witnesses: tuple[str, ...]
    """By the names that the policy gives them."""


def parse(data: bytes) -> Policy:
    """Read a policy, and check its seal if it has one."""
    if len(data) > POLICY_BYTES_MAX:
        raise Malformed(f"policy: at most {POLICY_BYTES_MAX} octets, not {len(data)}")
    if any((octet < 0x20 and octet not in b"\t\n") or octet == 0x7F for octet in data):
        raise Malformed("policy: contains control characters")
    text = data.decode("utf-8", "surrogateescape")
    if not text.endswith("\n"):
        raise Malformed("policy: the last line has no line feed")
    _check_seal(data, text)
    reader = _Reader()
    for number, line in enumerate(text.split("\n"), 1):
        words = [word for word in re.split(r"[ \t]+", line) if word]
        if words and not words[0].startswith("#"):
            try:
                reader.read(words)
            except Malformed as error:
                raise Malformed(f"policy, line {number}: {error}") from None
    return reader.policy()


class _Reader:
    """A policy as far as it was read."""

    def __init__(self) -> None:
        self._logs: list[VerifierKey] = []
        self._witnesses: dict[str, VerifierKey] = {}
        self._groups: dict[str, WitnessGroup] = {}
        self._quorum = ""
        self._grouped: set[str] = set()

    def read(self, words: list[str]) -> None:
        match words:
            case ["log", key] | ["log", key, _]:
                self._add_log(parse_key(key))
            case ["witness", name, key] | ["witness", name, key, _]:
                self._add_witness(name, parse_key(key))
            case ["group", name, threshold, *members]:
                self._add_group(name, threshold, tuple(members))
            case ["quorum", name]:
                if self._quorum:
                    raise Malformed("a second quorum")
                self._quorum = name if name == NONE else self._known(name)
            case _:
                raise Malformed(f"{' '.join(words)[:60]!r} is not a line of a policy")

    def _add_log(self, key: VerifierKey) -> None:
        if any(key.key == other.key for other in self._logs) or len(self._logs) == LOGS_MAX:
            raise Malformed(f"this key is listed already, or there are more than {LOGS_MAX} logs")
        self._logs.append(key)

    def _add_witness(self, name: str, key: VerifierKey) -> None:
        self._check_new(name)
        if key.algorithm != COSIGNATURE:
            raise Malformed(f"witness {name!r} has a key of type {key.algorithm}, not of cosignatures")
        if any(key.key == other.key for other in self._witnesses.values()) or len(self._witnesses) == WITNESSES_MAX:
            raise Malformed(f"this key is listed already, or there are more than {WITNESSES_MAX} witnesses")
        self._witnesses[name] = key

    def _add_group(self, name: str, threshold: str, members: tuple[str, ...]) -> None:
        self._check_new(name)
        for member in members:
            if self._known(member) in self._grouped:
                raise Malformed(f"{member!r} is a member of two groups")
            self._grouped.add(member)
        enough = {"any": 1, "all": len(members)}.get(threshold)
        if enough is None:
            enough = int(threshold) if _DECIMAL.fullmatch(threshold) else 0
        if not 1 <= enough <= len(members) or len(self._groups) == GROUPS_MAX:
            raise Malformed(
                f"group {name!r}: {threshold!r} of {len(members)} members, or more than {GROUPS_MAX} groups"
            )
        self._groups[name] = WitnessGroup(name, enough, members)

    def _check_new(self, name: str) -> None:
        check_name(name.replace("+", ""))
        if name == NONE or name in self._witnesses or name in self._groups:
            raise Malformed(f"the name {name!r} is taken")

    def _known(self, name: str) -> str:
        if name not in self._witnesses and name not in self._groups:
            raise Malformed(f"{name!r} is not defined above")
        return name

    def policy(self) -> Policy:
        if not self._logs:
            raise Malformed("policy: no `log` line says which log this is")
        if not self._quorum:
            raise Malformed("policy: there is no quorum")
        return Policy(tuple(self._logs), tuple(self._witnesses.items()), tuple(self._groups.values()), self._quorum)


def _check_seal(data: bytes, text: str) -> None:
    """Check the seal. A line that could be a damaged seal is refused, so that every flipped bit of a sealed policy is
    noticed.
    """
    for line in text.split("\n"):
        if line.lstrip(" \t").startswith("#") and (line.startswith(_SEAL) or _HASH.search(line)):
            before, _, _ = data.rpartition(line.encode("utf-8", "surrogateescape"))
            if not text.endswith(f"\n{line}\n") or line != _seal(before):
                raise Malformed(
                    "policy: it was changed after it was sealed; who changed it on purpose removes the seal"
                )


def _seal(before: bytes) -> str:
    return _SEAL + sha256(before).hexdigest()


def sealed(text: str) -> str:
    """Return the text of a policy with its seal."""
    return f"{text}{_seal(text.encode())}\n"


def cluster_policy(
    cluster: str, nodes: Mapping[int, bytes], enough: int | None = None, witnesses: Sequence[VerifierKey] = ()
) -> str:
    """Return the policy file of a cluster: `enough` of these nodes' keys, by default more than half, must have signed,
    and all of the witnesses.
    """
    needed = len(nodes) // 2 + 1 if enough is None else enough
    names = {node: f"node-{node}" for node in sorted(nodes)}
    lines = [
        f"# {needed} of these {len(nodes)} nodes of cluster {cluster} must have signed a checkpoint.",
        *(f"log {checkpoints.log_key(cluster, nodes[node]).text()}" for node in names),
        *(f"witness {name} {checkpoints.node_key(cluster, node, nodes[node]).text()}" for node, name in names.items()),
        f"group {NODES} {needed} {' '.join(names.values())}",
    ]
    quorum = NODES
    if witnesses:
        lines += [f"witness {key.name} {key.text()}" for key in witnesses]
        quorum = "nodes-and-witnesses"
        lines.append(f"group {quorum} all {NODES} {' '.join(key.name for key in witnesses)}")
    text = sealed("\n".join((*lines, f"quorum {quorum}", "")))
    parse(text.encode())
    return text


def check(policy: Policy, signed: SignedCheckpoint, assumed: VerifierKey | None = None) -> Signers:
    """Return the signers. Raises `Unproven` unless the policy accepts the checkpoint. The key `assumed` counts as if it
    had signed: it is the key of a witness that asks whether it should sign.
    """
    origin = signed.checkpoint.origin
    if all(key.name != origin for key in policy.logs):
        known = ", ".join(sorted({key.name for key in policy.logs}))
        raise Unproven(f"the checkpoint is of {origin!r}, and the policy is for {known}")
    signers = signers_of(policy, signed)
    if not signers.logs:
        raise Unproven("no log key of the policy signed the checkpoint")
    reached = {name: name in signers.witnesses or key == assumed for name, key in policy.witnesses}
    for group in policy.groups:
        reached[group.name] = sum(reached[member] for member in group.members) >= group.threshold
    if policy.quorum != NONE and not reached[policy.quorum]:
        by = ", ".join(signers.witnesses) or "none of them"
        raise Unproven(f"too few keys of the policy signed the checkpoint: {by}; the quorum is {_quorum_text(policy)}")
    return signers


def signers_of(policy: Policy, signed: SignedCheckpoint) -> Signers:
    """Return which keys of the policy signed, each once. Raises `Unproven` if a signature of one of them is wrong."""
    logs = [key for key in policy.logs if key.name == signed.checkpoint.origin and _signed_by(key, signed)]
    witnesses = [name for name, key in policy.witnesses if _signed_by(key, signed)]
    return Signers(tuple(logs), tuple(witnesses))


def _signed_by(key: VerifierKey, signed: SignedCheckpoint) -> bool:
    lines = [line for line in signed.signatures if line.is_by(key)]
    if not all(checkpoints.holds(key, signed.checkpoint, line) for line in lines):
        raise Unproven(f"the signature of {key.name} on the checkpoint is wrong")
    return bool(lines)


def _quorum_text(policy: Policy) -> str:
    for group in policy.groups:
        if group.name == policy.quorum:
            return f"{group.threshold} of {', '.join(group.members)}"
    return policy.quorum


def double_signers(policy: Policy, first: SignedCheckpoint, second: SignedCheckpoint) -> tuple[str, ...]:
    """Return the names of keys that signed two different roots of one size of one log: a proof of misbehaviour."""
    if not is_fork(first.checkpoint, second.checkpoint):
        return ()
    one, other = signers_of(policy, first), signers_of(policy, second)
    names = [name for name in one.witnesses if name in other.witnesses]
    named = {key.key for name, key in policy.witnesses if name in names}
    logs = (key for key in one.logs if key in other.logs and key.key not in named)
    return tuple(dict.fromkeys((*names, *(key.name for key in logs))))


def is_fork(first: Checkpoint, second: Checkpoint) -> bool:
    """Return whether these are different trees of one log with one size."""
    return (first.origin, first.size) == (second.origin, second.size) and first.root != second.root
