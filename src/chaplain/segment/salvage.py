"""Reads files that may have unreadable sectors.

An unreadable sector is damage, like a flipped bit. The reader gets zeros in its place, finds no valid record there, and
reports or repairs it. Reading it through a memory map would end the process with a signal.

Invariant: readable octets are returned unchanged, unless they follow closely after unreadable ones.
"""

from __future__ import annotations

import errno
import os

PAGE_BYTES = 4096
"""The octets that are skipped after a first failure: the unit in which the system reads."""
SKIP_BYTES_MAX = 1 << 20
"""The skip doubles after each failure up to this size: a drive may take seconds for every sector that it retries."""
READ_BYTES_MAX = 1 << 30
"""One system call reads at most 2 GiB."""
UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""A sector or its checksum is bad. Other errors do not concern the medium and are raised."""


def read(descriptor: int, size_bytes: int, position: int) -> bytes:
    """Return the octets from this position; fewer at the end of the file. Unreadable octets are zeros."""
    try:
        data = os.pread(descriptor, size_bytes, position)
        if len(data) == size_bytes or position + len(data) >= os.fstat(descriptor).st_size:
            return data
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    buffer = bytearray(size_bytes)
    return bytes(memoryview(buffer)[: read_into(descriptor, memoryview(buffer), position)])


def read_into(descriptor: int, buffer: memoryview, position: int) -> int:
    """Fill the buffer, which contains zeros, from this position. Returns how many of its octets are inside the file."""
    done, skip_bytes = 0, PAGE_BYTES
    while done < len(buffer):
        try:
            got = os.preadv(descriptor, [buffer[done : done + READ_BYTES_MAX]], position + done)
            if not got:
                break
            done, skip_bytes = done + got, PAGE_BYTES
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            done += skip_bytes - (position + done) % PAGE_BYTES
            skip_bytes = min(2 * skip_bytes, SKIP_BYTES_MAX)
    return max(0, min(done, len(buffer), os.fstat(descriptor).st_size - position))


def is_readable(descriptor: int, start: int, end: int) -> bool:
    """Whether every octet between two positions can be read now."""
    scratch = memoryview(bytearray(min(SKIP_BYTES_MAX, end - start)))
    position = start
    while position < end:
        try:
            got = os.preadv(descriptor, [scratch[: end - position]], position)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return False
        if not got:
            break
        position += got
    return True
