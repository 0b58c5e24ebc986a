"""The UDP broadcast socket for discovery beacons: sends `Cast` effects and returns received datagrams as `Heard`.

Several nodes on one machine can share the port. This module does not authenticate datagrams; the mesh checks their MAC.
It only bounds them: it drops datagrams longer than any beacon, and the kernel drops those that arrive faster than the
node reads them.
"""

from __future__ import annotations

import socket
from collections import Counter

from chaplain.core import Heard
from chaplain.errors import ConfigError
from chaplain.wire.limits import DATAGRAM_BYTES_MAX

DRAIN_DATAGRAMS_MAX = 64
_RECEIVE_BYTES = 256 * 1024


class BeaconSocket:
    def __init__(self, address: str, port: int, interface: str = "") -> None:
        """Send to and listen on a broadcast address, such as 127.255.255.255, and only on `interface` if it is
        given.
        """
        self.counts: Counter[str] = Counter()
        self._target = (address, port)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for option in (socket.SO_BROADCAST, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self._socket.setsockopt(socket.SOL_SOCKET, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        self._socket.setblocking(False)
        try:
            if interface:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            # A socket bound to the broadcast address itself receives only datagrams sent to that address.
            self._socket.bind(self._target)
        except OSError as error:
            self._socket.close()
            message = (
                f"cannot listen for beacons at {address}:{port}: {error.strerror}; change [beacon] or switch it off"
            )
            raise ConfigError(message) from error
        self.fd = self._socket.fileno()

    def broadcast(self, datagram: bytes) -> None:
        """Send a datagram, best effort: the node keeps running while the network is down."""
        try:
            self._socket.sendto(datagram, self._target)
            self.counts["beacon_cast"] += 1
        except OSError:
            self.counts["beacon_cast_failed"] += 1

    def receive(self) -> list[Heard]:
        """Return the datagrams that wait in the socket, at most `DRAIN_DATAGRAMS_MAX`."""
        heard: list[Heard] = []
        for _ in range(DRAIN_DATAGRAMS_MAX):
            try:
                datagram, (host, port) = self._socket.recvfrom(DATAGRAM_BYTES_MAX + 1)
            except BlockingIOError:
                break
            except OSError:
                self.counts["beacon_receive_failed"] += 1
                break
            if len(datagram) > DATAGRAM_BYTES_MAX:
                self.counts["beacon_too_long"] += 1
            else:
                heard.append(Heard(f"{host}:{port}", datagram))
        self.counts["beacon_heard"] += len(heard)
        return heard

    def close(self) -> None:
        self._socket.close()
