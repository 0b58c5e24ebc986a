"""The last known members of the cluster: a file beside the log, used when the log is empty.

An empty log only knows the initial members, and all of those may have been replaced since. A node that starts with an
empty log would then find no node to fetch from. The file names the later members with their keys, and the node contacts
them as it would contact the initial ones.

The file gives no node a vote. A node that has caught up decides by its own log again. A node that lost its votes must
recover them from the voters that its log names before it votes (docs/decisions/member-lists.md).
"""

from __future__ import annotations

import msgspec

from chaplain.core import Frozen, Persist, Replace
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.quorum import Quorum

LAST_KNOWN_MEMBERS_FILE = "roster"
"""In the data directory, not in the folder of the segments: an operator who empties that folder must not delete this
file.
"""


class LastKnownMembers(Frozen, frozen=True):
    """The members and voters of the cluster after one message."""

    index: int
    """Index of that message. A node that has executed it no longer needs this record."""
    sets: tuple[tuple[int, ...], ...]
    """The serializer sets whose majorities agree on the next message."""
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


def last_known_members(config: ClusterConfig, index: int) -> LastKnownMembers:
    keys = {member.node: member.key.hex() for member in config.nodes if config.is_member(member)}
    return LastKnownMembers(index, config.quorum.sets, keys)


def read_last_known_members(data: bytes | None) -> LastKnownMembers | None:
    """Decode the file. Returns None if it cannot be decoded: the file is only a hint, and the log is the authority."""
    try:
        members = None if data is None else msgspec.json.decode(data, type=LastKnownMembers)
        return members if members is None or members.nodes else None
    except (msgspec.DecodeError, ValueError):
        return None


class LastKnownMembersStore:
    """Decides when the file must be rewritten."""

    def __init__(self, found: LastKnownMembers | None, initial: ClusterConfig) -> None:
        """`initial` is the cluster configuration of an empty log."""
        self.latest = found or last_known_members(initial, 0)

    def update(self, config: ClusterConfig, index: int) -> Persist | None:
        """The write that stores this configuration, after the message with this index was executed. Returns None if
        members and voters did not change, or if the file is newer than what this node has executed.
        """
        before = self.latest
        if index < before.index:
            return None
        self.latest = last_known_members(config, index)
        if (before.sets, before.keys) == (self.latest.sets, self.latest.keys):
            return None
        return Persist(0, (Replace(LAST_KNOWN_MEMBERS_FILE, self.latest.text().encode()),))
