"""A malicious member without a log that forges checkpoints: it obtains real ones, changes them, and sends them on.

Its messages must do no harm: no node may install a state that a quorum does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from random import Random

import msgspec
from msgspec.structs import replace

from chaplain.journal.messages.peer import AskState, PeerMessage, SnapshotOffer, StatePiece
from chaplain.journal.model.records import StateRecord


class Forger:
    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._known: SnapshotOffer | None = None
        self._forged: dict[int, bytes] = {}
        self._first = 1
        """The latest start of a log that any node reported."""

    def hear(self, message: SnapshotOffer | AskState | StatePiece) -> Iterator[PeerMessage]:
        match message:
            case SnapshotOffer():
                yield from self._heard(message)
            case AskState():
                state = self._forged.get(message.index)
                if state is not None:
                    yield StatePiece(message.index, message.position, state[message.position :])
            case StatePiece():
                if self._known is not None and len(message.data) == self._known.size_bytes:
                    self._forged[message.index] = self._forge(message.data)

    def _heard(self, said: SnapshotOffer) -> Iterator[PeerMessage]:
        """The forger reports that it needs no more than the others: else they would retain everything for it."""
        self._known = said
        self._first = max(self._first, said.first)
        if said.agreed + 1 < self._first and self._forged:
            yield from self._press(said)
            return
        if said.index and said.index not in self._forged:
            yield AskState(said.index, 0)
        forged = self._forged.get(said.index)
        if forged is not None and self._rng.random() < 0.5:
            yield replace(said, digest=sha256(forged).digest(), confirmed=True)
        else:
            yield replace(said, confirmed=True)

    def _press(self, said: SnapshotOffer) -> Iterator[PeerMessage]:
        """A node lacks messages that no log has any more: offer it a forged checkpoint."""
        latest = max(self._forged)
        state = self._forged[latest]
        yield SnapshotOffer(
            latest, sha256(state).digest(), len(state), self._first, max(said.agreed, latest), confirmed=True
        )
        yield StatePiece(latest, 0, state)

    def _forge(self, state: bytes) -> bytes:
        """Replace the chain of some stream by another one in the same form: only the digest can tell."""
        record = msgspec.msgpack.decode(state, type=StateRecord)
        if not record.streams:
            return state[::-1]
        number = self._rng.randrange(len(record.streams))
        name, head = record.streams[number]
        forged = (name, replace(head, chain=self._rng.randbytes(len(head.chain))))
        streams = (*record.streams[:number], forged, *record.streams[number + 1 :])
        return msgspec.msgpack.encode(replace(record, streams=streams))
