"""Reads files of which some sectors may be unreadable.

A sector that the disk cannot read is damage, as a flipped bit is: whoever asks gets zeros in its place, finds no valid
record there, and reports or mends it. Read through a memory map it would be a signal that ends the process.

Invariant: octets that can be read are returned as they are, unless they lie close behind others that cannot.
"""

from __future__ import annotations

import errno
import os

PAGE_BYTES = 4096
"""What is given up at first where nothing can be read: what the system reads at once."""
SKIP_BYTES_MAX = 1 << 20
"""After each failure twice as much is given up, up to this: a drive may take seconds for every sector that it tries."""
READ_BYTES_MAX = 1 << 30
"""One call of the system reads at most 2 GiB."""
UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""A sector or its checksum is bad. Any other error says nothing about the medium, and is raised."""


def read(descriptor: int, size_bytes: int, position: int) -> bytes:
    """The octets from there on; fewer if the file ends. Zeros stand for those that cannot be read."""
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
    """Fill the buffer, which holds zeros, from there on. Returns how many octets of it the file has."""
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
