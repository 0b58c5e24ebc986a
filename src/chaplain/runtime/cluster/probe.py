"""Queries a node's HTTP port. Without a response the node counts as down."""

from __future__ import annotations

import http.client
import json

TIMEOUT_S = 3.0
ANSWER_BYTES_MAX = 16 * 1024 * 1024


def is_ready(address: str) -> bool:
    return _get(address, "/readyz") is not None


def get_status(address: str) -> dict[str, object] | None:
    body = _get(address, "/status")
    if body is None:
        return None
    try:
        status = json.loads(body)
    except ValueError:
        return None
    return status if isinstance(status, dict) else None


def _get(address: str, path: str) -> bytes | None:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return None
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
        return body if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
