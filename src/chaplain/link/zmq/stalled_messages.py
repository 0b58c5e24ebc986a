"""Ends connections that start a multipart message and never finish it.

ZeroMQ delivers a message when its last part has arrived. Until then it buffers the parts without a limit: its bounds
apply to whole messages and to the length of each part. Our own messages never have a second part. So a peer that was
admitted, even with a token that it overheard, could fill the memory of a node that never receives a message from it.

A connection is stalled if ZeroMQ has read more octets from it than the largest of our messages has, and the event loop
received no message of it although it drained the socket. The kernel reports how much a connection has sent
(`TCP_INFO`); ZeroMQ reports on which connection a message arrived.

The event loop reports the messages that it receives. The accept limiter's thread checks incoming connections, because
it runs while the loop is busy; the loop itself checks dialled connections. Invariant: memory grows with open
connections only.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from chaplain.link.zmq.fragments import PIECE_BYTES_MAX

try:
    import fcntl
except ImportError:  # a client outside of Linux
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")

BUFFERED_BYTES_MAX = 2 * PIECE_BYTES_MAX
"""Bytes that ZeroMQ may buffer of a connection without delivering a message."""
CHECK_EVERY_NS = 100_000_000
_TIME_SHARE = 50
"""All checks together take at most one part in this many of the time."""
_ROUND_MESSAGES = 65_536
"""ZeroMQ serves connections in turns: after this many messages each had one, even if the socket never gets empty."""
_ROUNDS = 2
"""Two rounds, because the current one may have passed the connection before it was found stalled."""
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128  # tcpi_bytes_received in struct tcp_info of <linux/tcp.h>
_INFO_BYTES = _RECEIVED_AT + _RECEIVED.size
_SO_COOKIE = 57  # <asm-generic/socket.h>: a number that is unique among all sockets of this machine
_COOKIE_BYTES = 8
_SIOCINQ = 0x541B  # <linux/sockios.h>: bytes in the kernel's receive buffer
_UNREAD = struct.Struct("=i")


_CAN_CHECK = sys.platform == "linux" and fcntl is not None
"""Other kernels do not report what a connection has sent. There are clients there, and no nodes: a client trusts the
nodes that it dials, and checks their keys."""


class _Connection:
    __slots__ = ("cookie", "messages", "read", "stalled_since")

    def __init__(self, cookie: bytes, messages: int) -> None:
        self.cookie = cookie
        self.messages = messages
        self.read = 0
        """Octets that ZeroMQ had read at the check that last found a new message."""
        self.stalled_since: int | None = None
        """The round in which too many octets without a message were first found."""


class StalledMessages:
    def __init__(self, counts: Counter[str], wake: Callable[[], None]) -> None:
        """`wake` wakes the event loop, which may have nothing else to do."""
        self._counts = counts
        self._wake = wake
        self.wants_drain = False
        """Whether the event loop must drain its sockets, so that a check can tell stalled from waiting messages."""
        self._open: dict[int, _Connection] = {}
        self._unproven: dict[int, int] = {}
        """Connections without a whole message yet, with the message count of their descriptor at opening."""
        self._messages: dict[int, int] = {}
        self._next_check_ns = 0
        self._round = 0
        self._round_messages = 0

    # Called by the event loop.

    def message_received(self, descriptor: int) -> None:
        """The loop received a whole message of this connection."""
        self._messages[descriptor] = self._messages.get(descriptor, 0) + 1
        self._round_messages += 1
        if self._round_messages >= _ROUND_MESSAGES:
            self.all_drained()

    def all_drained(self) -> None:
        """Record that the socket was drained: no message waits on any connection."""
        self.wants_drain = False
        self._round += 1
        self._round_messages = 0

    # Called by the thread that checks.

    def __bool__(self) -> bool:
        """Whether any connection is watched."""
        return bool(self._open)

    def opened(self, descriptor: int) -> str | None:
        """Watch this connection. Returns its source address, or None if it has ended meanwhile."""
        if not _CAN_CHECK:
            return None
        found = _with_socket(descriptor, lambda at: (_cookie_of(at), at.getpeername()[0]))
        if found is None:
            return None
        self._open[descriptor] = _Connection(found[0], self._messages.get(descriptor, 0))
        self._unproven[descriptor] = self._messages.get(descriptor, 0)
        return str(found[1])

    def take_proven(self) -> list[int]:
        """Connections that have sent a whole message since they were opened, so ZeroMQ has authenticated them."""
        proven = [one for one, messages in self._unproven.items() if self._messages.get(one, 0) != messages]
        for descriptor in proven:
            del self._unproven[descriptor]
        return proven

    def check_if_due(self, now_ns: int) -> None:
        """Check all connections, if the interval has passed."""
        if self._open and now_ns >= self._next_check_ns:
            self.check_all()
            self._next_check_ns = now_ns + max(CHECK_EVERY_NS, _TIME_SHARE * (time.monotonic_ns() - now_ns))

    def check_all(self) -> None:
        for descriptor, connection in list(self._open.items()):
            if not _with_socket(descriptor, partial(self._check, descriptor, connection)):
                del self._open[descriptor]
                self._unproven.pop(descriptor, None)
            elif connection.stalled_since is not None:
                self.wants_drain = True
                self._wake()

    def _check(self, descriptor: int, connection: _Connection, at: socket.socket) -> bool:
        """Return False if the connection has ended (another may have its descriptor now), or if this check ended it."""
        if _cookie_of(at) != connection.cookie:
            return False
        messages, received = self._messages.get(descriptor, 0), _received_bytes(at)
        buffered = received - connection.read
        if messages != connection.messages:
            connection.messages, connection.read, connection.stalled_since = (
                messages,
                received - _unread_bytes(at),
                None,
            )
        elif buffered > BUFFERED_BYTES_MAX and buffered - _unread_bytes(at) > BUFFERED_BYTES_MAX:
            if connection.stalled_since is None:
                connection.stalled_since = self._round
            if self._round - connection.stalled_since >= _ROUNDS:
                self._counts["link_unfinished_ended"] += 1
                at.shutdown(socket.SHUT_RDWR)
                return False
        return True


def _with_socket(descriptor: int, query: Callable[[socket.socket], T]) -> T | None:
    """Query a socket that ZeroMQ owns, without taking ownership. None if it no longer exists."""
    try:
        borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    except OSError:
        return None
    try:
        return query(borrowed)
    except OSError:
        return None
    finally:
        borrowed.detach()


def _cookie_of(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE_BYTES)


def _received_bytes(connection: socket.socket) -> int:
    known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(_RECEIVED.unpack_from(known, _RECEIVED_AT)[0])


def _unread_bytes(connection: socket.socket) -> int:
    return int(_UNREAD.unpack(fcntl.ioctl(connection, _SIOCINQ, bytes(_UNREAD.size)))[0])
