"""How bytes and times are shown in JSON, by the command line and by the gateway."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

_NS = 1_000_000_000


def json_value(value: bytes) -> str | dict[str, str]:
    """Return bytes as JSON shows them: a string if they are UTF-8, otherwise `{"base64": …}`."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def timestamp(time_ns: int) -> str:
    """Return UTC text with nanoseconds. As a number it would lose its last digits in JSON parsers that use doubles."""
    seconds, rest = divmod(time_ns, _NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
