"""Sizes, padding, checksums and file names that the whole format shares.

Every checksum of a record starts with its segment's identity and its position in the log. So bytes that are valid at
another position, or were valid in an earlier use of the file, are invalid here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from chaplain.errors import ConfigError, Malformed

Octets: TypeAlias = npt.NDArray[np.uint8]
Bytes: TypeAlias = bytes | bytearray | memoryview | Octets
"""Any object that contains octets. Decoders accept all of them and copy none."""

view_of: Callable[[Any], memoryview] = memoryview
"""A memoryview of any of them. An array supports the buffer protocol, but its types do not declare it."""

ALIGNMENT = 8
HEADER_BYTES = 512
PAGE_BYTES = 4096
HEADER_COPIES = (0, PAGE_BYTES)
RECORDS_START = 2 * PAGE_BYTES
IDENTITY_BYTES = 16
TAG_BYTES = 8
HASH_BYTES = 32
NO_HASH = bytes(HASH_BYTES)
NO_OFFSET = (1 << 64) - 1
SEGMENT_BYTES = 64 * 1024 * 1024
SEGMENT_BYTES_MIN = 16 * 1024
SEGMENT_BYTES_MAX = 1 << 31
"""Arrow's binary columns count octets in 31 bits; a record, and so a batch, must stay below that."""

_LOG_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_FILE_NAME = re.compile(r"([a-z0-9][a-z0-9_.-]{0,63})-([0-9]{20})\.(segment|free)")


def padded(size: int) -> int:
    return (size + ALIGNMENT - 1) & -ALIGNMENT


PADDINGS = tuple(bytes(-size % ALIGNMENT) for size in range(ALIGNMENT))
"""The results of `padding`, by the last bits of the size."""


def padding(size: int) -> bytes:
    return PADDINGS[size % ALIGNMENT]


def checksum(data: bytes | Octets, start: int = 0) -> int:
    """CRC-32C, continued from `start`."""
    crc: int = google_crc32c.extend(start, data)
    return crc


def checksum_seed(identity_crc: int, position: int) -> int:
    """The start value of the checksums of the record at `position`; `identity_crc` is the checksum of the identity."""
    return checksum(position.to_bytes(8, "little"), identity_crc)


def octets(data: Bytes) -> Octets:
    """A view of any bytes, without a copy."""
    if isinstance(data, np.ndarray):
        return data
    view: Any = view_of(data).cast("B")
    return np.frombuffer(view, dtype=np.uint8) if len(view) else np.empty(0, np.uint8)


def check_log_name(name: str) -> None:
    if not _LOG_NAME.fullmatch(name):
        raise ConfigError(f"a log is named with a-z, 0-9, '_', '.' and '-', at most 64 of them, not {name!r}")


def check_segment_bytes(size_bytes: int) -> None:
    if not SEGMENT_BYTES_MIN <= size_bytes <= SEGMENT_BYTES_MAX or size_bytes % PAGE_BYTES:
        raise ConfigError(
            f"a segment has {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} octets, in whole pages of {PAGE_BYTES},"
            f" not {size_bytes}"
        )


def segment_name(log: str, sequence: int) -> str:
    return f"{log}-{sequence:020d}.segment"


def free_name(log: str, sequence: int) -> str:
    return f"{log}-{sequence:020d}.free"


def parse_name(name: str) -> tuple[str, int, bool]:
    """Return the log, the sequence, and whether the file waits to be recycled."""
    match = _FILE_NAME.fullmatch(name)
    if not match:
        raise Malformed(f"{name!r} is not the name of a segment")
    return match[1], int(match[2]), match[3] == "free"
