"""Listening sockets of the web servers that users start by commands."""

from __future__ import annotations

import socket

from chaplain.errors import ConfigError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Accepted sockets inherit TCP_NODELAY.

    asyncio sets it only on sockets that name TCP as their protocol, and these do not. Without it the body of an answer
    waits for the delayed acknowledgement of its header, 40 ms.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        raise ConfigError(f"cannot serve at {host}:{port}: {error.strerror}; choose another --port") from None
