"""The state that conditions of writes need, as execution stores it.

The last offsets of a stream's keys are tracked from the first condition on a key of that stream. Only the latest
`KEYS_MAX` keys are known; below `floor` nothing is.
"""

from __future__ import annotations

from chaplain.core import Frozen


class TrackedStream(Frozen, frozen=True, array_like=True):
    """The last offsets of the keys of one stream."""

    stream: str
    floor: int
    """A key that is not in `keys` has no message at this offset or after it. Earlier ones are not known."""
    used_ns: int
    """Cluster time of the last condition on a key."""
    keys: dict[bytes, int]
    """The last offset of each key, by the key's digest, in the order of the offsets. It is never changed in place."""


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
