"""Sizes, padding, checksums and file names that all of the format shares.

Every checksum of a record begins with its segment's identity and its position in the log, so bytes that were right
somewhere or sometime else are wrong here.
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
"""Whatever holds octets. Decoders take any of them and copy none."""

view_of: Callable[[Any], memoryview] = memoryview
"""Of any of them. An array is one, but its types do not say so."""

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
"""Arrow's binary columns count octets in 31 bits; a record, hence a batch, stays below that."""

_LOG_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_FILE_NAME = re.compile(r"([a-z0-9][a-z0-9_.-]{0,63})-([0-9]{20})\.(segment|free)")


def padded(size: int) -> int:
    return (size + ALIGNMENT - 1) & -ALIGNMENT


PADDINGS = tuple(bytes(-size % ALIGNMENT) for size in range(ALIGNMENT))
"""What `padding` gives, by the last bits of the size."""


def padding(size: int) -> bytes:
    return PADDINGS[size % ALIGNMENT]


def checksum(data: bytes | Octets, start: int = 0) -> int:
    """CRC-32C, going on from `start`."""
    crc: int = google_crc32c.extend(start, data)
    return crc


def place_seed(identity_crc: int, position: int) -> int:
    """What the checksums of the record at `position` go on from; `identity_crc` is the identity's own checksum."""
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
    """The log, the sequence, and whether the file waits to be recycled."""
    match = _FILE_NAME.fullmatch(name)
    if not match:
        raise Malformed(f"{name!r} is not the name of a segment")
    return match[1], int(match[2]), match[3] == "free"
