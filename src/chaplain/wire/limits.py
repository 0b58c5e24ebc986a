"""Sizes no message may pass. A bound that a user may change lives in `config`; these are part of the formats."""

from __future__ import annotations

STRING_BYTES_MAX = 0xFF
"""mesh.txt counts a string's octets in one octet."""

STRINGS_MAX = 0xFF
"""mesh.txt counts a list's strings in one octet."""

PARCEL_BODY_BYTES_MAX = 0xFFFF
"""sequence.txt gives the parcel's size two octets."""

FRAME_BYTES_MAX = 8 * 1024 * 1024
"""What one ZeroMQ frame may hold, seal included. ZeroMQ itself refuses more."""

DATAGRAM_BYTES_MAX = 1200
"""A beacon must pass any path without fragmentation."""
