"""Keeps strangers cheap: limits how many connections may be unproven at a time, fairly by address.

Every accepted connection costs up to `PIECE_BYTES_MAX` and some buffers until its handshake is over, and ZeroMQ
accepts whoever comes. The door owns the listening socket that ZeroMQ accepts from and is told of each accepted
connection. When too many are unproven, it has the kernel drop the attempts of those addresses that have most of them
(`strangers` says which), by a socket filter on the listener: connections that are up do not notice. An honest dialler's
kernel tries again by itself, after a second.

Connections that say nothing are not even accepted: the kernel hands over only those from which something came
(`TCP_DEFER_ACCEPT`), and whoever speaks ZeroMQ speaks at once.

The door also has connections looked at that were let in and never finish a message (`unfinished`).

It runs in a thread of its own because it must react within milliseconds while the node is busy.
It knows nothing of who is who: that is the link's to decide, through ZAP.
"""

from __future__ import annotations

import ctypes
import fcntl
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
from chaplain.link.zmq.strangers import Shut, Strangers

STRANGERS_MAX = 192
"""Unproven connections within one handshake interval. Times 64 KiB and buffers: below 16 MiB."""

HANDSHAKE_MS = 2000
"""After this ZeroMQ itself ends a connection that has not proven itself."""

_BACKLOG = 4096
"""Connections that the kernel holds because they have said nothing, or have not been accepted yet: 300 octets each."""
_SILENT_S = 30
"""How long the kernel holds a connection that says nothing."""
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27  # <asm-generic/socket.h>; the socket module has no names for them
_SIOCGIFADDR = 0x8915  # <linux/sockios.h>
_ADDRESS = slice(20, 24)  # of struct ifreq: behind the name, the family and the port
_LOAD_BYTE, _LOAD_WORD, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06  # <linux/bpf_common.h>
_NETWORK = 0xFFF00000  # SKF_NET_OFF of <linux/filter.h>: from here on, octets of the IP header
_IPV6 = 6
_FILTERED_MAX = 32
"""Addresses that a filter names; with more, everybody's attempts are dropped for a moment."""
_TICK_MS = 100
_TEND_NS = 5_000_000
"""How often it is looked at who has proven itself, however many come."""
_EVENT = struct.Struct("=Hi")


class AcceptLimiter:
    """A listening socket for a ROUTER, and the thread that watches who comes in."""

    def __init__(
        self,
        endpoint: str,
        counts: Counter[str],
        wake: Callable[[], None],
        strangers_max: int = STRANGERS_MAX,
        members: Iterable[str] = (),
    ) -> None:
        """`wake` has the thread that reads the ROUTER turn; `members` are addresses that places are reserved for."""
        self._counts = counts
        self.unfinished = StalledMessages(counts, wake)
        self._strangers = Strangers(strangers_max, frozenset(map(source_of, members)))
        self._shut = Shut()
        self._tend_ns = 0
        self._listener = _listen(endpoint)
        host, port = self._listener.getsockname()[:2]
        self.endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    def attach(self, router: zmq.Socket[bytes]) -> None:
        """Have the ROUTER accept from our listener, and watch it."""
        router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        router.setsockopt(zmq.USE_FD, os.dup(self._listener.fileno()))
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
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
            while monitor.poll(_TICK_MS if self._strangers or self._shut or self.unfinished else None):
                event, value = _EVENT.unpack_from(monitor.recv_multipart()[0])
                if event == zmq.EVENT_MONITOR_STOPPED:
                    monitor.close()
                    return
                now_ns = time.monotonic_ns()
                self._note(event, value, now_ns)
                if now_ns >= self._tend_ns:  # there may always be another event
                    self._tend(now_ns)
            self._tend(time.monotonic_ns())

    def _note(self, event: int, descriptor: int, now_ns: int) -> None:
        if event == zmq.EVENT_DISCONNECTED:
            self._strangers.left(descriptor)
        else:
            self._counts["link_accepted"] += 1
            source = self.unfinished.opened(descriptor)
            if source is not None:
                self._strangers.came(now_ns, descriptor, source_of(source))
                self._decide()

    def _tend(self, now_ns: int) -> None:
        self._tend_ns = now_ns + _TEND_NS
        self.unfinished.tend(now_ns)
        for descriptor in self.unfinished.proven():
            self._strangers.left(descriptor)
        self._strangers.expire(now_ns - HANDSHAKE_MS * 1_000_000)
        self._decide()

    def _decide(self) -> None:
        shut = self._strangers.shut()
        if shut != self._shut:
            self._counts["link_door_shut"] += not self._shut
            self._shut = shut
            self._filter(shut)

    def _filter(self, shut: Shut) -> None:
        if not shut:
            self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            return
        instructions = filter_of(shut)
        code = ctypes.create_string_buffer(b"".join(instructions))
        program = struct.pack("HL", len(instructions), ctypes.addressof(code))  # struct sock_fprog: length, pointer
        self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def source_of(address: str) -> str:
    """The source that an address counts for: itself, or its IPv6 /64, all of which one machine may use."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
    return str(found)


def filter_of(shut: Shut) -> list[bytes]:
    """A classic BPF program, struct sock_filter each, that drops packets of those who are shut out and keeps others."""
    of_these, of_others = (_KEEP, _DROP) if shut.others else (_DROP, _KEEP)
    if len(shut.sources) > _FILTERED_MAX:
        return [_DROP]
    addresses = [ipaddress.ip_address(source) for source in sorted(shut.sources)]
    program = [_instruction(_LOAD_BYTE, _NETWORK), _instruction(_SHIFT_RIGHT, 4)]
    of_6 = [int(one) for one in addresses if one.version == _IPV6]
    of_4 = [int(one) for one in addresses if one.version != _IPV6]
    # Version 6: behind the part for version 4, which is the load, two for each address, and one for all others.
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
    """The IPv4 address of the interface of this name, if there is one; else what was given."""
    if host not in {name for _, name in socket.if_nameindex()}:
        return host
    request = struct.pack("256s", host.encode())  # struct ifreq: the name, then room for the address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[_ADDRESS])
