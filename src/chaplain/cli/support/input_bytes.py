"""Converts command-line arguments and standard input to bytes without changing them."""

from __future__ import annotations

import sys


def to_bytes(text: str) -> bytes:
    """Encode an argument as UTF-8. Bytes that are not valid in the user's locale are restored as they were typed."""
    return text.encode("utf-8", "surrogateescape")


def text_or_stdin(text: str) -> bytes:
    """Return the bytes of the argument TEXT, or of standard input if TEXT is `-`."""
    return sys.stdin.buffer.read() if text == "-" else to_bytes(text)


def split_lines(data: bytes) -> list[bytes]:
    """Split at line feeds only. The last line may lack its line feed."""
    lines = data.split(b"\n")
    return lines if lines[-1] else lines[:-1]
