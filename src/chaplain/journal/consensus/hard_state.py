"""What a serializer must never forget besides its log: the regime, the vote in it, and whose memory was ever lost.

Decides what a node that starts may claim about its own past. Refuses to decide anything else: who gets the vote is the
election's business.

A node is *sound* if it remembers all it ever promised. One whose last record is *doubtful* may have lost one
acknowledgement to a torn write; one that *lost* something has lost it for certain; one that is *wiped* may have lost
every promise. Each return to soundness is a new *life*. Others remember the highest life they know of (`lives`), and an
acknowledgement or vote of an earlier life is counted by nobody who has heard of a later one: that is why what the
earlier life promised, and the later does not remember, can make no quorum.

Invariants: regime and life never fall; the vote of a regime never changes once given.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from chaplain.core import Frozen, Replace
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import SyncProof
from chaplain.journal.consensus.persist_barrier import PersistBarrier
from chaplain.journal.messages.consensus import Lives
from chaplain.segment.layout import checksum
from chaplain.wire.primitives import Cursor, put_number

NOBODY = 0xFF
"""In place of a vote: spent, on nobody we know."""
DISK_BYTES = 16
_MAGIC = b"CHAPLSTD\x02"


class VotingState(IntEnum):
    SOUND = 1
    DOUBTFUL = 2
    WIPED = 3
    LOST = 4


class HardState(Frozen, frozen=True):
    disk: bytes
    state: VotingState
    regime: int = 0
    vote: int = 0
    """The node voted for in `regime`; 0 if none, NOBODY if the vote is spent."""
    begun: bool = False
    """Something of the log was on disk: one that is empty now has been lost."""
    life: int = 0
    lives: Lives = msgspec.field(default_factory=dict)


def encode_standing(standing: HardState) -> bytes:
    fields = b"".join(
        (
            _MAGIC,
            standing.disk,
            put_number(standing.state, 1),
            put_number(standing.regime, 4),
            put_number(standing.vote, 1),
            put_number(standing.begun, 1),
            put_number(standing.life, 4),
            put_number(len(standing.lives), 1),
            *(put_number(node, 1) + put_number(standing.lives[node], 4) for node in sorted(standing.lives)),
        )
    )
    return fields + put_number(checksum(fields), 4)


def decode_standing(data: bytes) -> HardState:
    if len(data) < 4 or put_number(checksum(data[:-4]), 4) != data[-4:]:
        raise Malformed("standing: checksum does not match")
    cursor = Cursor(data[:-4])
    if cursor.take(len(_MAGIC), "magic") != _MAGIC:
        raise Malformed("standing: not a standing")
    disk, state = cursor.take(DISK_BYTES, "disk"), cursor.number(1, "state")
    regime, vote, begun = cursor.number(4, "regime"), cursor.number(1, "vote"), cursor.number(1, "begun")
    life = cursor.number(4, "life")
    lives = {cursor.number(1, "node"): cursor.number(4, "life") for _ in range(cursor.number(1, "lives"))}
    cursor.end("standing")
    if state not in tuple(VotingState) or begun > 1:
        raise Malformed(f"standing: state {state}, begun {begun}")
    return HardState(disk, VotingState(state), regime, vote, bool(begun), life, lives)


def found_standing(data: bytes | None, disk: bytes, founding_disk: bytes, log_empty: bool) -> HardState:
    """What the file next to the log proves.

    Only a founding member that has never run may come without one. A file that is lost or damaged held votes.
    """
    if data is None and log_empty and disk == founding_disk:
        return HardState(disk, VotingState.SOUND)
    wiped = HardState(disk, VotingState.WIPED)
    if data is None:
        return wiped
    try:
        standing = decode_standing(data)
    except Malformed:
        return wiped
    return standing if standing.disk == disk else wiped


class HardStateStore:
    """Holds the standing, and writes every change of it down."""

    def __init__(self, standing: HardState, file: str, quill: PersistBarrier) -> None:
        self.now = standing
        self._file = file
        self._quill = quill

    @property
    def sound(self) -> bool:
        return self.now.state is VotingState.SOUND

    @property
    def regime(self) -> int:
        return self.now.regime

    def enter(self, regime: int, vote: int) -> None:
        """Have no part in earlier regimes any more; in this one our vote is given."""
        assert regime > self.now.regime, "a regime was entered twice, or went back"
        self._change(regime=regime, vote=vote)

    def learn_life(self, node: int, life: int) -> None:
        """A node came back without its memory: what its former life said no longer counts."""
        assert life > self.now.lives.get(node, 0)
        self._change(lives={**self.now.lives, node: life})

    def begin_log(self) -> None:
        """Something of the log is on disk: from now on an empty one means that it was lost."""
        if not self.now.begun:
            self._change(begun=True)

    def doubt(self, state: VotingState) -> None:
        assert state is not VotingState.SOUND
        self._change(state=state)

    def begin_life(self, life: int, lives: Lives) -> None:
        assert life > self.now.life
        assert not self.sound
        self._change(life=life, lives=_joined(self.now.lives, lives))

    def regain(self, regime: int, lives: Lives, *proofs: SyncProof) -> None:
        """Sound again. Our vote in every regime up to this one is spent: we may have given it and forgotten."""
        assert regime >= self.now.regime
        assert not self.sound
        self._change(*proofs, state=VotingState.SOUND, regime=regime, vote=NOBODY, lives=_joined(self.now.lives, lives))

    def write(self) -> None:
        self._change()

    def _change(self, *proofs: SyncProof, **fields: object) -> None:
        self.now = msgspec.structs.replace(self.now, **fields)
        self._quill.write((Replace(self._file, encode_standing(self.now)),), *proofs)


def _joined(lives: Lives, more: Lives) -> Lives:
    return {node: max(lives.get(node, 0), more.get(node, 0)) for node in sorted({*lives, *more})}
