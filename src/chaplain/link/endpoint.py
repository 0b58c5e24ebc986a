"""The grammar of endpoints: `tcp://address:port`. This is the only place that parses them.

An address is an IPv4 address, a host name, or an IPv6 address in brackets. An endpoint to connect to has a port from 1
to 65535. An endpoint to bind may also have `*` as its address (every interface), the name of an interface, and `*` or 0
as its port (any free one). This module resolves no names and opens no sockets.
"""

from __future__ import annotations

import re

from chaplain.errors import ConfigError

_ADDRESS = r"[0-9A-Za-z_.:%\[\]-]{1,128}"
_CONNECT = re.compile(rf"tcp://({_ADDRESS}):([1-9][0-9]{{0,4}})")
_BIND = re.compile(rf"tcp://({_ADDRESS}|\*):([0-9]{{1,5}}|\*)")
_PORT_MAX = 0xFFFF


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return address and port of an endpoint to connect to. An IPv6 address keeps its brackets, as in a greeting."""
    return _split(_CONNECT, endpoint)


def split_bind_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of an endpoint to bind, for the socket module: without brackets, and port `*` as 0."""
    host, port = _split(_BIND, endpoint)
    return bare_host(host), port


def is_endpoint(endpoint: str) -> bool:
    """Whether this is an endpoint to connect to."""
    try:
        split_endpoint(endpoint)
    except ConfigError:
        return False
    return True


def bare_host(address: str) -> str:
    """The address without the brackets of an IPv6 address."""
    return address.strip("[]")


def _split(grammar: re.Pattern[str], endpoint: str) -> tuple[str, int]:
    found = grammar.fullmatch(endpoint)
    port = 0 if found is None or found[2] == "*" else int(found[2])
    if found is None or port > _PORT_MAX:
        raise ConfigError(f"endpoint: tcp://address:port wanted, not {endpoint!r}")
    return found[1], port
