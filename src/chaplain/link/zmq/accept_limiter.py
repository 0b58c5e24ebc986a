"""Bounds the cost of unauthenticated connections: limits their number, fairly by source address.

Every accepted connection costs up to `PIECE_BYTES_MAX` and some buffers until its handshake is over, and ZeroMQ accepts
every connection. The limiter owns the listening socket from which ZeroMQ accepts, and learns of each accepted
connection. When too many are unauthenticated, the kernel drops the attempts of the addresses with the most of them
(`strangers` decides which), by a socket filter on the listener. Established connections are not affected. The kernel of
an honest peer retries by itself after a second.

The kernel does not even hand over connections that send nothing (`TCP_DEFER_ACCEPT`): a ZeroMQ peer sends at once.

The limiter also ends authenticated connections that never finish a message (`stalled_messages`).

It runs in its own thread because it must react within milliseconds while the node is busy. It knows no identities: the
link authenticates through ZAP.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

import zmq

from chaplain.errors import ConfigError
from chaplain.link.endpoint import split_bind_endpoint
from chaplain.link.zmq.stalled_messages import StalledMessages
from chaplain.link.zmq.strangers import BlockedSources, Strangers
from chaplain.units import MILLISECOND_NS

STRANGERS_MAX = 192
"""Unauthenticated connections within one handshake interval. Times 64 KiB and buffers: below 16 MiB."""

HANDSHAKE_MS = 2000
"""ZeroMQ ends a connection that has not authenticated itself within this time."""

FORGET_MS = 2 * HANDSHAKE_MS
"""A connection counts until ZeroMQ reports its end, at most this long. ZeroMQ's timers are late on a busy machine, and
a connection takes memory until it is closed: counting it for `HANDSHAKE_MS` only would admit up to twice as many.
"""

_BACKLOG = 4096
"""Connections that the kernel holds because they have sent nothing, or are not accepted yet: 300 octets each."""
_SILENT_S = 30
"""How long the kernel holds a connection that sends nothing."""
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # <asm-generic/socket.h>; the socket module has no names for them
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_ADDRESS = slice(20, 24)  # of struct ifreq: behind the name, the family and the port
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06  # <linux/bpf_common.h>
_NETWORK = 0xFFF00000  # SKF_NET_OFF of <linux/filter.h>: from here on, octets of the IP header
_IPV6 = 6
_FILTERED_MAX = 32
"""Addresses in one filter; with more, the attempts of all addresses are dropped for a moment."""
_TICK_MS = 100
_CHECK_NS = 5_000_000
"""The interval of checks, even while events keep arriving."""
_EVENT = struct.Struct("=Hi")


class AcceptLimiter:
    """A listening socket for a ROUTER, and the thread that watches accepted connections."""

    def __init__(
        self,
        endpoint: str,
        counts: Counter[str],
        wake: Callable[[], None],
        strangers_max: int = STRANGERS_MAX,
        members: Iterable[str] = (),
    ) -> None:
        """`wake` wakes the thread that reads the ROUTER. Places are reserved for the addresses in `members`."""
        self._counts = counts
        self.stalled = StalledMessages(counts, wake)
        self._strangers = Strangers(strangers_max, frozenset(map(source_of, members)))
        self._blocked = BlockedSources()
        self._next_check_ns = 0
        self._listener = _listen(endpoint)
        host, port = self._listener.getsockname()[:2]
        self.endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def attach(self, router: zmq.Socket[bytes]) -> None:
        """Let the ROUTER accept from our listener, and watch it."""
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        router.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
        monitor = router.get_monitor_socket(events)
        router.bind(self.endpoint)
        self._thread = threading.Thread(target=self._watch, args=(monitor,), name="accept-limiter", daemon=True)
        self._thread.start()

    def close(self, router: zmq.Socket[bytes]) -> None:
        router.disable_monitor()
        self._thread.join(timeout=5)
        self._listener.close()

    def _watch(self, monitor: zmq.Socket[bytes]) -> None:
        while True:
            while monitor.poll(_TICK_MS if self._strangers or self._blocked or self.stalled else None):
                event, value = _EVENT.unpack_from(monitor.recv_multipart()[0])
                if event == zmq.EVENT_MONITOR_STOPPED:
                    monitor.close()
                    return
                now_ns = time.monotonic_ns()
                self._on_monitor_event(event, value, now_ns)
                if now_ns >= self._next_check_ns:  # events may arrive without a pause
                    self._check(now_ns)
            self._check(time.monotonic_ns())

    def _on_monitor_event(self, event: int, descriptor: int, now_ns: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            self._strangers.remove(descriptor)
        else:
            self._counts["link_accepted"] += 1
            source = self.stalled.opened(descriptor)
            if source is not None:
                self._strangers.add(now_ns, descriptor, source_of(source))
                self._update_filter()

    def _check(self, now_ns: int) -> None:
        self._next_check_ns = now_ns + _CHECK_NS
        self.stalled.check_if_due(now_ns)
        for descriptor in self.stalled.take_proven():
            self._strangers.remove(descriptor)
        self._strangers.expire(now_ns - FORGET_MS * MILLISECOND_NS)
        self._update_filter()

    def _update_filter(self) -> None:
        blocked = self._strangers.blocked()
        if blocked != self._blocked:
            self._counts["link_accept_blocked"] += not self._blocked
            self._blocked = blocked
            self._set_filter(blocked)

    def _set_filter(self, blocked: BlockedSources) -> None:
        if not blocked:
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            return
        instructions = filter_of(blocked)
        code = ctypes.create_string_buffer(b"".join(instructions))
        program = struct.pack("HL", len(instructions), ctypes.addressof(code))  # struct sock_fprog: length, pointer
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def source_of(address: str) -> str:
    """The source under which an address is counted: itself, or its IPv6 /64, all of which one machine may use."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
    return str(found)


def filter_of(blocked: BlockedSources) -> list[bytes]:
    """A classic BPF program (struct sock_filter each) that drops packets of blocked sources and keeps all others."""
    of_these, of_others = (_KEEP, _DROP) if blocked.others else (_DROP, _KEEP)
    if len(blocked.sources) > _FILTERED_MAX:
        return [_DROP]
    addresses = [ipaddress.ip_address(source) for source in sorted(blocked.sources)]
    program = [_instruction(_LOAD_BYTE, _NETWORK), _instruction(_SHIFT_RIGHT, 4)]
    of_6 = [int(one) for one in addresses if one.version == _IPV6]
    of_4 = [int(one) for one in addresses if one.version != _IPV6]
    # IPv6 jumps over the IPv4 part: one load, two instructions for each address, and one for all other addresses.
    program.append(_instruction(_JUMP_IF_EQUAL, _IPV6, 2 + 2 * len(of_4), 0))
    program.append(_instruction(_LOAD_WORD, _NETWORK + 12))
    for address in of_4:
        program += [_instruction(_JUMP_IF_EQUAL, address, 0, 1), of_these]
    program.append(of_others)
    for address in of_6:
        high, low = address >> 96, address >> 64 & 0xFFFFFFFF
        program += [_instruction(_LOAD_WORD, _NETWORK + 8), _instruction(_JUMP_IF_EQUAL, high, 0, 3)]
        program += [_instruction(_LOAD_WORD, _NETWORK + 12), _instruction(_JUMP_IF_EQUAL, low, 0, 1), of_these]
    return [*program, of_others]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


_DROP, _KEEP = _instruction(_RETURN, 0), _instruction(_RETURN, 0xFFFFFFFF)


def _listen(endpoint: str) -> socket.socket:
    host, port = split_bind_endpoint(endpoint)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _SILENT_S)
    listener.setblocking(False)
    try:
        listener.bind(("" if host == "*" else _address_of(host), port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {endpoint}: {error.strerror}; choose another bind endpoint") from error
    return listener


def _address_of(host: str) -> str:
    """The IPv4 address of the interface with this name, if there is one; else the host as given."""
    if host not in {name for _, name in socket.if_nameindex()}:
        return host
    import fcntl  # noqa: PLC0415  clients, which import this module, also run where it does not exist

    request = struct.pack("256s", host.encode())  # struct ifreq: the name, then room for the address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[_ADDRESS])
