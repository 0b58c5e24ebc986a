"""Connections and datagrams, as the runtime's sockets give them to a node.

A dial becomes a knock at the other host; admitted, it is a connection with two ends, each with a channel of its own:
the number it was dialled under, and the dialler's routing id. A later connection of the same routing id takes the
name over (as a ROUTER with hand-over does). What is said on a connection arrives in order or not at all.

A side learns that a connection is gone by `Disconnected`: soon if the way is open, after a time-out if it is not, and
in half-open weather perhaps only when it says something and is told there is nobody.

Bounds: `WINDOW_BYTES` under way per direction; the rest waits at the sender, which is told by `Flushed`.
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
from simulator.world.network_conditions import Weather

if TYPE_CHECKING:
    from simulator.faults.replay_attacker import Captures
    from simulator.world.world import World

WINDOW_BYTES = 64 * 1024
_FLUSH_NS = 5_000
_DIAL_TIMEOUT_NS = 5 * SECOND_NS
"""The real sockets give up a dial that nobody has answered for so long."""


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self.weather = Weather(world.rng("network"))
        self.captures: Captures | None = None
        self._endpoints: dict[str, Host] = {}
        self._nowhere = Host("nowhere", "", world.rng("nowhere"))
        """Where an endpoint leads that nobody has bound."""
        self._ends: dict[tuple[str, Channel], End] = {}
        self._knocks: dict[bytes, End] = {}
        """Requests not yet answered, by the end of the one who dialled."""
        self._dials = 0

    def bind(self, host: Host) -> None:
        self._endpoints[host.endpoint] = host

    def ends(self) -> list[End]:
        """Every side that is open, in the order in which they came to be."""
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
            self._world.after(min(self.weather.timeout(), _DIAL_TIMEOUT_NS), self.lose, end, "timed out")
        elif not target.up:
            self._world.after(self.weather.delay(), self.lose, end, "refused")
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
        self._world.deliver(self.weather.delay(), target, target.life, knocked)
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
        self._world.after(self.weather.delay(), self._connected, end)

    def refuse(self, host: Host, effect: Refuse) -> None:
        end = self._knocks.pop(effect.request, None)
        if end is not None:
            self._world.after(self.weather.delay(), self.lose, end, "refused: not admitted")

    def _knock_expired(self, request: bytes) -> None:
        end = self._knocks.pop(request, None)
        if end is not None:
            self.lose(end, "timed out")

    def _connected(self, end: End) -> None:
        if end.open and isinstance(end.channel, int):
            self._world.attend(end.host, end.life, self._tell_connected, end)

    def _tell_connected(self, end: End) -> None:
        if end.open:
            self._world.tell(end.host, Connected(end.channel))  # type: ignore[arg-type]

    # Talking.

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
        """Move frames from the host's queue to the operating system, as far as the window goes."""
        while end.queue and (end.under_way == 0 or end.under_way + len(end.queue[0]) <= WINDOW_BYTES):
            frame = end.queue.popleft()
            end.under_way += len(frame)
            end.wire.append(frame)
            if end.host.wants_flushed:
                self._world.deliver(_FLUSH_NS, end.host, end.life, Flushed(end.channel, len(frame)))
        if end.wire:
            self.transmit(end)

    def transmit(self, end: End) -> None:
        """Put on their way all frames that the weather lets pass now."""
        weather, world, receiver = self.weather, self._world, end.other
        while end.wire and weather.passes(end.host.name, receiver.host.name):
            free_ns = weather.clogged_until(end.host.name, receiver.host.name, world.now_ns)
            if weather.breaks():
                world.counts["break"] += 1
                self.snap(end)
                return
            frame = end.wire.popleft()
            if self.captures is not None:
                self.captures.frame(end, frame)
            arrival_ns = free_ns + weather.delay()
            if weather.lost():
                world.counts["lost frame" if weather.climate.raw else "late frame"] += 1
                if weather.climate.raw:
                    end.under_way -= len(frame)
                    continue
                # Late by its own resending only: what is lost together is sent again together.
                arrival_ns += weather.retransmission()
            end.scheduled_ns = max(end.scheduled_ns, arrival_ns)
            world.at(end.scheduled_ns, self._arrive, end, frame, len(frame))
            if weather.climate.raw and weather.doubled():
                world.counts["duplicate"] += 1
                world.at(end.scheduled_ns + weather.delay(), self._arrive, end, frame, 0)

    def _arrive(self, end: End, frame: bytes, size: int) -> None:
        """A frame reaches the other side's machine, where somebody may take it."""
        receiver = end.other
        if receiver.open and receiver.host.life == receiver.life and receiver.host.up:
            self._world.attend(receiver.host, receiver.life, self._take, end, frame, size)
        elif not end.probing:
            end.probing = True
            self._probe(end)

    def _probe(self, end: End) -> None:
        """Nobody took what was sent, so it is sent again until a machine that is up says that nobody will."""
        if not end.open:
            return
        if self._reaches(end.other.host, end.host) and end.other.host.up:
            self._world.after(self.weather.delay(), self.lose, end, "reset")
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
        """Somebody on the path puts a frame of his own into what this end says."""
        end.scheduled_ns = max(end.scheduled_ns, self._world.now_ns + self.weather.delay())
        self._world.at(end.scheduled_ns, self._arrive, end, frame, 0)

    # Parting.

    def hang_up(self, host: Host, effect: HangUp) -> None:
        end = self._ends.get((host.name, effect.channel))
        if end is None:
            return
        end.queue.clear()
        if isinstance(end.channel, int) or self.weather.climate.route_news:
            self._close(end)
            self._part(end.other, end.scheduled_ns)

    def snap(self, end: End) -> None:
        """The connection breaks in the middle: both sides lose it, each in its own time."""
        self._part(end, 0)
        self._part(end.other, 0)

    def lose(self, end: End, reason: str) -> None:
        """Let this side find its connection gone, once the process looks."""
        self._world.attend(end.host, end.life, self._tell_lost, end, reason)

    def _tell_lost(self, end: End, reason: str) -> None:
        if not end.open:
            return
        self._close(end)
        self._world.tell(end.host, Disconnected(end.channel, reason))
        self._part(end.other, 0)

    def _part(self, end: End, not_before_ns: int) -> None:
        """The other side of this end is gone."""
        if not end.open or (isinstance(end.channel, bytes) and not self.weather.climate.route_news):
            return
        if self._reaches(end.other.host, end.host):
            if self.weather.untold():
                self._world.counts["half open"] += 1
                return
            time_ns = max(not_before_ns, self._world.now_ns + self.weather.delay())
            self._world.at(time_ns, self.lose, end, "closed")
        else:
            self._world.after(self.weather.timeout(), self.lose, end, "timed out")

    def _reset(self, end: End) -> None:
        if end.open:
            self._world.after(self.weather.delay(), self.lose, end, "reset")

    def _close(self, end: End) -> None:
        end.open = False
        if self._ends.get((end.host.name, end.channel)) is end:
            del self._ends[end.host.name, end.channel]

    def host_died(self, host: Host, life: int, silent: bool) -> None:
        """All its ends are gone. The machine says so for a dead process; nobody says so for a dead machine."""
        for end in self.ends():
            if end.host is host and end.life == life:
                self._close(end)
                if silent:
                    self._world.after(self.weather.timeout(), self.lose, end.other, "timed out")
                else:
                    self._part(end.other, end.scheduled_ns)
        for request, end in list(self._knocks.items()):
            if end.other.host is host:
                del self._knocks[request]
                self._world.after(self.weather.delay(), self.lose, end, "closed")

    # Weather and datagrams.

    def weather_changed(self) -> None:
        """What waited for the way to open goes on; what a shut way cuts in two may time out on either side."""
        for end in self.ends():
            if not self._reaches(end.host, end.other.host):
                if not self.weather.untold():
                    self._world.after(self.weather.timeout(), self._time_out, end)
            elif end.wire:
                self.transmit(end)

    def _time_out(self, end: End) -> None:
        if end.open and not self._reaches(end.host, end.other.host):
            self.lose(end, "timed out")

    def cast(self, host: Host, effect: Cast) -> None:
        """Everybody hears it, the one who cast it too, except where it is lost."""
        for other in self._endpoints.values():
            if other.up and (other is host or self._reaches(host, other)) and not self.weather.lost():
                self._hear(host, other, effect.datagram)
                if self.weather.doubled():
                    self._hear(host, other, effect.datagram)

    def _hear(self, host: Host, other: Host, datagram: bytes) -> None:
        self._world.deliver(self.weather.delay(), other, other.life, Heard(host.name, datagram))

    def _reaches(self, sender: Host, receiver: Host) -> bool:
        return self.weather.passes(sender.name, receiver.name)
