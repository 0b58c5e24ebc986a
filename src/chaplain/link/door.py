"""Keeps strangers cheap: limits how many connections may be unproven at a time.

Every accepted connection costs up to `PIECE_BYTES_MAX` and some buffers until its handshake is over, and ZeroMQ
accepts whoever comes. The door owns the listening socket that ZeroMQ accepts from, counts accepts against completed
handshakes over the last handshake interval, and when the difference passes the bound has the kernel drop new
connection attempts (a socket filter on the listener alone, so connections that are up notice nothing). An honest
dialler's kernel tries again by itself, after a second. It also has those looked at who are in (`unfinished`).

It runs in a thread of its own because it must react within milliseconds while the node is busy.
It knows nothing of who is who: that is the link's to decide, through ZAP.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

import zmq

from chaplain.errors import ConfigError
from chaplain.link.unfinished import Unfinished

STRANGERS_MAX = 192
"""Unproven connections within one handshake interval. Times 64 KiB and buffers: below 16 MiB."""

HANDSHAKE_MS = 2000
"""After this ZeroMQ itself ends a connection that has not proven itself."""

_BACKLOG = 64
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # <asm-generic/socket.h>; the socket module has no names for them
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_ADDRESS = slice(20, 24)  # of struct ifreq: behind the name, the family and the port
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # struct sock_filter: BPF_RET, keep 0 octets
_TICK_MS = 100
_EVENT = struct.Struct("=Hi")


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of `tcp://host:port`; port `*` is 0, any free one."""
    scheme, _, rest = endpoint.partition("://")
    host, colon, port = rest.rpartition(":")
    if scheme != "tcp" or not colon or not host or not (port == "*" or (port.isascii() and port.isdigit())):
        raise ConfigError(f"{endpoint!r} is no endpoint: write it like tcp://127.0.0.1:7400")
    number = 0 if port == "*" else int(port)
    if number > 0xFFFF:
        raise ConfigError(f"{endpoint!r}: a port is at most 65535")
    return host.strip("[]"), number


class Door:
    """A listening socket for a ROUTER, and the thread that watches who comes in."""

    def __init__(
        self, endpoint: str, counts: Counter[str], wake: Callable[[], None], strangers_max: int = STRANGERS_MAX
    ) -> None:
        """`wake` has the thread that reads the ROUTER turn."""
        self._counts = counts
        self.unfinished = Unfinished(counts, wake)
        self._strangers_max = strangers_max
        self._accepted_ns: deque[int] = deque()
        self._shut = False
        self._listener = _listen(endpoint)
        host, port = self._listener.getsockname()[:2]
        self.endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def attach(self, router: zmq.Socket[bytes]) -> None:
        """Have the ROUTER accept from our listener, and watch it."""
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        router.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_MONITOR_STOPPED
        monitor = router.get_monitor_socket(events)
        router.bind(self.endpoint)
        self._thread = threading.Thread(target=self._watch, args=(monitor,), name="door", daemon=True)
        self._thread.start()

    def close(self, router: zmq.Socket[bytes]) -> None:
        router.disable_monitor()
        self._thread.join(timeout=5)
        self._listener.close()

    def _watch(self, monitor: zmq.Socket[bytes]) -> None:
        while True:
            while monitor.poll(_TICK_MS if self._accepted_ns or self.unfinished else None):
                event, value = _EVENT.unpack_from(monitor.recv_multipart()[0])
                if event == zmq.EVENT_MONITOR_STOPPED:
                    monitor.close()
                    return
                self._note(event, value, time.monotonic_ns())
            self._decide(time.monotonic_ns())

    def _note(self, event: int, value: int, now_ns: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._counts["link_accepted"] += 1
            self._accepted_ns.append(now_ns)
            self.unfinished.opened(value)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._accepted_ns:
            self._accepted_ns.popleft()
        self._decide(now_ns)

    def _decide(self, now_ns: int) -> None:
        """Shut at the bound, open at half of it: toggling is a system call."""
        self.unfinished.tend(now_ns)
        while self._accepted_ns and self._accepted_ns[0] < now_ns - HANDSHAKE_MS * 1_000_000:
            self._accepted_ns.popleft()
        if not self._shut and len(self._accepted_ns) >= self._strangers_max:
            self._counts["link_door_shut"] += 1
            self._filter(drop=True)
        elif self._shut and len(self._accepted_ns) <= self._strangers_max // 2:
            self._filter(drop=False)

    def _filter(self, *, drop: bool) -> None:
        self._shut = drop
        if not drop:
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            return
        code = ctypes.create_string_buffer(_DROP_ALL)
        program = struct.pack("HL", 1, ctypes.addressof(code))  # struct sock_fprog: length, pointer
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _listen(endpoint: str) -> socket.socket:
    host, port = split_endpoint(endpoint)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind(("" if host == "*" else _address_of(host), port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {endpoint}: {error.strerror}; choose another bind endpoint") from error
    return listener


def _address_of(host: str) -> str:
    """The IPv4 address of the interface of this name, if there is one; else what was given."""
    if host not in {name for _, name in socket.if_nameindex()}:
        return host
    request = struct.pack("256s", host.encode())  # struct ifreq: the name, then room for the address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[_ADDRESS])
