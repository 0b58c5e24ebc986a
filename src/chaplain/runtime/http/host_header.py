"""Checks the `Host` header of HTTP requests, as protection against DNS rebinding of loopback services.

A foreign web page, open in a browser on this machine, can make its own host name resolve to 127.0.0.1. The browser
then treats a service on a loopback address as part of that page's origin, and the page can read its responses.
Requests of such a page have the page's name in the `Host` header. Legitimate programs and users ask for an address
or for localhost.
"""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_host_allowed(host_header: str) -> bool:
    """Whether a `Host` header contains an IP address or `localhost`. A missing header is allowed."""
    host = (
        host_header[: host_header.find("]") + 1].strip("[]")
        if host_header.startswith("[")
        else host_header.partition(":")[0]
    )
    try:
        return host.lower() in ("", "localhost") or bool(ipaddress.ip_address(host))
    except ValueError:
        return False
