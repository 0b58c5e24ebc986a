"""The URL of a cluster, `chaplain://host:port,host:port?identity=/path/of/file&name=cluster`, in one string.

It names the identity file and contains no secret, so it may stand in an environment or a configuration file.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from chaplain.core import Frozen
from chaplain.errors import ConfigError

SCHEME = "chaplain://"
_SHAPE = f"a cluster's URL is {SCHEME}host:port,host:port?identity=/path/of/file"


class ClusterUrl(Frozen, frozen=True):
    """The parts of a URL."""

    endpoints: tuple[str, ...]
    identity: str = ""
    name: str = ""


def parse_url(url: str) -> ClusterUrl:
    """Parse a URL. Raises `ConfigError`; the endpoints are not checked."""
    try:
        parts = urlsplit(url)
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError as error:
        raise ConfigError(f"{_SHAPE}: {error}") from None
    unknown = [name for name, _ in given if name not in ("identity", "name")]
    if unknown or len(dict(given)) < len(given) or parts.fragment or parts.path not in ("", "/") or "@" in parts.netloc:
        what = f"{unknown[0]!r} is unknown" if unknown else "it has other parts, or one twice"
        raise ConfigError(f"{_SHAPE}; `name` may follow: {what}")
    return ClusterUrl(tuple(f"tcp://{place}" for place in parts.netloc.split(",") if place), **dict(given))
