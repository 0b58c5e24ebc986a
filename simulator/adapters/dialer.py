"""The connections of a simulated core: it dials every peer, and dials again when a connection is lost.

Decides when a peer is dialled and which connection leads to it. Does not know what is sent over them.

Invariant: a session needs both directions; if one is lost, so is the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from chaplain.core import Arrived, Dial, Disconnected, HangUp
from chaplain.units import MILLISECOND_NS

REDIAL_NS = 300 * MILLISECOND_NS


class Dialer:
    def __init__(self, peers: Iterable[int], endpoint_of: Callable[[int], str], rng: Random, now_ns: int) -> None:
        self.to: dict[int, int] = {}
        """Connected dials, by peer."""
        self._endpoint_of = endpoint_of
        self._rng = rng
        self._dials: dict[int, int] = {}
        """Peer by dial; the dial is connected if the peer is in `to`."""
        self._comers: dict[bytes, int] = {}
        self._next_dial = 0
        self._redial_ns = dict.fromkeys(peers, now_ns)

    def due(self) -> Iterable[int]:
        """When peers are to be dialled."""
        return self._redial_ns.values()

    def dial(self, now_ns: int, effects: list[Any]) -> None:
        """Dial the peers that are due."""
        for peer in [peer for peer, when in self._redial_ns.items() if when <= now_ns]:
            del self._redial_ns[peer]
            self._next_dial += 1
            self._dials[self._next_dial] = peer
            effects.append(Dial(self._next_dial, self._endpoint_of(peer), b"", b""))

    def connected(self, dial: int) -> int:
        """The peer that this dial leads to."""
        peer = self._dials[dial]
        self.to[peer] = dial
        return peer

    def arrived(self, event: Arrived) -> int:
        """The sender of the frame, from its first byte."""
        number = event.frame[0]
        if isinstance(event.channel, bytes):
            self._comers[event.channel] = number
        return number

    def lost(self, now_ns: int, event: Disconnected, effects: list[Any]) -> int | None:
        """The peer whose session ended; None if it had ended before."""
        if isinstance(event.channel, bytes):
            peer = self._comers.pop(event.channel, 0)
            dial = self.to.pop(peer, None)
            if dial is None:
                return None
            effects.append(HangUp(dial))
            del self._dials[dial]
        else:
            peer = self._dials.pop(event.channel)
            self.to.pop(peer, None)
        self._redial_ns[peer] = now_ns + self._rng.randrange(REDIAL_NS)
        return peer
