"""Maximum sizes that are part of the wire formats. Bounds that a user may change are in `config`."""

from __future__ import annotations

STRING_BYTES_MAX = 0xFF
"""mesh.txt counts a string's octets in one octet."""

STRINGS_MAX = 0xFF
"""mesh.txt counts a list's strings in one octet."""

PARCEL_BODY_BYTES_MAX = 0xFFFF
"""sequence.txt gives the size of a parcel's body two octets."""

FRAME_BYTES_MAX = 8 * 1024 * 1024
"""The maximum size of one frame, including its seal. The link sends a long frame as several ZeroMQ messages."""

DATAGRAM_BYTES_MAX = 1200
"""A beacon must pass every network path without fragmentation."""
