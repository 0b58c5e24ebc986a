"""Checkers of gossip: they do not trust a core's own state, and compare what different nodes saw."""

from __future__ import annotations

from collections.abc import Sequence

from chaplain.core import Send, Stopping
from chaplain.gossip.events import (
    AskQuery,
    EventId,
    EventSeen,
    Fire,
    FiredEvent,
    LeaveCluster,
    MemberChanged,
    MemberState,
    QueryDecided,
)
from chaplain.gossip.settings import GossipSettings
from chaplain.units import SECOND_NS
from simulator.adapters.gossip_node import Gossiper, Lie, MessageReceived
from simulator.checkers.base import Watcher
from simulator.world.machine import Host


def _core(host: Host) -> Gossiper:
    assert isinstance(host.core, Gossiper)
    return host.core


class EventWatch(Watcher):
    """A delivered event was fired by the node that it names, with this content, and is delivered once per process."""

    name = "events"

    def __init__(self) -> None:
        self._fired: dict[EventId, FiredEvent] = {}
        self._seen: dict[tuple[str, int, EventId], None] = {}

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        seen = [effect.event for effect in effects if isinstance(effect, EventSeen)]
        if isinstance(event, Fire):
            self._fired.update((one.id, one) for one in seen if one.id.origin == _core(host).peer.identifier)
        for one in seen:
            if self._fired.get(one.id) != one:
                self.complain(f"{host.name} saw {one}, which its origin never fired")
            if (host.name, host.process, one.id) in self._seen:
                self.complain(f"{host.name} saw {one.id} twice")
            self._seen[host.name, host.process, one.id] = None


class ListWatch(Watcher):
    """Incarnations come from their owners, graceful leaves from the nodes that left, and no recently heard node is
    lost.
    """

    name = "members"

    def __init__(self, settings: GossipSettings) -> None:
        self._settings = settings
        self._reached: dict[int, int] = {}
        """The highest incarnation that each node has had."""
        self._left: dict[int, int] = {}
        """The incarnation at which a node last left gracefully."""
        self._spoke_ns: dict[tuple[str, int, int], int] = {}
        self._shown: dict[tuple[str, int, int], int] = {}
        self._lost: dict[tuple[int, int], None] = {}
        """Members, with incarnations, that some node has lost."""
        self._lied = False

    def process_started(self, time_ns: int, host: Host, /) -> None:
        identifier, incarnation = self._who(host)
        self._reached[identifier] = max(self._reached.get(identifier, 0), incarnation)

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        own = self._own(host)
        self._lied = self._lied or isinstance(event, Lie)
        if isinstance(event, Stopping | LeaveCluster):
            self._left[own] = _core(host).gossip.incarnation
        for effect in effects:
            if isinstance(effect, MessageReceived):
                self._spoke_ns[host.name, host.process, effect.identifier] = time_ns
            elif isinstance(effect, MemberChanged):
                self._changed(time_ns, host, effect)

    def _who(self, host: Host) -> tuple[int, int]:
        return _core(host).peer.identifier, _core(host).gossip.incarnation

    def _own(self, host: Host) -> int:
        """A node may only go one above its own highest incarnation, however high others claim it is."""
        identifier, incarnation = self._who(host)
        if incarnation > self._reached[identifier] + 1:
            self.complain(f"{host.name} jumped from incarnation {self._reached[identifier]} to {incarnation}")
        self._reached[identifier] = max(self._reached[identifier], incarnation)
        return identifier

    def _changed(self, time_ns: int, host: Host, effect: MemberChanged) -> None:
        member = effect.member
        who = f"{host.name} of {member.identifier:08x}"
        if member.incarnation > self._reached.get(member.identifier, 0):
            self.complain(f"{who}: incarnation {member.incarnation}, which its owner never had")
        key = (host.name, host.process, member.identifier)
        if member.incarnation < self._shown.get(key, 0):
            self.complain(f"{who}: incarnation went back to {member.incarnation}")
        self._shown[key] = member.incarnation
        if member.state is not MemberState.LEFT:
            return
        if member.graceful:
            if self._left.get(member.identifier, -1) < member.incarnation:
                self.complain(f"{who}: a good-bye that was never said")
            return
        # The first to lose a member goes by its own clock, which waits for 2T; others may follow its word after T.
        first = not self._lied and (member.identifier, member.incarnation) not in self._lost
        self._lost[member.identifier, member.incarnation] = None
        if time_ns - self._spoke_ns.get(key, -(10**18)) < self._settings.silence_ns * (16 if first else 8) // 10:
            self.complain(f"{who}: lost although it spoke {time_ns - self._spoke_ns[key]} ns ago")


class QuestionWatch(Watcher):
    """A question ends once, and at least half of the members support a decision."""

    name = "questions"

    def __init__(self) -> None:
        self._open: dict[tuple[str, int, int], None] = {}

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        if isinstance(event, AskQuery):
            self._open[host.name, host.process, event.call] = None
        for effect in effects:
            if isinstance(effect, QueryDecided):
                self._decided(host, effect)

    def _decided(self, host: Host, effect: QueryDecided) -> None:
        if self._open.pop((host.name, host.process, effect.call), 0) == 0:
            self.complain(f"{host.name}: call {effect.call} ended twice, or was never asked")
        answer = effect.answer
        if answer.decided and 2 * answer.votes < answer.members:
            self.complain(f"{host.name}: decided with {answer.votes} of {answer.members}")
        if answer.decided != (sum(2 * votes >= answer.members for _, votes in answer.tally) == 1):
            self.complain(f"{host.name}: {answer} contradicts its own tally")


class BudgetWatch(Watcher):
    """The bytes sent stay within the budget."""

    name = "budget"

    def __init__(self, settings: GossipSettings) -> None:
        self._limit = settings.bytes_per_second_max
        self._said: dict[tuple[str, int], list[int]] = {}

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        if isinstance(event, Lie):
            return
        window = self._said.setdefault((host.name, host.process), [time_ns, 0])
        if time_ns - window[0] > 10 * SECOND_NS:
            window[:] = [time_ns, 0]
        window[1] += sum(
            len(effect.frame) for effect in effects if isinstance(effect, Send) and len(effect.frame) > 100
        )
        if window[1] > 14 * self._limit:
            self.complain(f"{host.name} said {window[1]} bytes in ten seconds")


class ViewWatch(Watcher):
    """After the heal, nodes consider each other present."""

    name = "views"

    def finish(self, healed: Sequence[Host], /) -> None:
        running = [host for host in healed if host.core is not None]
        for host in running:
            held = {member.identifier: member.state for member in _core(host).gossip.members()}
            for other in running:
                state = held.get(_core(other).peer.identifier)
                if state not in (MemberState.ALIVE, MemberState.SUSPECT):
                    self.complain(f"{host.name} holds {other.name} for {state}")
