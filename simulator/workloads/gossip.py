"""Gossip: members join through each other, fire events, ask questions, leave and come back; one may be malicious.

The liar has the cluster's key. It forges events and member records, replays messages of others, reports living members
as gone and asks after their health. Otherwise it is a member like any other.

In half of the seeds a member's seed endpoints are closed once it knows all others, as if they had found each other by
beacon. Then only members that it lost can lead it back to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from chaplain.gossip import codec, payloads
from chaplain.gossip import member_record as cards
from chaplain.gossip.codec import Accuse, Action, Body, Cards, MessageType
from chaplain.gossip.events import ALL, AskQuery, EventId, Fire, JoinThrough, LeaveCluster, MembersConfigured
from chaplain.gossip.member_record import INCARNATION_MAX
from chaplain.gossip.payloads import Health, UserEvent
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity
from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.adapters.gossip_node import Gossiper, Lie
from simulator.checkers.base import Checker
from simulator.checkers.gossip import BudgetWatch, EventWatch, ListWatch, QuestionWatch, ViewWatch
from simulator.faults.plan import CLOCK, NETWORK, Fault
from simulator.workloads import Workload
from simulator.world.world import World

LEAVE, LIE = "leave and come back", "lie"
SETTINGS = GossipSettings(silence_ns=2 * SECOND_NS, tick_ns=100 * MILLISECOND_NS, window=64)


class Gossip(Workload):
    kinds = (*NETWORK, "kill", "power cut", "pause", *CLOCK, LEAVE, LIE, LIE, LIE)

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.names = ("a", "b", "c", "d", "e")[: rng.choice((2, 3, 3, 4, 5, 5))]
        self._keys = {name: Identity.generate(rng) for name in self.names}
        self._liar = self.names[-1]
        self._lies = 0
        self._calls = 0
        self._closes = rng.random() < 0.5

    def make_node(self, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> Gossiper:
        through = tuple(self.endpoint(other) for other in self.names if other != name)
        return Gossiper(self._keys[name], self.endpoint(name), SETTINGS, rng, now_ns, through=through)

    def begin(self, world: World) -> None:
        if self._closes:
            for number in range(60):
                world.at(number * SECOND_NS // 2, self._close_doors, world)
        for number in range(60):
            world.at(number * SECOND_NS // 2 + self.rng.randrange(SECOND_NS // 2), self._ask_something, world)

    def checkers(self) -> list[Checker]:
        return [EventWatch(), ListWatch(SETTINGS), QuestionWatch(), BudgetWatch(SETTINGS), ViewWatch()]

    def inject_fault(self, world: World, fault: Fault) -> None:
        if fault.kind == LEAVE:
            host = world.hosts[fault.nodes[0]]
            world.tell(host, LeaveCluster())
            through = self.endpoint(fault.nodes[1])
            world.after(SECOND_NS + fault.amount, world.tell, host, JoinThrough(through))
        else:
            assert fault.kind == LIE
            for delay_ns in range(0, 3 * SECOND_NS, SECOND_NS // 4):
                world.after(delay_ns, self._lie, world)

    def _close_doors(self, world: World) -> None:
        closed = MembersConfigured({}, tuple(map(self.endpoint, self.names)))
        for host in world.hosts.values():
            if isinstance(host.core, Gossiper) and len(host.core.gossip.members()) == len(self.names):
                world.tell(host, closed)

    def _ask_something(self, world: World) -> None:
        host = world.hosts[self.rng.choice(self.names)]
        if self.rng.random() < 0.6:
            world.tell(host, Fire("news", self.rng.randbytes(8)))
        else:
            self._calls += 1
            question = self.rng.choice(("version", "members", "uptime", "unheard of"))
            world.tell(host, AskQuery(self._calls, question, self.rng.randrange(SECOND_NS, 4 * SECOND_NS)))

    def _lie(self, world: World) -> None:
        """Everything that a liar could send about one victim, in its own name or the victim's."""
        liar = self._keys[self._liar]
        victim = self._keys[self.rng.choice(self.names[:-1])]
        held = self._incarnation(world, victim)
        theirs = EventId(victim.identifier, held + self.rng.randrange(2), 1000 + self._lies)
        user = payloads.put_user(UserEvent("news", b"lie"))
        forged = codec.sign_message(liar, theirs, MessageType.USER, user, action=Action.NONE, target=ALL)
        card = cards.make(liar, self.endpoint(self._liar), INCARNATION_MAX - 1)
        grown = cards.MemberRecord(
            victim.identifier, victim.key, held + 5, card.version, self.endpoint(self._liar), card.signature
        )
        bodies: list[Body] = [
            codec.sign_leave(liar, self._next(liar), victim.identifier, held),
            codec.sign_leave(liar, theirs, victim.identifier, held),
            codec.LeaveMessage(0, theirs, victim.key, victim.identifier, held, bytes(64)),
            Cards((grown,), (codec.LeaveMessage(0, theirs, victim.key, victim.identifier, held, bytes(64)),)),
            codec.GossipMessage(
                0, theirs, victim.key, ALL, MessageType.USER, 0, user,
                forged.signed.replace(liar.key, victim.key), forged.signature,
            ),
            codec.sign_message(
                liar, self._next(liar), MessageType.HEALTH, payloads.put_health(Health(victim.identifier, held)),
                action=Action.STATUS, target=ALL,
            ),
            Accuse(held),
            Accuse(INCARNATION_MAX - 1),
        ]  # fmt: skip
        chosen = self.rng.sample(bodies, self.rng.randrange(1, len(bodies)))
        world.tell(world.hosts[self._liar], Lie(tuple(codec.encode(body) for body in chosen)))

    def _next(self, liar: Identity) -> EventId:
        """Ids of lies, far above those of the liar's own core."""
        self._lies += 1
        return EventId(liar.identifier, INCARNATION_MAX, self._lies)

    def _incarnation(self, world: World, victim: Identity) -> int:
        for host in world.hosts.values():
            if isinstance(host.core, Gossiper) and host.core.peer.identifier == victim.identifier:
                return host.core.gossip.incarnation
        return 1


WORKLOAD = Gossip
