"""Connections and datagrams, as the runtime's sockets present them to a node.

A dial becomes a knock (a connection request) at the other host. Once admitted, it is a connection with two ends. Each
end has its own channel: the number of the dial, or the dialler's routing id. A later connection with the same routing
id takes the name over, as with ROUTER_HANDOVER. Frames on a connection arrive in order or not at all.

An end learns by `Disconnected` that a connection is gone: soon if the network lets frames pass, after a time-out if it
does not. With half-open faults it may learn this only when it sends something and the other host answers with a reset.

Bounds: `WINDOW_BYTES` in flight per direction; further frames wait at the sender, which is notified by `Flushed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaplain.core import (
    Admit,
    Arrived,
    Cast,
    Channel,
    Connected,
    Dial,
    Disconnected,
    Flushed,
    HangUp,
    Heard,
    Knocked,
    Refuse,
    Send,
)
from chaplain.units import SECOND_NS
from simulator.world.connection import End, join
from simulator.world.machine import Host
from simulator.world.network_conditions import NetworkConditions

if TYPE_CHECKING:
    from simulator.faults.replay_attacker import Captures
    from simulator.world.world import World

WINDOW_BYTES = 64 * 1024
_FLUSH_NS = 5_000
_DIAL_TIMEOUT_NS = 5 * SECOND_NS
"""The real sockets give up an unanswered dial after this time."""


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self.conditions = NetworkConditions(world.rng("network"))
        self.captures: Captures | None = None
        self._endpoints: dict[str, Host] = {}
        self._nowhere = Host("nowhere", "", world.rng("nowhere"))
        """The target of endpoints that no host has bound."""
        self._ends: dict[tuple[str, Channel], End] = {}
        self._knocks: dict[bytes, End] = {}
        """Unanswered connection requests, by the dialler's end."""
        self._dials = 0

    def bind(self, host: Host) -> None:
        self._endpoints[host.endpoint] = host

    def ends(self) -> list[End]:
        """All open ends, in the order of their creation."""
        return list(self._ends.values())

    # Dialling.

    def dial(self, host: Host, effect: Dial) -> None:
        assert host.core is not None
        end = End(host, effect.dial)
        end.open = True
        self._ends[host.name, effect.dial] = end
        target = self._endpoints.get(effect.endpoint, self._nowhere)
        join(end, End(target, host.core.routing_id))
        if target is self._nowhere or not self._reaches(host, target) or not self._reaches(target, host):
            self._world.after(min(self.conditions.timeout(), _DIAL_TIMEOUT_NS), self.lose, end, "timed out")
        elif not target.up:
            self._world.after(self.conditions.delay(), self.lose, end, "refused")
        else:
            self._dials += 1
            request = b"%s/%d" % (host.name.encode(), self._dials)
            self.knock(end, request, effect.name, effect.proof)

    def knock(self, end: End, request: bytes, name: bytes, proof: bytes) -> None:
        target = end.other.host
        self._knocks[request] = end
        if self.captures is not None:
            self.captures.knock(target, name, proof)
        knocked = Knocked(request, name, proof, end.host.name)
        self._world.deliver(self.conditions.delay(), target, target.process, knocked)
        self._world.after(_DIAL_TIMEOUT_NS, self._knock_expired, request)

    def admit(self, host: Host, effect: Admit) -> None:
        end = self._knocks.pop(effect.request, None)
        if end is None or not end.open:
            return
        target = end.other
        former = self._ends.pop((host.name, target.channel), None)
        if former is not None:
            former.open = False
            self._reset(former.other)
        target.open = True
        self._ends[host.name, target.channel] = target
        self._world.after(self.conditions.delay(), self._connected, end)

    def refuse(self, host: Host, effect: Refuse) -> None:
        end = self._knocks.pop(effect.request, None)
        if end is not None:
            self._world.after(self.conditions.delay(), self.lose, end, "refused: not admitted")

    def _knock_expired(self, request: bytes) -> None:
        end = self._knocks.pop(request, None)
        if end is not None:
            self.lose(end, "timed out")

    def _connected(self, end: End) -> None:
        if end.open and isinstance(end.channel, int):
            self._world.attend(end.host, end.process, self._tell_connected, end)

    def _tell_connected(self, end: End) -> None:
        if end.open:
            self._world.tell(end.host, Connected(end.channel))  # type: ignore[arg-type]

    # Sending.

    def send(self, host: Host, effect: Send) -> None:
        end = self._ends.get((host.name, effect.channel))
        if end is None:
            return
        if isinstance(end.channel, bytes) and not end.other.open:
            self._world.after(0, self.lose, end, "unreachable")
            return
        end.queue.append(effect.frame)
        self._flush(end)

    def _flush(self, end: End) -> None:
        """Move frames from the host's queue to the operating system, as far as the window allows."""
        while end.queue and (end.under_way == 0 or end.under_way + len(end.queue[0]) <= WINDOW_BYTES):
            frame = end.queue.popleft()
            end.under_way += len(frame)
            end.wire.append(frame)
            if end.host.wants_flushed:
                self._world.deliver(_FLUSH_NS, end.host, end.process, Flushed(end.channel, len(frame)))
        if end.wire:
            self.transmit(end)

    def transmit(self, end: End) -> None:
        """Send all frames that the network lets pass now."""
        conditions, world, receiver = self.conditions, self._world, end.other
        while end.wire and conditions.passes(end.host.name, receiver.host.name):
            free_ns = conditions.clogged_until(end.host.name, receiver.host.name, world.now_ns)
            if conditions.breaks():
                world.counts["break"] += 1
                self.snap(end)
                return
            frame = end.wire.popleft()
            if self.captures is not None:
                self.captures.frame(end, frame)
            arrival_ns = free_ns + conditions.delay()
            if conditions.lost():
                world.counts["lost frame" if conditions.profile.raw else "late frame"] += 1
                if conditions.profile.raw:
                    end.under_way -= len(frame)
                    continue
                # Only its own retransmission delays it: frames lost together are resent together.
                arrival_ns += conditions.retransmission()
            end.scheduled_ns = max(end.scheduled_ns, arrival_ns)
            world.at(end.scheduled_ns, self._arrive, end, frame, len(frame))
            if conditions.profile.raw and conditions.duplicated():
                world.counts["duplicate"] += 1
                world.at(end.scheduled_ns + conditions.delay(), self._arrive, end, frame, 0)

    def _arrive(self, end: End, frame: bytes, size: int) -> None:
        """A frame reaches the other machine, whose process may take it."""
        receiver = end.other
        if receiver.open and receiver.host.process == receiver.process and receiver.host.up:
            self._world.attend(receiver.host, receiver.process, self._take, end, frame, size)
        elif not end.probing:
            end.probing = True
            self._probe(end)

    def _probe(self, end: End) -> None:
        """The frame was not taken, so TCP resends it until the other machine is up and answers with a reset."""
        if not end.open:
            return
        if self._reaches(end.other.host, end.host) and end.other.host.up:
            self._world.after(self.conditions.delay(), self.lose, end, "reset")
        else:
            self._world.after(SECOND_NS, self._probe, end)

    def _take(self, end: End, frame: bytes, size: int) -> None:
        if not end.other.open:
            return
        end.under_way -= size
        self._world.tell(end.other.host, Arrived(end.other.channel, frame))
        if end.open:
            self._flush(end)

    def inject(self, end: End, frame: bytes) -> None:
        """An attacker on the path inserts a frame into this direction."""
        end.scheduled_ns = max(end.scheduled_ns, self._world.now_ns + self.conditions.delay())
        self._world.at(end.scheduled_ns, self._arrive, end, frame, 0)

    # Closing.

    def hang_up(self, host: Host, effect: HangUp) -> None:
        end = self._ends.get((host.name, effect.channel))
        if end is None:
            return
        end.queue.clear()
        if isinstance(end.channel, int) or self.conditions.profile.route_news:
            self._close(end)
            self._part(end.other, end.scheduled_ns)

    def snap(self, end: End) -> None:
        """The connection breaks: both ends lose it, each in its own time."""
        self._part(end, 0)
        self._part(end.other, 0)

    def lose(self, end: End, reason: str) -> None:
        """Report the connection as lost to this end, once its process runs."""
        self._world.attend(end.host, end.process, self._tell_lost, end, reason)

    def _tell_lost(self, end: End, reason: str) -> None:
        if not end.open:
            return
        self._close(end)
        self._world.tell(end.host, Disconnected(end.channel, reason))
        self._part(end.other, 0)

    def _part(self, end: End, not_before_ns: int) -> None:
        """The other end is gone: let this end learn it."""
        if not end.open or (isinstance(end.channel, bytes) and not self.conditions.profile.route_news):
            return
        if self._reaches(end.other.host, end.host):
            if self.conditions.stays_half_open():
                self._world.counts["half open"] += 1
                return
            time_ns = max(not_before_ns, self._world.now_ns + self.conditions.delay())
            self._world.at(time_ns, self.lose, end, "closed")
        else:
            self._world.after(self.conditions.timeout(), self.lose, end, "timed out")

    def _reset(self, end: End) -> None:
        if end.open:
            self._world.after(self.conditions.delay(), self.lose, end, "reset")

    def _close(self, end: End) -> None:
        end.open = False
        if self._ends.get((end.host.name, end.channel)) is end:
            del self._ends[end.host.name, end.channel]

    def host_died(self, host: Host, process: int, silent: bool) -> None:
        """Close all ends of a host. The machine of a dead process reports it to peers; a dead machine does not."""
        for end in self.ends():
            if end.host is host and end.process == process:
                self._close(end)
                if silent:
                    self._world.after(self.conditions.timeout(), self.lose, end.other, "timed out")
                else:
                    self._part(end.other, end.scheduled_ns)
        for request, end in list(self._knocks.items()):
            if end.other.host is host:
                del self._knocks[request]
                self._world.after(self.conditions.delay(), self.lose, end, "closed")

    # Changed conditions, and datagrams.

    def conditions_changed(self) -> None:
        """Send what waited for a blocked direction; connections over a direction that is now blocked may time out."""
        for end in self.ends():
            if not self._reaches(end.host, end.other.host):
                if not self.conditions.stays_half_open():
                    self._world.after(self.conditions.timeout(), self._time_out, end)
            elif end.wire:
                self.transmit(end)

    def _time_out(self, end: End) -> None:
        if end.open and not self._reaches(end.host, end.other.host):
            self.lose(end, "timed out")

    def cast(self, host: Host, effect: Cast) -> None:
        """Deliver the datagram to every reachable host, including the sender, except where it is lost."""
        for other in self._endpoints.values():
            if other.up and (other is host or self._reaches(host, other)) and not self.conditions.lost():
                self._hear(host, other, effect.datagram)
                if self.conditions.duplicated():
                    self._hear(host, other, effect.datagram)

    def _hear(self, host: Host, other: Host, datagram: bytes) -> None:
        self._world.deliver(self.conditions.delay(), other, other.process, Heard(host.name, datagram))

    def _reaches(self, sender: Host, receiver: Host) -> bool:
        return self.conditions.passes(sender.name, receiver.name)
