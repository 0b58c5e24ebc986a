"""Who is asked for in an HTTP request, where what is served is for this machine alone.

A web page of somebody else's, open in a browser of this machine, may have its own name lead to 127.0.0.1 (DNS
rebinding): to the browser what is served here is then that page's own, and it reads it. Only such a page asks for a
name that is not ours: programs and people ask for an address, or for localhost.
"""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether this address, or `localhost`, leads to this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def asks_by_address(asked: str) -> bool:
    """Whether a `Host` header names an address or localhost; so does one that is not there."""
    host = asked[: asked.find("]") + 1].strip("[]") if asked.startswith("[") else asked.partition(":")[0]
    try:
        return host.lower() in ("", "localhost") or bool(ipaddress.ip_address(host))
    except ValueError:
        return False
