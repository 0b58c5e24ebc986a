"""Processes the commands of a peer one at a time: checks, counts, and turns each into effects.

It does not know which peers are present; the core finds the session. An authenticated peer may still send malformed
bytes.

Invariants:
- a command is processed only if its number is new; a gap is reported before the command that revealed it;
- clients are not in pools: their JOIN and LEAVE are reported, their BROADCAST is counted, and nothing changes. The same
  holds for nodes that were removed from the cluster, except that their JOIN and LEAVE are not reported;
- after a gap, or an unexpected status octet, the node asks the peer for its pool list until it arrives, at most once in
  `heartbeat_ns`. A lost JOIN would otherwise lose every later message to that pool.
"""

from __future__ import annotations

from collections import Counter

from chaplain.core import Report
from chaplain.errors import Malformed
from chaplain.mesh import control_messages
from chaplain.mesh.events import Answered, Gapped, Joined, Left, MeshEffect, Shouted, Whispered
from chaplain.mesh.outbound import MeshOutbound
from chaplain.mesh.pools import OwnPools, PoolMembers
from chaplain.mesh.session import MeshSession
from chaplain.mesh.settings import MeshSettings
from chaplain.wire.command import (
    ALIVE,
    BROADCAST,
    DECENACK,
    HEADER_BYTES,
    PING,
    STATUS_MODULUS,
    Hello,
    Join,
    Leave,
    broadcast_content_at,
    decode,
    read_header,
)


class MeshInbound:
    def __init__(
        self,
        settings: MeshSettings,
        pools: OwnPools,
        members: PoolMembers,
        outbound: MeshOutbound,
        counts: Counter[str],
    ) -> None:
        self._settings = settings
        self._pools = pools
        self._members = members
        self._outbound = outbound
        self._counts = counts

    def receive(self, now_ns: int, session: MeshSession, command: bytes, effects: list[MeshEffect]) -> None:
        """Process one command and append its effects."""
        try:
            octet, sequence = read_header(command)
        except Malformed as error:
            effects.append(self._report(session, "malformed command", str(error)))
            return
        gap = session.numbering.accept(sequence)
        if gap is None:
            effects.append(self._report(session, "sequence went back", f"{sequence} after {session.numbering.heard}"))
            return
        if gap:
            effects += self.on_loss(session, gap)
        if octet == ALIVE and not control_messages.is_control_message(content := command[HEADER_BYTES:]):
            effects.append(Whispered(session.peer, content))
        else:
            try:
                self._dispatch(now_ns, session, octet, command, effects)
            except Malformed as error:
                effects.append(self._report(session, "malformed command", str(error)))
        if session.pools_uncertain:
            effects += self._ask_pool_list(now_ns, session)

    def on_loss(self, session: MeshSession, count: int) -> list[MeshEffect]:
        """`count` commands of the peer were lost."""
        self._counts["gapped_incoming"] += count
        session.pools_uncertain = session.may_join_pools
        return [Gapped(session.peer, count, outgoing=False)]

    def set_pools(self, session: MeshSession, pools: tuple[str, ...], status: int) -> list[MeshEffect]:
        """Replace the peer's pools by the complete list that it sent."""
        effects: list[MeshEffect] = []
        listed = dict.fromkeys(pools)
        for pool in [each for each in session.pools if each not in listed]:
            effects += self._remove(session, pool)
        for pool in listed:
            effects += self._add(session, pool)
        session.status = status
        session.pools_uncertain = False
        return effects

    def _dispatch(
        self, now_ns: int, session: MeshSession, octet: int, command: bytes, effects: list[MeshEffect]
    ) -> None:
        if octet == ALIVE:
            effects += self._on_control_message(now_ns, session, command[HEADER_BYTES:])
        elif octet == BROADCAST:
            self._on_broadcast(session, command, effects)
        elif octet == PING:
            decode(command)
            effects.append(self._outbound.decenack(now_ns, session))
        elif octet == DECENACK:
            decode(command)
            effects += self._on_decenack(now_ns, session)
        else:
            effects += self._on_pool_change(session, command)

    def _on_broadcast(self, session: MeshSession, command: bytes, effects: list[MeshEffect]) -> None:
        content_at = broadcast_content_at(command)
        pool = self._pools.name_of(command[HEADER_BYTES:content_at])
        # The names of our own pools are known to be valid. Any other name is decoded, so that a malformed one is
        # reported.
        if pool is None or not session.may_join_pools:
            decode(command)
            self._counts["broadcasts_outside"] += 1
        else:
            effects.append(Shouted(session.peer, pool, command[content_at:]))

    def _on_control_message(self, now_ns: int, session: MeshSession, content: bytes) -> list[MeshEffect]:
        match control_messages.decode(content, session.peer.identifier):
            case control_messages.Heartbeat():
                return []
            case control_messages.AskPoolList():
                # A pool list can have 64 KiB, so a peer gets at most one in `heartbeat_ns`.
                due = session.may_join_pools and now_ns - session.pool_list_sent_ns >= self._settings.heartbeat_ns
                return [self._outbound.pool_list(now_ns, session)] if due else []
            case control_messages.PoolList(pools, status):
                return self.set_pools(session, pools, status) if session.may_join_pools else []

    def _on_decenack(self, now_ns: int, session: MeshSession) -> list[MeshEffect]:
        if session.pinged_ns is None:
            self._counts["answers_unrequested"] += 1
            return []
        round_trip_ns, session.pinged_ns = now_ns - session.pinged_ns, None
        return [Answered(session.peer, round_trip_ns)]

    def _on_pool_change(self, session: MeshSession, command: bytes) -> list[MeshEffect]:
        match decode(command):
            case Join(_, pool, status) if session.may_join_pools:
                return [*self._check_status(session, status), *self._add(session, pool)]
            case Leave(_, pool, status) if session.may_join_pools:
                return [*self._check_status(session, status), *self._remove(session, pool)]
            case Join() | Leave() if session.is_node:
                return []
            case Hello():
                return [self._report(session, "unexpected command", "HELLO within a session")]
            case _:
                return [self._report(session, "unexpected command", "clients join no pools")]

    def _check_status(self, session: MeshSession, status: int) -> list[MeshEffect]:
        """Store the status octet. It must be one more than the last one; otherwise a JOIN or LEAVE was lost."""
        expected, session.status = (session.status + 1) % STATUS_MODULUS, status
        if status == expected or session.pools_uncertain:
            return []
        session.pools_uncertain = True
        return [self._report(session, "status out of step", f"{status} instead of {expected}")]

    def _add(self, session: MeshSession, pool: str) -> list[MeshEffect]:
        if pool in session.pools:
            return []
        if not self._members.add(session, pool):
            return [self._report(session, "too many pools", pool)]
        return [Joined(session.peer, pool)]

    def _remove(self, session: MeshSession, pool: str) -> list[MeshEffect]:
        if pool not in session.pools:
            return []
        self._members.remove(session, pool)
        return [Left(session.peer, pool)]

    def _ask_pool_list(self, now_ns: int, session: MeshSession) -> list[MeshEffect]:
        due = now_ns - session.pool_list_asked_ns >= self._settings.heartbeat_ns
        return [self._outbound.ask_pool_list(now_ns, session)] if due else []

    def _report(self, session: MeshSession, event: str, reason: str) -> Report:
        self._counts[event.replace(" ", "_")] += 1
        return Report(event, session.name, {"reason": reason})
