"""The state that conditions of writes need, as execution stores it.

The last offsets of a stream's keys and tags are tracked from the first condition on one of them. Only the latest
`KEYS_MAX` are known; below `floor` nothing is.
"""

from __future__ import annotations

from chaplain.core import Frozen


class TrackedStream(Frozen, frozen=True, array_like=True):
    """The last offsets of the keys and tags of one stream."""

    stream: str
    floor: int
    """A key or tag that is not in `keys` has no message at this offset or after it. Earlier ones are not known."""
    used_ns: int
    """Cluster time of the last condition on a key or tag."""
    keys: dict[bytes, int]
    """The last offset of each key and tag, by its digest, in the order of the offsets. It is never changed in place."""


class FenceState(Frozen, frozen=True, array_like=True):
    """The highest token that was seen under a name in a stream."""

    stream: str
    name: str
    token: int
    used_ns: int


class ConditionsRecord(Frozen, frozen=True, array_like=True):
    """The serialized form."""

    streams: tuple[TrackedStream, ...] = ()
    """In the order of their names."""
    fences: tuple[FenceState, ...] = ()
    """In the order of their streams and names."""
