"""Keeps signed configuration requests from being applied twice: epochs of the agreed order, and what was decided.

    epoch       a run of agreed messages, named by its token: the first octets of the hash of the message that began it
    decision    what became of one request that was signed in an epoch which is still kept

Every configuration request contains the token of the epoch in which it was signed. Execution refuses a request whose
epoch is not kept any more, and it remembers every request that was decided for as long as the epoch is kept in which
the request was signed. A copy of a request is therefore answered from memory, or refused for ever.

A token is part of a hash. A node that lies cannot name an epoch that has not begun, so it cannot make a client sign a
request that becomes valid later.

Decides when an epoch ends and which decisions are forgotten, from the agreed messages alone. Refuses to know what a
request asks for (`configuration`). See docs/decisions/configuration-requests.md.

Bounds: `epochs_kept` epochs; an epoch ends after `epoch_messages` messages or `epoch_requests` decisions, so that at
most about `epochs_kept` x `epoch_requests` decisions are remembered.

Invariants: a decision is remembered at least as long as a copy of its request can be accepted; the current epoch is
always kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaplain.core import Frozen
from chaplain.journal.messages.config import EPOCH_BYTES
from chaplain.journal.model.set_hash import MappingHash


class Epoch(Frozen, frozen=True, array_like=True):
    token: bytes
    index: int
    """The message that began it; 0 for the first epoch of a cluster."""


class Decision(Frozen, frozen=True, array_like=True):
    """The decision on one request."""

    request: bytes
    """Names the request: `config_message.request_name`."""
    epoch: int
    """Index of the message that began the epoch in which it was signed."""
    reason: int
    acl: bytes = b""
    """The full id that the request was given, if it was granted and has one."""


class EpochBounds(Frozen, frozen=True, array_like=True):
    """The same on every node, or executors would diverge. A part of `founding.Policy`."""

    epochs_kept: int = 16
    """A request that was signed in an earlier epoch is refused as expired."""
    epoch_messages: int = 16384
    epoch_requests: int = 256
    """Decisions after which an epoch ends before it has `epoch_messages` messages."""


class Exported(Frozen, frozen=True, array_like=True):
    """The one form of `Epochs`."""

    epochs: tuple[Epoch, ...]
    decided: int
    decisions: tuple[Decision, ...]


def token_of(chain_hash: bytes) -> bytes:
    return chain_hash[:EPOCH_BYTES]


class Epochs:
    """A part of the state. Changed by `EpochsDraft.commit` alone."""

    def __init__(self, bounds: EpochBounds, genesis: bytes) -> None:
        self._bounds = bounds
        self.kept: tuple[Epoch, ...] = (Epoch(token_of(genesis), 0),)
        """The oldest first; the last one is current."""
        self._decided = 0
        """Decisions since the current epoch began."""
        self.decisions: dict[bytes, Decision] = {}
        self.decisions_hash = MappingHash(lambda: self.decisions)
        """A part of the state's fingerprint: only what changed is hashed."""

    @property
    def token(self) -> bytes:
        """Of the current epoch: what is signed now has to contain it."""
        return self.kept[-1].token

    def find(self, token: bytes) -> Epoch | None:
        """The epoch with this token, if it is kept."""
        return next((epoch for epoch in self.kept if epoch.token == token), None)

    def add(self, index: int, chain_hash: bytes, decisions: dict[bytes, Decision]) -> None:
        """The message of this index and hash was executed, with these decisions."""
        bounds = self._bounds
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

    def _put(self, decisions: Mapping[bytes, Decision]) -> None:
        for name, decision in decisions.items():
            self.decisions_hash.note(name)
            self.decisions[name] = decision

    def bare(self) -> Exported:
        """All but the decisions."""
        return Exported(self.kept, self._decided, ())

    def export(self) -> Exported:
        return Exported(self.kept, self._decided, tuple(self.decisions[name] for name in sorted(self.decisions)))

    def load(self, exported: Exported) -> None:
        self.kept, self._decided = exported.epochs, exported.decided
        self._put({one.request: one for one in exported.decisions})


class EpochsDraft:
    """The changes that one message would make."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._decisions: dict[bytes, Decision] = {}

    def find(self, token: bytes) -> Epoch | None:
        return self._epochs.find(token)

    def decision(self, request: bytes) -> Decision | None:
        return self._decisions.get(request) or self._epochs.decisions.get(request)

    def remember(self, decision: Decision) -> None:
        self._decisions[decision.request] = decision

    def commit(self, index: int, chain_hash: bytes) -> None:
        self._epochs.add(index, chain_hash, self._decisions)
