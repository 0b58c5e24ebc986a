"""Ends connections that begin a message of many parts and never finish it.

ZeroMQ hands a message over when its last part is there, and until then keeps what came, however much: its bounds count
whole messages, and the length of each part. Nothing of ours has a second part. So somebody who was let in, be it with a
knock that was overheard, could fill the memory of a node that never hears of it.

Decides who does that: somebody from whom ZeroMQ has read more than any one message of ours holds, and of whom the loop
gets none although it took all that was there. What a connection has sent the kernel knows (`TCP_INFO`); by which one a
message came, ZeroMQ.

The loop tells what it takes. At those who dialled us the door's thread looks, which is there while the loop is busy;
at those whom we dialled the loop itself. Invariant: what this keeps grows with open connections only.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from chaplain.link.zmq.fragments import PIECE_BYTES_MAX

T = TypeVar("T")

KEPT_BYTES_MAX = 2 * PIECE_BYTES_MAX
LOOK_EVERY_NS = 100_000_000
_LEISURE = 50
"""Looking takes one part in so many of the time, however many connections there are."""
_ROUND_FRAMES = 65_536
"""ZeroMQ takes turns: after so many messages everybody had one, even if there is always another."""
_ROUNDS = 2
"""The one under way may have passed over the connection before it was noticed."""
_RECEIVED = struct.Struct("=Q")
_RECEIVED_AT = 128  # tcpi_bytes_received in struct tcp_info of <linux/tcp.h>
_INFO_BYTES = _RECEIVED_AT + _RECEIVED.size
_SO_COOKIE = 57  # <asm-generic/socket.h>: a number that no other socket of this machine has had
_COOKIE_BYTES = 8
_SIOCINQ = 0x541B  # <linux/sockios.h>: what the kernel has, and nobody has read
_UNREAD = struct.Struct("=i")


class _Connection:
    __slots__ = ("cookie", "frames", "noticed", "read")

    def __init__(self, cookie: bytes, frames: int) -> None:
        self.cookie = cookie
        self.frames = frames
        self.read = 0
        """Octets that ZeroMQ had read when the last message was taken, as far as was seen."""
        self.noticed: int | None = None
        """In which round there were too many since."""


class StalledMessages:
    def __init__(self, counts: Counter[str], wake: Callable[[], None]) -> None:
        """`wake` makes the loop turn, which may have nothing else to do."""
        self._counts = counts
        self._wake = wake
        self.asks = False
        """Whether the loop is to see if there is something to take."""
        self._open: dict[int, _Connection] = {}
        self._unproven: dict[int, int] = {}
        """Connections that have sent no whole message yet, and how many their descriptors had sent before."""
        self._frames: dict[int, int] = {}
        self._look_ns = 0
        self._round = 0
        self._of_round = 0

    # Of the loop.

    def took(self, descriptor: int) -> None:
        """A whole message of this connection."""
        self._frames[descriptor] = self._frames.get(descriptor, 0) + 1
        self._of_round += 1
        if self._of_round >= _ROUND_FRAMES:
            self.took_all()

    def took_all(self) -> None:
        """No message of anybody waits."""
        self.asks = False
        self._round += 1
        self._of_round = 0

    # Of whoever looks.

    def __bool__(self) -> bool:
        """Whether there is anybody to look at."""
        return bool(self._open)

    def opened(self, descriptor: int) -> str | None:
        """Watch this connection; the address it comes from, or None if it has ended meanwhile."""
        found = _ask(descriptor, lambda at: (_cookie_of(at), at.getpeername()[0]))
        if found is None:
            return None
        self._open[descriptor] = _Connection(found[0], self._frames.get(descriptor, 0))
        self._unproven[descriptor] = self._frames.get(descriptor, 0)
        return str(found[1])

    def proven(self) -> list[int]:
        """Connections that have sent a whole message since they were opened: ZeroMQ has let them in."""
        proven = [one for one, frames in self._unproven.items() if self._frames.get(one, 0) != frames]
        for descriptor in proven:
            del self._unproven[descriptor]
        return proven

    def tend(self, now_ns: int) -> None:
        """Look, if it is time to."""
        if self._open and now_ns >= self._look_ns:
            self.look()
            self._look_ns = now_ns + max(LOOK_EVERY_NS, _LEISURE * (time.monotonic_ns() - now_ns))

    def look(self) -> None:
        for descriptor, connection in list(self._open.items()):
            if not _ask(descriptor, partial(self._look_at, descriptor, connection)):
                del self._open[descriptor]
                self._unproven.pop(descriptor, None)
            elif connection.noticed is not None:
                self.asks = True
                self._wake()

    def _look_at(self, descriptor: int, connection: _Connection, at: socket.socket) -> bool:
        """Whether it goes on: it has not ended, with its number another's now, and not been ended here."""
        if _cookie_of(at) != connection.cookie:
            return False
        frames, received = self._frames.get(descriptor, 0), _received_bytes(at)
        kept = received - connection.read
        if frames != connection.frames:
            connection.frames, connection.read, connection.noticed = frames, received - _unread_bytes(at), None
        elif kept > KEPT_BYTES_MAX and kept - _unread_bytes(at) > KEPT_BYTES_MAX:
            if connection.noticed is None:
                connection.noticed = self._round
            if self._round - connection.noticed >= _ROUNDS:
                self._counts["link_unfinished_ended"] += 1
                at.shutdown(socket.SHUT_RDWR)
                return False
        return True


def _ask(descriptor: int, question: Callable[[socket.socket], T]) -> T | None:
    """Ask a socket of ZeroMQ's, which stays ZeroMQ's; None if it is there no more."""
    try:
        borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
    except OSError:
        return None
    try:
        return question(borrowed)
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
