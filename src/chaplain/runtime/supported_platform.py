"""Where nodes run."""

from __future__ import annotations

import sys

from chaplain.errors import ConfigError


def check_platform() -> None:
    """Raise `ConfigError` where nodes cannot run: they use epoll, socket filters, fallocate and /proc."""
    if sys.platform != "linux":
        raise ConfigError(f"nodes run on Linux, not on {sys.platform}: here, connect to nodes on other machines")
