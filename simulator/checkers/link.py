"""Checkers of handshakes and sessions, from outside the link.

| checker | what must hold |
|---|---|
| `door` | an admitted peer showed a proof made with the cluster key, and for the first time to this process |
| `greeting` | a greeting comes first on every connection; a session begins on an echo of our own nonce, used once |
| `strangers` | a session is with a member that runs or ran, under its own key and endpoint |
| `seal` | no counter is used twice under one session's key |
| `budget` | bytes queued on a channel stay within the budget, its reserve and a few greetings |
| `speech` | what is received was sent by that process to this one: unchanged, once, in order, with exact gap reports |
| `live` | after a heal, every two healed members hear each other |

They read greetings and frame headers, never a key or a core's own tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from chaplain.core import Admit, Arrived, Dial, Flushed, Knocked, Send
from chaplain.link.auth.hello import GREETING_CLIENT, GREETING_NODE, HelloClaims, open_envelope, open_hello
from chaplain.link.events import CommandDropped, Met, Missed, Parted, Said, Say
from chaplain.link.sessions.aead import HEADER
from chaplain.units import SECOND_NS
from simulator.checkers.base import Watcher
from simulator.world.machine import Host

_GREETINGS = (GREETING_NODE, GREETING_CLIENT)
_FRESH_NS = 10 * SECOND_NS


def _claim(frame: bytes) -> HelloClaims:
    return open_hello(open_envelope(frame).hello)[0]


class ProcessRegistry(Watcher):
    """Every process that ever ran, by its instance."""

    name = "strangers"

    def __init__(self, members: Mapping[str, bytes], endpoint: Callable[[str], str]) -> None:
        self.members = members
        self._endpoint = endpoint
        self.instances: dict[bytes, str] = {}

    def process_started(self, time_ns: int, host: Host, /) -> None:
        self.instances[host.instance] = host.name

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        for effect in effects:
            if isinstance(effect, Met):
                name = self.instances.get(effect.peer.instance, "nobody")
                if name not in self.members or host.name not in self.members:
                    self.complain(f"{host.name} met {name}")
                if (effect.peer.key, effect.peer.endpoint) != (self.members[name], self._endpoint(name)):
                    self.complain(f"{host.name} met {name} under another key or endpoint")


class DoorWatch(Watcher):
    name = "door"

    def __init__(self) -> None:
        self._made: set[tuple[bytes, bytes]] = set()
        self._waiting: dict[bytes, tuple[bytes, bytes]] = {}
        self._admitted: set[tuple[bytes, bytes, bytes]] = set()

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        if isinstance(event, Knocked):
            self._waiting[event.request] = (event.name, event.proof)
        for effect in effects:
            if isinstance(effect, Dial) and host.name != "otherkey":
                self._made.add((effect.name, effect.proof))
            elif isinstance(effect, Admit) and host.name != "otherkey":
                self._check(host, self._waiting.pop(effect.request))

    def _check(self, host: Host, shown: tuple[bytes, bytes]) -> None:
        if shown not in self._made:
            self.complain(f"{host.name} admitted a proof that no holder of the key made")
        if (host.instance, *shown) in self._admitted:
            self.complain(f"{host.name} admitted one proof twice")
        self._admitted.add((host.instance, *shown))


class GreetingWatch(Watcher):
    name = "greeting"

    def __init__(self) -> None:
        self._greeted: set[tuple[str, int, object]] = set()
        self._nonces: set[tuple[bytes, bytes]] = set()
        self._used: set[tuple[bytes, bytes]] = set()

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        # Record our own nonces first: a step may send a greeting after it has accepted one.
        for effect in effects:
            if isinstance(effect, Send):
                self._sent(host, effect)
        for effect in effects:
            if isinstance(effect, Met):
                self._met(host, event, effect)

    def _sent(self, host: Host, effect: Send) -> None:
        connection = (host.name, host.process, effect.channel)
        if effect.frame[0] in _GREETINGS:
            self._greeted.add(connection)
            self._nonces.add((host.instance, _claim(effect.frame).nonce))
        elif connection not in self._greeted:
            self.complain(f"{host.name} speaks on channel {effect.channel!r} before it has greeted")

    def _met(self, host: Host, event: object, effect: Met) -> None:
        if not isinstance(event, Arrived):
            self.complain(f"{host.name} met somebody without a greeting")
        claim = _claim(event.frame)
        if claim.instance != effect.peer.instance or claim.to != host.instance:
            self.complain(f"{host.name} met somebody by a greeting of or for another")
        if (host.instance, claim.echo) not in self._nonces:
            self.complain(f"{host.name} began a session without an echo of its nonce")
        if (host.instance, claim.echo) in self._used:
            self.complain(f"{host.name} began two sessions on one offer")
        self._used.add((host.instance, claim.echo))


class SealWatch(Watcher):
    name = "seal"

    def __init__(self) -> None:
        self._last: dict[tuple[str, int, object], int] = {}

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        begun = any(isinstance(effect, Met) for effect in effects)
        for effect in effects:
            if isinstance(effect, Send) and effect.frame[0] not in _GREETINGS:
                self._check(host, effect, begun)

    def _check(self, host: Host, effect: Send, begun: bool) -> None:
        """A step that begins a session sends in it at once, with new keys, on the session's channel."""
        key = (host.name, host.process, effect.channel)
        _, counter, _ = HEADER.unpack_from(effect.frame)
        if counter <= self._last.get(key, 0) and not (begun and counter == 1):
            self.complain(f"{host.name} seals with counter {counter} again")
        self._last[key] = counter


class BudgetWatch(Watcher):
    name = "budget"

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: dict[tuple[str, int, object], int] = {}

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        if isinstance(event, Flushed):
            self._add(host, event.channel, -event.size)
        for effect in effects:
            if isinstance(effect, Send) and self._add(host, effect.channel, len(effect.frame)) > self._bytes_max:
                self.complain(f"{host.name} has more than {self._bytes_max} octets waiting on {effect.channel!r}")

    def _add(self, host: Host, channel: object, size: int) -> int:
        key = (host.name, host.process, channel)
        self._waiting[key] = self._waiting.get(key, 0) + size
        return self._waiting[key]


class _Direction:
    """What one process sent to another, and how far the other has received it."""

    __slots__ = ("epoch", "heard_epoch", "heard_next", "missed", "open", "places", "said")

    def __init__(self) -> None:
        self.epoch = 0
        """Counts the sender's sessions with the receiver."""
        self.said = 0
        self.places: dict[bytes, tuple[int, int]] = {}
        """The position of each command: the sender's session, and the index in it."""
        self.heard_epoch = 0
        self.heard_next = 0
        self.missed = 0
        self.open = False
        """True if the receiver has a session."""


class SpeechWatch(Watcher):
    name = "speech"

    def __init__(self) -> None:
        self._directions: dict[tuple[bytes, bytes], _Direction] = {}

    def _way(self, speaker: bytes, listener: bytes) -> _Direction:
        return self._directions.setdefault((speaker, listener), _Direction())

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        us = host.instance
        for effect in effects:
            match effect:
                case Say():
                    self._say(self._way(us, effect.instance), effect.command)
                case CommandDropped():
                    self._take_back(self._way(us, effect.instance), effect.command)
                case Met():
                    self._begin(self._way(us, effect.peer.instance), self._way(effect.peer.instance, us))
                case Missed():
                    self._way(effect.instance, us).missed += effect.count
                case Said():
                    for command in effect.commands:
                        self._hear(host, self._way(effect.instance, us), command)
                case Parted():
                    self._part(host, effect, self._way(us, effect.peer.instance))
                    self._way(effect.peer.instance, us).open = False
                case _:
                    pass

    def _begin(self, out: _Direction, inward: _Direction) -> None:
        out.epoch += 1
        out.said = 0
        inward.open = True
        inward.missed = 0

    def _say(self, way: _Direction, command: bytes) -> None:
        assert command not in way.places
        way.places[command] = (way.epoch, way.said)
        way.said += 1

    def _take_back(self, way: _Direction, command: bytes) -> None:
        del way.places[command]
        way.said -= 1

    def _hear(self, host: Host, way: _Direction, command: bytes) -> None:
        if not way.open:
            self.complain(f"{host.name} heard somebody it has no session with")
        if command not in way.places:
            self.complain(f"{host.name} heard what was never said: {command[:40].hex()}")
        epoch, place = way.places[command]
        if epoch > way.heard_epoch:
            way.heard_epoch, way.heard_next = epoch, 0
        if epoch < way.heard_epoch or place < way.heard_next:
            self.complain(f"{host.name} heard a command twice or out of order")
        if place != way.heard_next + way.missed:
            self.complain(f"{host.name} missed {place - way.heard_next} commands and was told of {way.missed}")
        way.heard_next, way.missed = place + 1, 0

    def _part(self, host: Host, effect: Parted, way: _Direction) -> None:
        heard = way.heard_next if way.heard_epoch == way.epoch else 0
        if way.said - effect.unconfirmed > heard:
            self.complain(f"{host.name} believes {way.said - effect.unconfirmed} commands heard, and {heard} were")


class LiveWatch(Watcher):
    """At the end, every two healed members have a session and have heard each other lately."""

    name = "live"

    def __init__(self) -> None:
        self._heard: dict[tuple[bytes, bytes], int] = {}
        self._now_ns = 0

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        self._now_ns = time_ns
        for effect in effects:
            if isinstance(effect, Said):
                self._heard[host.instance, effect.instance] = time_ns
            elif isinstance(effect, Parted):
                self._heard.pop((host.instance, effect.peer.instance), None)

    def finish(self, healed: Sequence[Host], /) -> None:
        for host in healed:
            for other in healed:
                if other is host:
                    continue
                heard_ns = self._heard.get((host.instance, other.instance), -_FRESH_NS)
                if heard_ns < self._now_ns - _FRESH_NS:
                    self.complain(f"{host.name} does not hear {other.name}, mended 30 seconds ago")
