"""Units of time and size. Times inside the program are integers in nanoseconds, sizes are integers in bytes."""

from __future__ import annotations

MICROSECOND_NS = 10**3
MILLISECOND_NS = 10**6
SECOND_NS = 10**9

KIB = 1 << 10
MIB = 1 << 20
