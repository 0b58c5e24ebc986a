"""What a peer says to us: one command at a time, checked, counted and turned into effects.

It refuses to know who is here; the core finds the session. Bytes may be malformed even from a peer that proved itself.

Invariants:
- a command is looked at only if its number is new; a gap is told before the command that revealed it;
- clients are not in pools: their JOIN and LEAVE are reported, their BROADCAST counted, and nothing changes; nor are
  nodes that were removed from the cluster, whose JOIN and LEAVE are not worth a report;
- after a gap, or a status octet that does not follow, the peer is asked for its roll until it has come (at most once
  each `heartbeat_ns`), for a lost JOIN would otherwise lose every shout to that pool.
"""

from __future__ import annotations

from collections import Counter

from chaplain.core import Report
from chaplain.errors import Malformed
from chaplain.mesh import control_messages
from chaplain.mesh.events import Answered, Gapped, Joined, Left, MeshEffect, Shouted, Whispered
from chaplain.mesh.outbound import ALIVE, BROADCAST, DECENACK, PING, MeshOutbound
from chaplain.mesh.pools import OwnPools, PoolMembers
from chaplain.mesh.session import MeshSession
from chaplain.mesh.settings import MeshSettings
from chaplain.wire.command import SIGNATURE, STATUS_MODULUS, Hello, Join, Leave, decode

_FIELDS_AT = 5


class MeshInbound:
    def __init__(
        self, settings: MeshSettings, pools: OwnPools, members: PoolMembers, voice: MeshOutbound, counts: Counter[str]
    ) -> None:
        self._settings = settings
        self._pools = pools
        self._members = members
        self._voice = voice
        self._counts = counts

    def hear(self, now_ns: int, session: MeshSession, command: bytes, effects: list[MeshEffect]) -> None:
        """Append what the command calls for."""
        if len(command) < _FIELDS_AT or command[:2] != SIGNATURE:
            effects.append(self._complain(session, "malformed command", "no signature and number"))
            return
        sequence = command[3] << 8 | command[4]
        gap = session.numbering.accept(sequence)
        if gap is None:
            effects.append(self._complain(session, "sequence went back", f"{sequence} after {session.numbering.heard}"))
            return
        if gap:
            effects += self.lost(session, gap)
        if command[2] == ALIVE and not control_messages.is_note(content := command[_FIELDS_AT:]):
            effects.append(Whispered(session.peer, content))
        else:
            try:
                self._obey(now_ns, session, command, effects)
            except Malformed as error:
                effects.append(self._complain(session, "malformed command", str(error)))
        if session.doubtful:
            effects += self._ask(now_ns, session)

    def lost(self, session: MeshSession, count: int) -> list[MeshEffect]:
        """So many commands of the peer never came."""
        self._counts["gapped_incoming"] += count
        session.doubtful = session.pooled
        return [Gapped(session.peer, count, outgoing=False)]

    def refresh(self, session: MeshSession, pools: tuple[str, ...], status: int) -> list[MeshEffect]:
        """The peer told all the pools it is in."""
        effects: list[MeshEffect] = []
        told = dict.fromkeys(pools)
        for pool in [each for each in session.pools if each not in told]:
            effects += self._remove(session, pool)
        for pool in told:
            effects += self._add(session, pool)
        session.status = status
        session.doubtful = False
        return effects

    def _obey(self, now_ns: int, session: MeshSession, command: bytes, effects: list[MeshEffect]) -> None:
        octet = command[2]
        if octet == ALIVE:
            effects += self._note(now_ns, session, command[_FIELDS_AT:])
        elif octet == BROADCAST:
            self._broadcast(session, command, effects)
        elif octet == PING:
            decode(command)
            effects.append(self._voice.answer(now_ns, session))
        elif octet == DECENACK:
            decode(command)
            effects += self._answered(now_ns, session)
        else:
            effects += self._membership(session, command)

    def _broadcast(self, session: MeshSession, command: bytes, effects: list[MeshEffect]) -> None:
        size = command[_FIELDS_AT] if len(command) > _FIELDS_AT else 0
        content_at = _FIELDS_AT + 1 + size
        pool = self._pools.name_of(command[_FIELDS_AT:content_at])
        if pool is None or not session.pooled:
            decode(command)
            self._counts["broadcasts_outside"] += 1
        else:
            effects.append(Shouted(session.peer, pool, command[content_at:]))

    def _note(self, now_ns: int, session: MeshSession, content: bytes) -> list[MeshEffect]:
        match control_messages.decode(content, session.peer.identifier):
            case control_messages.Heartbeat():
                return []
            case control_messages.AskPoolList():
                # A roll can be 64 KiB: one each heartbeat is all a peer may cost us.
                due = session.pooled and now_ns - session.told_ns >= self._settings.heartbeat_ns
                return [self._voice.roll(now_ns, session)] if due else []
            case control_messages.PoolList(pools, status):
                return self.refresh(session, pools, status) if session.pooled else []

    def _answered(self, now_ns: int, session: MeshSession) -> list[MeshEffect]:
        if session.pinged_ns is None:
            self._counts["answers_unasked"] += 1
            return []
        round_trip_ns, session.pinged_ns = now_ns - session.pinged_ns, None
        return [Answered(session.peer, round_trip_ns)]

    def _membership(self, session: MeshSession, command: bytes) -> list[MeshEffect]:
        match decode(command):
            case Join(_, pool, status) if session.pooled:
                return [*self._follow(session, status), *self._add(session, pool)]
            case Leave(_, pool, status) if session.pooled:
                return [*self._follow(session, status), *self._remove(session, pool)]
            case Join() | Leave() if session.is_node:
                return []
            case Hello():
                return [self._complain(session, "unexpected command", "HELLO within a session")]
            case _:
                return [self._complain(session, "unexpected command", "clients join no pools")]

    def _follow(self, session: MeshSession, status: int) -> list[MeshEffect]:
        """Take the status octet; it must be one more than the last."""
        expected, session.status = (session.status + 1) % STATUS_MODULUS, status
        if status == expected or session.doubtful:
            return []
        session.doubtful = True
        return [self._complain(session, "status out of step", f"{status} instead of {expected}")]

    def _add(self, session: MeshSession, pool: str) -> list[MeshEffect]:
        if pool in session.pools:
            return []
        if not self._members.add(session, pool):
            return [self._complain(session, "too many pools", pool)]
        return [Joined(session.peer, pool)]

    def _remove(self, session: MeshSession, pool: str) -> list[MeshEffect]:
        if pool not in session.pools:
            return []
        self._members.remove(session, pool)
        return [Left(session.peer, pool)]

    def _ask(self, now_ns: int, session: MeshSession) -> list[MeshEffect]:
        due = now_ns - session.asked_ns >= self._settings.heartbeat_ns
        return [self._voice.ask(now_ns, session)] if due else []

    def _complain(self, session: MeshSession, event: str, reason: str) -> Report:
        self._counts[event.replace(" ", "_")] += 1
        return Report(event, session.name, {"reason": reason})
