"""The mesh: greetings become peers, pools, signs of life, and numbered commands (mesh.txt).

It decides who is here and who is in which pool, numbers what we say, tells every gap once, and gives silent peers up.
It refuses to know keys, sockets and queues (the link's), and what content means (the layers above).

Invariants:
- every command to a peer carries the next number of its session; what is lost or dropped is told, once on each side;
- content of a BROADCAST is given up only if we are in its pool at that moment, and in the order in which it was sent;
- a peer is told as `Entered` before, and as `Exited` after, everything else about it, except that `Gapped` for what we
  had sent to a peer given up as silent follows when the link has counted it;
- `Exited` implies `Left` for every pool the peer was in.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import assert_never

from chaplain.core import Heard, Report, Stopping, Woken, soonest
from chaplain.link.events import CommandDropped, Dismiss, Forget, Introduce, Meet, Met, Missed, Parted, Peer, Said
from chaplain.mesh.beacon import BeaconKeys
from chaplain.mesh.discovery import BeaconDiscovery
from chaplain.mesh.events import (
    Entered,
    Exited,
    Expel,
    Gapped,
    JoinPool,
    LeavePool,
    MeshEffect,
    MeshInput,
    Shout,
    Whisper,
)
from chaplain.mesh.inbound import MeshInbound
from chaplain.mesh.liveness import Liveness
from chaplain.mesh.outbound import JOIN, LEAVE, MeshOutbound
from chaplain.mesh.pools import OwnPools, PoolMembers, name_octets
from chaplain.mesh.session import MeshSession
from chaplain.mesh.sessions import PeerView, SessionTable
from chaplain.mesh.settings import MeshSettings


class MeshCore:
    def __init__(
        self, settings: MeshSettings, rng: random.Random, own: Peer, beacon_keys: BeaconKeys | None = None
    ) -> None:
        """Without `beacon_keys` no beacon is cast or heard; a list of neighbours to `Meet` suffices."""
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._own = own
        self._pools = OwnPools()
        self._members = PoolMembers(settings.pools_max)
        self._roster = SessionTable(settings)
        self._vigil = Liveness(settings)
        self._voice = MeshOutbound(settings, own.identifier, self._pools, self._vigil, self.counts)
        self._ear = MeshInbound(settings, self._pools, self._members, self._voice, self.counts)
        self._wanted: dict[str, None] = {}
        """Endpoints that the layers above want met."""
        self._expelled: frozenset[bytes] = frozenset()
        self._discovery: BeaconDiscovery | None = None
        if beacon_keys is not None:
            self._discovery = BeaconDiscovery(
                settings, rng, own, keys=beacon_keys, counts=self.counts, is_held=self._is_held
            )

    # What the node may look at.

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools we are in."""
        return self._pools.names

    def peers(self) -> dict[int, Peer]:
        """The nodes that are here, by identifier."""
        return {session.peer.identifier: session.peer for session in self._roster.nodes()}

    def members(self, pool: str) -> tuple[Peer, ...]:
        """The peers in a pool, without us."""
        return tuple(session.peer for session in self._members.of(pool))

    def known_pools(self) -> tuple[str, ...]:
        """The pools that any peer is in."""
        return self._members.names()

    def roster(self) -> tuple[PeerView, ...]:
        return self._roster.views()

    def introduction(self) -> Introduce:
        """For the link before the first greeting; later changes come as effects."""
        return Introduce(self._pools.names, self._pools.status, self._settings.headers)

    def deadline(self) -> int | None:
        due = self._vigil.deadline()
        return due if self._discovery is None else soonest((due, self._discovery.deadline()))

    def step(self, now_ns: int, event: MeshInput, /) -> list[MeshEffect]:
        match event:
            case Said():
                return self._said(now_ns, event)
            case Shout():
                return self._voice.shout(now_ns, self._members.of(event.pool), event)
            case Whisper():
                return self._whisper(now_ns, event)
            case Woken():
                return self._woken(now_ns)
            case Met():
                return self._met(now_ns, event)
            case Parted():
                return self._parted(event)
            case Missed():
                return self._missed(now_ns, event)
            case CommandDropped():
                return self._dropped(now_ns, event)
            case JoinPool():
                return self._join(now_ns, event.pool)
            case LeavePool():
                return self._leave(now_ns, event.pool)
            case Meet():
                return self._meet(event)
            case Forget():
                self._wanted.pop(event.endpoint, None)
                return [event]
            case Heard():
                return [*self._discovery.heard(now_ns, event)] if self._discovery is not None else []
            case Expel():
                return self._expel(event)
            case Stopping():
                return self._stopping(now_ns)
            case _:
                assert_never(event)

    # Sessions.

    def _met(self, now_ns: int, met: Met) -> list[MeshEffect]:
        session = self._roster.session(met.peer.instance)
        if session is not None and _is_same(session.peer, met.peer):
            return self._met_again(now_ns, session, met)
        effects: list[MeshEffect] = []
        if session is not None:
            effects += self._exit(session, "replaced")
        if objection := self._objection(met.peer):
            self.counts["greetings_refused"] += 1
            return [*effects, Report(objection, f"{met.peer.identifier:08x}")]
        effects += self._replace(met.peer)
        return [*effects, *self._enter(now_ns, met)]

    def _objection(self, peer: Peer) -> str:
        ours = not peer.client and peer.identifier == self._own.identifier
        return "identifier is ours" if ours else self._roster.objection(peer)

    def _met_again(self, now_ns: int, session: MeshSession, met: Met) -> list[MeshEffect]:
        """The same process greeted anew: its greeting says all there is to know, and numbers start again."""
        session.peer, session.headers = met.peer, met.hello.headers
        session.numbering.restart(met.hello.sequence)
        session.pinged_ns = None
        self._vigil.heard(now_ns, session)
        return self._greeted(now_ns, session, met)

    def _replace(self, peer: Peer) -> list[MeshEffect]:
        older = self._roster.node(peer.identifier) if not peer.client else None
        if older is None:
            return []
        effects = self._exit(older, "replaced")
        endpoint = older.peer.endpoint
        if endpoint != peer.endpoint and endpoint not in self._wanted:
            effects.append(Forget(endpoint))
        return effects

    def _enter(self, now_ns: int, met: Met) -> list[MeshEffect]:
        session = MeshSession(met.peer, met.hello)
        session.pooled = session.is_node and met.peer.key not in self._expelled
        self._roster.add(session)
        self._vigil.watch(now_ns, session)
        self.counts["entered"] += 1
        return [Entered(met.peer, met.hello.headers), *self._greeted(now_ns, session, met)]

    def _greeted(self, now_ns: int, session: MeshSession, met: Met) -> list[MeshEffect]:
        if not session.pooled:
            return []
        effects = self._ear.refresh(session, met.hello.pools, met.hello.status)
        # Our own greeting may have left before our last join: only the roll is sure to be later than it.
        if self._pools.changed:
            effects.append(self._voice.roll(now_ns, session))
        return effects

    def _exit(self, session: MeshSession, reason: str) -> list[MeshEffect]:
        self._vigil.release(session)
        self._members.remove_everywhere(session)
        self._roster.remove(session)
        self.counts["exited"] += 1
        return [Exited(session.peer, reason)]

    def _parted(self, parted: Parted) -> list[MeshEffect]:
        effects: list[MeshEffect] = []
        if parted.unconfirmed:
            self.counts["gapped_outgoing"] += parted.unconfirmed
            effects.append(Gapped(parted.peer, parted.unconfirmed, outgoing=True))
        session = self._roster.session(parted.peer.instance)
        if session is not None and session.peer.key == parted.peer.key:
            effects += self._exit(session, parted.reason)
        if self._discovery is not None:
            effects += self._discovery.parted(parted.peer.instance)
        return effects

    def _expel(self, expel: Expel) -> list[MeshEffect]:
        """Whoever was removed keeps its session, so that it can be told; but it is in no pool."""
        self._expelled = expel.keys
        effects: list[MeshEffect] = []
        for session in self._roster.nodes():
            if session.peer.key in expel.keys:
                effects += self._ear.refresh(session, (), session.status)
                session.pooled = False
        return effects

    # What we hear.

    def _said(self, now_ns: int, said: Said) -> list[MeshEffect]:
        session = self._roster.session(said.instance)
        if session is None:
            self.counts["said_by_nobody"] += 1
            return []
        effects: list[MeshEffect] = []
        self._vigil.heard(now_ns, session)
        for command in said.commands:
            self._ear.hear(now_ns, session, command, effects)
        return effects

    def _missed(self, now_ns: int, missed: Missed) -> list[MeshEffect]:
        session = self._roster.session(missed.instance)
        if session is None:
            return []
        session.numbering.missed(missed.count)
        return self._ear.lost(session, missed.count)

    # What we say.

    def _whisper(self, now_ns: int, whisper: Whisper) -> list[MeshEffect]:
        session = self._roster.session(whisper.instance)
        if session is None:
            self.counts["whispers_to_nobody"] += 1
            return [Report("whisper to nobody", whisper.instance.hex(), {"size": len(whisper.content)})]
        return self._voice.whisper(now_ns, session, whisper)

    def _dropped(self, now_ns: int, dropped: CommandDropped) -> list[MeshEffect]:
        session = self._roster.session(dropped.instance)
        if session is None:
            self.counts["dropped_after_parting"] += 1
            return [Report("dropped after parting", dropped.instance.hex(), {"size": len(dropped.command)})]
        return self._voice.dropped(now_ns, session, dropped)

    def _join(self, now_ns: int, pool: str) -> list[MeshEffect]:
        if pool in self._pools:
            return []
        try:
            name_octets(pool)
        except ValueError as error:
            return [Report("pool refused", detail={"reason": str(error)})]
        if len(self._pools) >= self._settings.pools_max:
            return [Report("pool refused", detail={"reason": "too many pools", "pools_max": self._settings.pools_max})]
        self._pools.join(pool)
        return [self.introduction(), *self._voice.tell(now_ns, self._pooled(), JOIN, pool)]

    def _leave(self, now_ns: int, pool: str) -> list[MeshEffect]:
        if pool not in self._pools:
            return []
        self._pools.leave(pool)
        return [self.introduction(), *self._voice.tell(now_ns, self._pooled(), LEAVE, pool)]

    def _pooled(self) -> list[MeshSession]:
        return [session for session in self._roster.nodes() if session.pooled]

    def _stopping(self, now_ns: int) -> list[MeshEffect]:
        effects: list[MeshEffect] = []
        for pool in self._pools.names:
            effects += self._leave(now_ns, pool)
        if self._discovery is not None:
            effects += self._discovery.stopping(now_ns)
        return effects

    # Whom to dial.

    def _meet(self, meet: Meet) -> list[MeshEffect]:
        if meet.endpoint == self._own.endpoint:
            return []
        if meet.endpoint not in self._wanted and len(self._wanted) >= self._settings.neighbours_max:
            return [Report("too many neighbours", detail={"endpoint": meet.endpoint})]
        self._wanted[meet.endpoint] = None
        return [meet]

    def _is_held(self, instance: bytes, endpoint: str) -> bool:
        known = self._roster.session(instance) is not None or self._roster.has_endpoint(endpoint)
        return known or endpoint in self._wanted

    # Time.

    def _woken(self, now_ns: int) -> list[MeshEffect]:
        effects: list[MeshEffect] = []
        for session in self._vigil.gone(now_ns):
            effects += self._give_up(session)
        for session in self._vigil.to_ping(now_ns):
            effects.append(self._voice.ping(now_ns, session))
        for session in self._vigil.to_beat(now_ns):
            effects.append(self._voice.beat(now_ns, session))
        if self._discovery is not None:
            effects += self._discovery.woken(now_ns)
        return effects

    def _give_up(self, session: MeshSession) -> list[MeshEffect]:
        """Treat the peer as dead. A node may be met anew; a client that is not has to learn that it has no session."""
        self.counts["given_up"] += 1
        effects = self._exit(session, "silent")
        if not session.is_node:
            return [*effects, Dismiss(session.peer.instance)]
        endpoint = session.peer.endpoint
        if self._discovery is not None:
            self._discovery.forgotten(session.peer.instance)
        effects.append(Forget(endpoint))
        if endpoint in self._wanted:
            effects.append(Meet(endpoint))
        return effects


def _is_same(one: Peer, other: Peer) -> bool:
    """Whether a second greeting is by the same peer; an instance is only random bits that anyone may repeat."""
    return (one.key, one.identifier, one.client) == (other.key, other.identifier, other.client)
