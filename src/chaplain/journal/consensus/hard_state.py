"""The hard state of a serializer: regime (Raft's currentTerm), vote (votedFor), voting state and incarnations.

A small file next to the log contains it. Every change replaces the file. Decides what a stored file proves at startup.
Does not decide who gets a vote (`election`), nor whether the log matches the file (`vote_recovery`).

Voting states:

    sound      the node remembers every vote and acknowledgement that it gave
    doubtful   a torn write may have destroyed its last record, and one acknowledgement with it
    lost       a record that was on disk is missing
    wiped      everything may be missing, votes included

A node recovers its vote under a new *incarnation* number (`life` on the wire). Each node remembers the highest
incarnation of every other node, and does not count votes and acknowledgements of an earlier one. So a promise that the
earlier incarnation made and the later one forgot cannot complete a quorum.

Invariants: regime and incarnation never decrease; the vote in a regime does not change once given.
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
from chaplain.wire.primitives import ByteReader, put_number

VOTE_USED = 0xFF
"""In place of a vote: the vote in this regime is used, and the node that got it is not known."""
DISK_BYTES = 16
_MAGIC = b"CHAPLSTD\x02"


class VotingState(IntEnum):
    """Whether a node remembers all that it promised; the module's text explains the states."""

    SOUND = 1
    DOUBTFUL = 2
    WIPED = 3
    LOST = 4


class HardState(Frozen, frozen=True):
    """The contents of the hard state file."""

    disk: bytes
    """Id of the data directory. A file from another directory proves nothing."""
    state: VotingState
    regime: int = 0
    vote: int = 0
    """The node voted for in `regime`; 0 for no vote, `VOTE_USED` for a used vote."""
    log_begun: bool = False
    """The log has had a record on disk. If the log is empty now, it was lost."""
    incarnation: int = 0
    """Number of this node's incarnation; 0 if it never had to recover its vote."""
    incarnations: Lives = msgspec.field(default_factory=dict)
    """The highest incarnation that this node knows of each node."""


def encode_hard_state(hard_state: HardState) -> bytes:
    fields = b"".join(
        (
            _MAGIC,
            hard_state.disk,
            put_number(hard_state.state, 1),
            put_number(hard_state.regime, 4),
            put_number(hard_state.vote, 1),
            put_number(hard_state.log_begun, 1),
            put_number(hard_state.incarnation, 4),
            put_number(len(hard_state.incarnations), 1),
            *(
                put_number(node, 1) + put_number(hard_state.incarnations[node], 4)
                for node in sorted(hard_state.incarnations)
            ),
        )
    )
    return fields + put_number(checksum(fields), 4)


def decode_hard_state(data: bytes) -> HardState:
    if len(data) < 4 or put_number(checksum(data[:-4]), 4) != data[-4:]:
        raise Malformed("hard state: checksum does not match")
    cursor = ByteReader(data[:-4])
    if cursor.take(len(_MAGIC), "magic") != _MAGIC:
        raise Malformed("hard state: not a hard state file")
    disk, state = cursor.take(DISK_BYTES, "disk"), cursor.number(1, "state")
    regime, vote, log_begun = cursor.number(4, "regime"), cursor.number(1, "vote"), cursor.number(1, "begun")
    incarnation = cursor.number(4, "life")
    incarnations = {cursor.number(1, "node"): cursor.number(4, "life") for _ in range(cursor.number(1, "lives"))}
    cursor.end("hard state")
    if state not in tuple(VotingState) or log_begun > 1:
        raise Malformed(f"hard state: state {state}, begun {log_begun}")
    return HardState(disk, VotingState(state), regime, vote, bool(log_begun), incarnation, incarnations)


def load_hard_state(data: bytes | None, disk: bytes, founding_disk: bytes, log_empty: bool) -> HardState:
    """Return the hard state that the file proves; wiped if it proves nothing.

    Only a founding member that has never run may start without a file. Any other missing or damaged file may have
    contained votes.
    """
    if data is None and log_empty and disk == founding_disk:
        return HardState(disk, VotingState.SOUND)
    wiped = HardState(disk, VotingState.WIPED)
    if data is None:
        return wiped
    try:
        hard_state = decode_hard_state(data)
    except Malformed:
        return wiped
    return hard_state if hard_state.disk == disk else wiped


class HardStateStore:
    """Contains the hard state, and writes each change to disk."""

    def __init__(self, hard_state: HardState, file: str, barrier: PersistBarrier) -> None:
        self.now = hard_state
        """The current hard state. It may be ahead of the disk until the next sync."""
        self._file = file
        self._barrier = barrier

    @property
    def sound(self) -> bool:
        """True if this node may vote and acknowledge."""
        return self.now.state is VotingState.SOUND

    @property
    def regime(self) -> int:
        return self.now.regime

    def enter_regime(self, regime: int, vote: int) -> None:
        """Enter a later regime, with this vote in it. From now on the node acknowledges no proposal of an earlier
        regime. A deposed master therefore cannot use this node to reach a quorum.
        """
        # A second entry into a regime could change the vote in it, and so elect two masters.
        assert regime > self.now.regime, "a regime was entered twice, or went back"
        self._change(regime=regime, vote=vote)

    def learn_incarnation(self, node: int, incarnation: int) -> None:
        """A node has lost its memory and started a new incarnation: promises of its earlier incarnations no longer
        count here.
        """
        assert incarnation > self.now.incarnations.get(node, 0)
        self._change(incarnations={**self.now.incarnations, node: incarnation})

    def note_log_begun(self) -> None:
        """The log has a record on disk. From now on an empty log means that it was lost."""
        if not self.now.log_begun:
            self._change(log_begun=True)

    def downgrade(self, state: VotingState) -> None:
        """Withdraw this node's vote, because its log shows that promises may be lost."""
        assert state is not VotingState.SOUND
        self._change(state=state)

    def begin_incarnation(self, incarnation: int, incarnations: Lives) -> None:
        """Start a new incarnation of this node, which still has no vote."""
        assert incarnation > self.now.incarnation
        assert not self.sound
        self._change(incarnation=incarnation, incarnations=_merged(self.now.incarnations, incarnations))

    def regain(self, regime: int, incarnations: Lives, *proofs: SyncProof) -> None:
        """Declare this node sound, in this regime. The vote in the regime counts as used: the node may have given it
        before it lost its memory.
        """
        assert regime >= self.now.regime
        assert not self.sound
        self._change(
            *proofs,
            state=VotingState.SOUND,
            regime=regime,
            vote=VOTE_USED,
            incarnations=_merged(self.now.incarnations, incarnations),
        )

    def write(self) -> None:
        """Write the hard state again, unchanged."""
        self._change()

    def _change(self, *proofs: SyncProof, **fields: object) -> None:
        self.now = msgspec.structs.replace(self.now, **fields)
        self._barrier.write((Replace(self._file, encode_hard_state(self.now)),), *proofs)


def _merged(incarnations: Lives, more: Lives) -> Lives:
    return {node: max(incarnations.get(node, 0), more.get(node, 0)) for node in sorted({*incarnations, *more})}
