"""Listening sockets of the web servers that users start by commands."""

from __future__ import annotations

import socket

from chaplain.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"cannot serve at {host}:{port}: {error.strerror}; choose another --port") from None
