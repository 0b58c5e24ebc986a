"""Epochs of the agreed order: they bound how long a signed configuration request is valid, so that none is applied
twice.

    epoch       a run of agreed messages; its token is the first octets of the hash of the message that began it
    decision    the stored result of one request that was signed in an epoch which is still retained

Every configuration request contains the token of the epoch in which it was signed. Execution refuses a request whose
epoch is no longer retained. It stores the decision on every request for as long as it retains the epoch of the request.
A copy of a request therefore gets the stored decision, or is refused for ever.

A token is part of a hash, so no node can know the token of an epoch that has not begun. A malicious node therefore
cannot make a client sign a request that becomes valid later.

Decides when an epoch ends and which decisions are deleted, from the agreed messages alone. Refuses to know what a
request asks for (`execution.config`). See docs/decisions/configuration-requests.md.

Bounds: `epochs_kept` epochs. An epoch ends after `epoch_messages` messages or `epoch_requests` decisions, so at most
about `epochs_kept` x `epoch_requests` decisions are stored.

Invariants: a decision is stored at least as long as a copy of its request can be accepted. The current epoch is always
retained.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaplain.core import Frozen
from chaplain.journal.messages.config import EPOCH_BYTES
from chaplain.journal.model.set_hash import MappingHash


class Epoch(Frozen, frozen=True, array_like=True):
    """A run of agreed messages."""

    token: bytes
    index: int
    """Index of the message that began the epoch; 0 for the first epoch of a cluster."""


class RequestDecision(Frozen, frozen=True, array_like=True):
    """The stored decision on one request."""

    request: bytes
    """Names the request; see `messages.config.request_name`."""
    epoch: int
    """Index of the message that began the epoch in which the request was signed."""
    reason: int
    acl: bytes = b""
    """The full id that the granted request created, if it created one."""


class EpochBounds(Frozen, frozen=True, array_like=True):
    """Bounds of the epochs, a part of `bootstrap.Policy`. They must be the same on every node, or the executors' states
    would diverge.
    """

    epochs_kept: int = 16
    """Execution refuses a request as expired if it was signed in an earlier epoch."""
    epoch_messages: int = 16384
    epoch_requests: int = 256
    """An epoch ends after this many decisions, even if it has fewer than `epoch_messages` messages."""


class EpochsRecord(Frozen, frozen=True, array_like=True):
    """The serialized form of `Epochs`."""

    epochs: tuple[Epoch, ...]
    decided: int
    decisions: tuple[RequestDecision, ...]


def token_of(chain_hash: bytes) -> bytes:
    return chain_hash[:EPOCH_BYTES]


class Epochs:
    """The retained epochs and decisions, a part of the execution state. Only `EpochsDraft.commit` changes it."""

    def __init__(self, bounds: EpochBounds, genesis: bytes) -> None:
        self._bounds = bounds
        self.kept: tuple[Epoch, ...] = (Epoch(token_of(genesis), 0),)
        """The oldest first; the last one is the current epoch."""
        self._decided = 0
        """Decisions since the current epoch began."""
        self.decisions: dict[bytes, RequestDecision] = {}
        self.decisions_hash = MappingHash(lambda: self.decisions)
        """A part of the state's fingerprint. It hashes only what changed since the last digest."""

    @property
    def token(self) -> bytes:
        """Token of the current epoch. New requests must be signed with it."""
        return self.kept[-1].token

    def find(self, token: bytes) -> Epoch | None:
        """The epoch with this token, if it is retained."""
        return next((epoch for epoch in self.kept if epoch.token == token), None)

    def add(self, index: int, chain_hash: bytes, decisions: dict[bytes, RequestDecision]) -> None:
        """Store the decisions of the message with this index and hash; begin a new epoch if the current one is full."""
        bounds = self._bounds
        if decisions:
            self._put(decisions)
            self._decided += len(decisions)
        full = self._decided >= bounds.epoch_requests or index - self.kept[-1].index >= bounds.epoch_messages
        if not full:
            return
        self.kept = (*self.kept, Epoch(token_of(chain_hash), index))[-bounds.epochs_kept :]
        self._decided = 0
        first = self.kept[0].index
        for name in [name for name, one in self.decisions.items() if one.epoch < first]:
            self.decisions_hash.note(name)
            del self.decisions[name]

    def _put(self, decisions: Mapping[bytes, RequestDecision]) -> None:
        for name, decision in decisions.items():
            self.decisions_hash.note(name)
            self.decisions[name] = decision

    def export_without_decisions(self) -> EpochsRecord:
        """The serialized form without the decisions, for the fingerprint."""
        return EpochsRecord(self.kept, self._decided, ())

    def export(self) -> EpochsRecord:
        return EpochsRecord(self.kept, self._decided, tuple(self.decisions[name] for name in sorted(self.decisions)))

    def load(self, exported: EpochsRecord) -> None:
        self.kept, self._decided = exported.epochs, exported.decided
        self._put({one.request: one for one in exported.decisions})


class EpochsDraft:
    """The changes that one message would make."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._decisions: dict[bytes, RequestDecision] = {}

    def find(self, token: bytes) -> Epoch | None:
        return self._epochs.find(token)

    def decision(self, request: bytes) -> RequestDecision | None:
        return self._decisions.get(request) or self._epochs.decisions.get(request)

    def remember(self, decision: RequestDecision) -> None:
        self._decisions[decision.request] = decision

    def commit(self, index: int, chain_hash: bytes) -> None:
        self._epochs.add(index, chain_hash, self._decisions)
