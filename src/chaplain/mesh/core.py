"""The mesh core: turns link sessions into peers, pools, liveness and numbered commands (mesh.txt).

It decides which peers are present and which pools they are in, numbers outgoing commands, reports every gap once, and
removes silent peers. It does not know keys, sockets and queues, which belong to the link. It does not interpret
content, which belongs to the layers above.

Invariants:
- every command to a peer carries the next number of its session; each lost or dropped command is reported once on each
  side;
- the mesh delivers the content of a BROADCAST only while this node is in its pool, and in the order in which it was
  sent;
- `Entered` is the first report about a peer, and `Exited` the last one. There is one exception: for a peer that was
  removed as silent, `Gapped` (outgoing) follows when the link has counted the commands;
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
from chaplain.mesh.outbound import MeshOutbound
from chaplain.mesh.pools import OwnPools, PoolMembers, name_octets
from chaplain.mesh.session import MeshSession
from chaplain.mesh.sessions import PeerView, SessionTable
from chaplain.mesh.settings import MeshSettings
from chaplain.wire.command import JOIN, LEAVE


class MeshCore:
    def __init__(
        self, settings: MeshSettings, rng: random.Random, own: Peer, beacon_keys: BeaconKeys | None = None
    ) -> None:
        """Without `beacon_keys` the mesh neither sends nor processes beacons and learns its neighbours from `Meet`."""
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._own = own
        self._pools = OwnPools()
        self._members = PoolMembers(settings.pools_max)
        self._sessions = SessionTable(settings)
        self._liveness = Liveness(settings)
        self._outbound = MeshOutbound(settings, own.identifier, self._pools, self._liveness, self.counts)
        self._inbound = MeshInbound(settings, self._pools, self._members, self._outbound, self.counts)
        self._wanted: dict[str, None] = {}
        """Endpoints for which the layers above requested a session."""
        self._expelled: frozenset[bytes] = frozenset()
        self._discovery: BeaconDiscovery | None = None
        if beacon_keys is not None:
            self._discovery = BeaconDiscovery(
                settings, rng, own, keys=beacon_keys, counts=self.counts, is_known=self._is_known
            )

    # Read-only views for the node.

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools that this node is in."""
        return self._pools.names

    def peers(self) -> dict[int, Peer]:
        """The nodes that are present, by identifier."""
        return {session.peer.identifier: session.peer for session in self._sessions.nodes()}

    def members(self, pool: str) -> tuple[Peer, ...]:
        """The peers in a pool, without this node."""
        return tuple(session.peer for session in self._members.of(pool))

    def known_pools(self) -> tuple[str, ...]:
        """The pools that at least one peer is in."""
        return self._members.names()

    def peer_views(self) -> tuple[PeerView, ...]:
        return self._sessions.views()

    def introduction(self) -> Introduce:
        """Our part of the greeting, for the link before its first greeting. Later changes are sent as effects."""
        return Introduce(self._pools.names, self._pools.status, self._settings.headers)

    def deadline(self) -> int | None:
        due = self._liveness.deadline()
        return due if self._discovery is None else soonest((due, self._discovery.deadline()))

    def step(self, now_ns: int, event: MeshInput, /) -> list[MeshEffect]:
        match event:
            case Said():
                return self._on_said(now_ns, event)
            case Shout():
                return self._outbound.shout(now_ns, self._members.of(event.pool), event)
            case Whisper():
                session = self._sessions.session(event.instance)
                if session is None:
                    self.counts["whispers_to_unknown"] += 1
                    return [Report("whisper to nobody", event.instance.hex(), {"size": len(event.content)})]
                return self._outbound.whisper(now_ns, session, event)
            case Woken():
                return self._on_woken(now_ns)
            case Met():
                return self._on_met(now_ns, event)
            case Parted():
                return self._on_parted(event)
            case Missed():
                return self._on_missed(now_ns, event)
            case CommandDropped():
                return self._on_dropped(now_ns, event)
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
                return [*self._discovery.on_beacon(now_ns, event)] if self._discovery is not None else []
            case Expel():
                return self._expel(event)
            case Stopping():
                return self._on_stopping(now_ns)
            case _:
                assert_never(event)

    # Sessions.

    def _on_met(self, now_ns: int, met: Met) -> list[MeshEffect]:
        session = self._sessions.session(met.peer.instance)
        if session is not None and _is_same(session.peer, met.peer):
            return self._on_met_again(now_ns, session, met)
        effects: list[MeshEffect] = []
        if session is not None:
            effects += self._exit(session, "replaced")
        if refusal := self._refusal(met.peer):
            self.counts["greetings_refused"] += 1
            return [*effects, Report(refusal, f"{met.peer.identifier:08x}")]
        effects += self._replace(met.peer)
        return [*effects, *self._enter(now_ns, met)]

    def _refusal(self, peer: Peer) -> str:
        ours = not peer.client and peer.identifier == self._own.identifier
        return "identifier is ours" if ours else self._sessions.refusal(peer)

    def _on_met_again(self, now_ns: int, session: MeshSession, met: Met) -> list[MeshEffect]:
        """The same process completed a new handshake. Its greeting replaces what we knew, and numbering restarts."""
        session.peer, session.headers = met.peer, met.hello.headers
        session.numbering.restart(met.hello.sequence)
        session.pinged_ns = None
        self._liveness.received(now_ns, session)
        return self._apply_greeting(now_ns, session, met)

    def _replace(self, peer: Peer) -> list[MeshEffect]:
        older = self._sessions.node(peer.identifier) if not peer.client else None
        if older is None:
            return []
        effects = self._exit(older, "replaced")
        endpoint = older.peer.endpoint
        if endpoint != peer.endpoint and endpoint not in self._wanted:
            effects.append(Forget(endpoint))
        return effects

    def _enter(self, now_ns: int, met: Met) -> list[MeshEffect]:
        session = MeshSession(met.peer, met.hello)
        session.may_join_pools = session.is_node and met.peer.key not in self._expelled
        self._sessions.add(session)
        self._liveness.add(now_ns, session)
        self.counts["entered"] += 1
        return [Entered(met.peer, met.hello.headers), *self._apply_greeting(now_ns, session, met)]

    def _apply_greeting(self, now_ns: int, session: MeshSession, met: Met) -> list[MeshEffect]:
        if not session.may_join_pools:
            return []
        effects = self._inbound.set_pools(session, met.hello.pools, met.hello.status)
        # Our own greeting may have been sent before our last join. A pool list is certainly later than the join.
        if self._pools.changed:
            effects.append(self._outbound.pool_list(now_ns, session))
        return effects

    def _exit(self, session: MeshSession, reason: str) -> list[MeshEffect]:
        self._liveness.remove(session)
        self._members.remove_everywhere(session)
        self._sessions.remove(session)
        self.counts["exited"] += 1
        return [Exited(session.peer, reason)]

    def _on_parted(self, parted: Parted) -> list[MeshEffect]:
        effects: list[MeshEffect] = []
        if parted.unconfirmed:
            self.counts["gapped_outgoing"] += parted.unconfirmed
            effects.append(Gapped(parted.peer, parted.unconfirmed, outgoing=True))
        session = self._sessions.session(parted.peer.instance)
        if session is not None and session.peer.key == parted.peer.key:
            effects += self._exit(session, parted.reason)
        if self._discovery is not None:
            effects += self._discovery.on_parted(parted.peer.instance)
        return effects

    def _expel(self, expel: Expel) -> list[MeshEffect]:
        """A removed node keeps its session, so that it can learn of its removal, but leaves all pools."""
        self._expelled = expel.keys
        effects: list[MeshEffect] = []
        for session in self._sessions.nodes():
            if session.peer.key in expel.keys:
                effects += self._inbound.set_pools(session, (), session.status)
                session.may_join_pools = False
        return effects

    # Inbound commands.

    def _on_said(self, now_ns: int, said: Said) -> list[MeshEffect]:
        session = self._sessions.session(said.instance)
        if session is None:
            self.counts["frames_without_session"] += 1
            return []
        effects: list[MeshEffect] = []
        self._liveness.received(now_ns, session)
        for command in said.commands:
            self._inbound.receive(now_ns, session, command, effects)
        return effects

    def _on_missed(self, now_ns: int, missed: Missed) -> list[MeshEffect]:
        session = self._sessions.session(missed.instance)
        if session is None:
            return []
        session.numbering.on_missed(missed.count)
        return self._inbound.on_loss(session, missed.count)

    # Outbound commands.

    def _on_dropped(self, now_ns: int, dropped: CommandDropped) -> list[MeshEffect]:
        session = self._sessions.session(dropped.instance)
        if session is None:
            self.counts["dropped_after_parting"] += 1
            return [Report("dropped after parting", dropped.instance.hex(), {"size": len(dropped.command)})]
        return self._outbound.on_dropped(now_ns, session, dropped)

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
        return [self.introduction(), *self._outbound.announce_pool_change(now_ns, self._nodes_in_pools(), JOIN, pool)]

    def _leave(self, now_ns: int, pool: str) -> list[MeshEffect]:
        if pool not in self._pools:
            return []
        self._pools.leave(pool)
        return [self.introduction(), *self._outbound.announce_pool_change(now_ns, self._nodes_in_pools(), LEAVE, pool)]

    def _nodes_in_pools(self) -> list[MeshSession]:
        return [session for session in self._sessions.nodes() if session.may_join_pools]

    def _on_stopping(self, now_ns: int) -> list[MeshEffect]:
        effects: list[MeshEffect] = []
        for pool in self._pools.names:
            effects += self._leave(now_ns, pool)
        if self._discovery is not None:
            effects += self._discovery.on_stopping(now_ns)
        return effects

    # Endpoints to dial.

    def _meet(self, meet: Meet) -> list[MeshEffect]:
        if meet.endpoint == self._own.endpoint:
            return []
        if meet.endpoint not in self._wanted and len(self._wanted) >= self._settings.neighbours_max:
            return [Report("too many neighbours", detail={"endpoint": meet.endpoint})]
        self._wanted[meet.endpoint] = None
        return [meet]

    def _is_known(self, instance: bytes, endpoint: str) -> bool:
        """Whether a session with this instance or endpoint is up, or the layers above want the endpoint."""
        known = self._sessions.session(instance) is not None or self._sessions.has_endpoint(endpoint)
        return known or endpoint in self._wanted

    # Timers.

    def _on_woken(self, now_ns: int) -> list[MeshEffect]:
        effects: list[MeshEffect] = []
        for session in self._liveness.expired(now_ns):
            effects += self._give_up(session)
        for session in self._liveness.to_ping(now_ns):
            effects.append(self._outbound.ping(now_ns, session))
        for session in self._liveness.to_heartbeat(now_ns):
            effects.append(self._outbound.heartbeat(now_ns, session))
        if self._discovery is not None:
            effects += self._discovery.on_woken(now_ns)
        return effects

    def _give_up(self, session: MeshSession) -> list[MeshEffect]:
        """Remove a silent peer. A node may be dialled again.

        A client is dismissed, so that it learns that its session ended.
        """
        self.counts["given_up"] += 1
        effects = self._exit(session, "silent")
        if not session.is_node:
            return [*effects, Dismiss(session.peer.instance)]
        endpoint = session.peer.endpoint
        if self._discovery is not None:
            self._discovery.on_forgotten(session.peer.instance)
        effects.append(Forget(endpoint))
        if endpoint in self._wanted:
            effects.append(Meet(endpoint))
        return effects


def _is_same(one: Peer, other: Peer) -> bool:
    """Whether a second greeting is from the same peer. The key is compared as well, because anyone can copy an
    instance.
    """
    return (one.key, one.identifier, one.client) == (other.key, other.identifier, other.client)
