"""Saying no: the one exception with which the link's judges turn somebody away. It never leaves the link."""

from __future__ import annotations


class GreetingRefused(Exception):
    """Well-formed, and still not acceptable. The reason is one of a fixed set; what varies goes into the detail."""

    def __init__(self, reason: str, **detail: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
