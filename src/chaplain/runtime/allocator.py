"""Settings of the C library's memory allocator for a node.

By default glibc returns a freed block of more than 128 KiB, and the free end of its heap, to the system. A node
allocates and frees such blocks with every frame, message and record. Each time the kernel hands out zeroed pages one by
one, which takes longer than the copy into them. So the allocator retains freed memory, up to a bound.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

from chaplain.units import MIB

RETAINED_BYTES_MAX = 16 * MIB
"""Freed memory at the end of the heap that the process retains."""
HEAP_BLOCK_BYTES_MAX = 8 * MIB
"""Blocks up to this size come from the heap. Larger ones are mapped and unmapped one by one."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def retain_freed_memory() -> None:
    """Set the bounds, if the C library is glibc."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):  # another C library has no `mallopt`
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, RETAINED_BYTES_MAX)
        mallopt(_M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX)
