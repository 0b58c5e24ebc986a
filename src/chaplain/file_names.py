"""File and directory names that are derived from stream names.

A stream name has up to 255 visible characters; a file name has up to 255 octets on the usual file systems. An escaped
stream name can have 765 octets, and callers append suffixes such as `.sqlite-wal`. This module bounds escaped names.
Callers choose their own escape character and escape every other occurrence of it.
"""

from __future__ import annotations

from hashlib import sha256

FILE_NAME_BYTES_MAX = 255
"""The longest file name on ext4, XFS, Btrfs, APFS and NTFS."""
DIGEST_CHARACTERS = 32
"""128 bits of SHA-256, in hex: two streams never share a file, even if an attacker chooses their names."""
_MARK = "-"
"""Follows the escape character in a shortened name. In an ordinary escape, hex digits follow it."""


def bounded(escaped: str, stream: str, escape: str, room: int) -> str:
    """Return the escaped name if it fits in `room` octets, else its beginning and a digest of the stream's name.

    Only shortened names contain `escape` followed by `-`. A name that fits is never changed, so that files of earlier
    versions are found again.
    """
    if len(escaped) <= room:
        return escaped
    digest = sha256(stream.encode()).hexdigest()[:DIGEST_CHARACTERS]
    kept = escaped[: room - len(escape + _MARK + digest)]
    cut = kept.rfind(escape, -2)  # do not end within an escape: those have three characters
    return f"{kept if cut < 0 else kept[:cut]}{escape}{_MARK}{digest}"


def is_shortened(name: str, escape: str) -> bool:
    """Whether `bounded` shortened this name, so that the stream's name cannot be derived from it."""
    return escape + _MARK in name
