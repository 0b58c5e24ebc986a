"""What was typed on a command line, as the octets that it was typed as."""

from __future__ import annotations


def octets(text: str) -> bytes:
    """UTF-8; what is none, or came to a shell of another locale, is kept as it is."""
    return text.encode("utf-8", "surrogateescape")
