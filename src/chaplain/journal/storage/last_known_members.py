"""Who belongs to the cluster, as a node knew it last: beside its log, for the day when that is empty.

An empty log names the founders, who may all have been replaced: then nobody whom it names is there to fetch from. With
a roster the others are known by their keys, and asked as the founders would be. It gives nobody a vote: whoever has
caught up decides by its own log again, and one that lost its memory is asked by those whom that log names before it is
sound (docs/decisions/member-lists.md).
"""

from __future__ import annotations

import msgspec

from chaplain.core import Frozen, Persist, Replace
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.quorum import Quorum

ROSTER_FILE = "roster"
"""In the data directory, not beside the segments: whoever empties that folder is to find the others."""


class LastKnownMembers(Frozen, frozen=True):
    index: int
    """Who has executed so much knows as much by itself."""
    sets: tuple[tuple[int, ...], ...]
    """Whose majorities agree on the next message."""
    keys: dict[int, str]
    """Public keys of the members, in hex, by node id."""

    @property
    def quorum(self) -> Quorum:
        return Quorum(self.sets)

    @property
    def nodes(self) -> dict[bytes, int]:
        return {bytes.fromhex(key): node for node, key in self.keys.items()}

    def text(self) -> str:
        return msgspec.json.encode(self).decode() + "\n"


def roster_of(assembly: ClusterConfig, index: int) -> LastKnownMembers:
    keys = {placed.node: placed.key.hex() for placed in assembly.nodes if assembly.has(placed)}
    return LastKnownMembers(index, assembly.quorum.sets, keys)


def read_roster(data: bytes | None) -> LastKnownMembers | None:
    """What a file says; nothing, if it cannot be understood: the log goes before it anyway."""
    try:
        roster = None if data is None else msgspec.json.decode(data, type=LastKnownMembers)
        return roster if roster is None or roster.nodes else None
    except (msgspec.DecodeError, ValueError):
        return None


class LastKnownMembersStore:
    def __init__(self, found: LastKnownMembers | None, founded: ClusterConfig) -> None:
        """`founded` is what an empty log says by itself."""
        self.latest = found or roster_of(founded, 0)

    def look(self, assembly: ClusterConfig, index: int) -> Persist | None:
        """What is to be written, now that so much is executed; nothing while we know less than the roster does."""
        before = self.latest
        if index < before.index:
            return None
        self.latest = roster_of(assembly, index)
        if (before.sets, before.keys) == (self.latest.sets, self.latest.keys):
            return None
        return Persist(0, (Replace(ROSTER_FILE, self.latest.text().encode()),))
