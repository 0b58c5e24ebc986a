"""The exception with which the link refuses a token, greeting, frame or key change. It never leaves the link."""

from __future__ import annotations


class GreetingRefused(Exception):
    """The input is well-formed but not acceptable. `reason` is one of a fixed set; variable data is in `detail`."""

    def __init__(self, reason: str, **detail: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail
