"""Which connections count as unauthenticated, and for how long."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator

import pytest
import zmq

from chaplain.link.zmq.accept_limiter import FORGET_MS, HANDSHAKE_MS, AcceptLimiter
from chaplain.units import MILLISECOND_NS

PLACES = 4


@pytest.fixture
def accepted() -> Iterator[list[socket.socket]]:
    """Connections that a server accepted and that say nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        callers = [socket.create_connection(server.getsockname()[:2]) for _ in range(PLACES)]
        held = [server.accept()[0] for _ in range(PLACES)]
        yield held
        for one in (*callers, *held):
            one.close()


@pytest.fixture
def limiter() -> Iterator[AcceptLimiter]:
    made = AcceptLimiter("tcp://127.0.0.1:0", Counter(), lambda: None, strangers_max=PLACES)
    yield made
    made._listener.close()


def test_late_handshakes_count_until_zeromq_reports_their_end(limiter, accepted):
    now_ns = time.monotonic_ns()
    for one in accepted:
        limiter._on_monitor_event(zmq.EVENT_ACCEPTED, one.fileno(), now_ns)
    limiter._check(now_ns + 3 * HANDSHAKE_MS * MILLISECOND_NS // 2)
    assert limiter._blocked, "ZeroMQ still holds the connections"
    for one in accepted:
        limiter._on_monitor_event(zmq.EVENT_DISCONNECTED, one.fileno(), now_ns)
    limiter._check(now_ns + 3 * HANDSHAKE_MS * MILLISECOND_NS // 2)
    assert not limiter._blocked


def test_connections_are_forgotten_although_their_end_is_never_reported(limiter, accepted):
    now_ns = time.monotonic_ns()
    for one in accepted:
        limiter._on_monitor_event(zmq.EVENT_ACCEPTED, one.fileno(), now_ns)
    limiter._check(time.monotonic_ns() + (FORGET_MS + 1) * MILLISECOND_NS)
    assert not limiter._blocked
