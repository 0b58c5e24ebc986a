"""A UDP socket that everybody on an interface hears: sends `Cast`, gives `Heard`.

Several nodes of one machine may share the port. The datagrams are hostile until the mesh has checked their MAC; here
they are only bounded: longer ones than any beacon are dropped, and so is what comes faster than it is read.
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
        """Send to and listen at a broadcast address, such as 127.255.255.255; on one interface if it is named."""
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
            # Bound to the broadcast address itself, only what was sent to it arrives.
            self._socket.bind(self._target)
        except OSError as error:
            self._socket.close()
            message = (
                f"cannot listen for beacons at {address}:{port}: {error.strerror}; change [beacon] or switch it off"
            )
            raise ConfigError(message) from error
        self.fd = self._socket.fileno()

    def cast(self, datagram: bytes) -> None:
        """Best effort: a network that is down is no reason to stop."""
        try:
            self._socket.sendto(datagram, self._target)
            self.counts["beacon_cast"] += 1
        except OSError:
            self.counts["beacon_cast_failed"] += 1

    def heard(self) -> list[Heard]:
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
