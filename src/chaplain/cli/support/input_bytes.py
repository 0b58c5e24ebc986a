"""What was typed on a command line, or comes on standard input, as the octets that it is."""

from __future__ import annotations

import sys


def octets(text: str) -> bytes:
    """UTF-8; what is none, or came to a shell of another locale, is kept as it is."""
    return text.encode("utf-8", "surrogateescape")


def given(text: str) -> bytes:
    """TEXT itself, or for - what comes on standard input."""
    return sys.stdin.buffer.read() if text == "-" else octets(text)


def lines_of(data: bytes) -> list[bytes]:
    """As files have them: each ends with a line feed, which the last one may lack, and nothing else ends one."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]
