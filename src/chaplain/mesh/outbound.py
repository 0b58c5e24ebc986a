"""Builds the numbered commands that this node sends. Each is also a sign of life to its receiver.

It does not know which peers are in which pool, nor when a command is due.

Invariants:
- a broadcast is encoded once for all receivers; only the sequence number differs between them;
- JOIN, LEAVE, PING, DECENACK, heartbeats and pool lists are urgent; content is urgent only if the caller marks it;
- a node whose commands are dropped at the budget still gets a heartbeat every `heartbeat_ns`, so that it sees the gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from chaplain.core import Report
from chaplain.link.events import CommandDropped, Say
from chaplain.mesh import control_messages
from chaplain.mesh.events import Gapped, MeshEffect, Shout, Whisper
from chaplain.mesh.liveness import Liveness
from chaplain.mesh.pools import OwnPools, name_octets
from chaplain.mesh.session import MeshSession
from chaplain.mesh.settings import MeshSettings
from chaplain.wire.command import ALIVE, BROADCAST, DECENACK, PING, assemble, read_header
from chaplain.wire.primitives import put_number


class MeshOutbound:
    def __init__(
        self, settings: MeshSettings, identifier: int, pools: OwnPools, liveness: Liveness, counts: Counter[str]
    ) -> None:
        self._settings = settings
        self._identifier = identifier
        self._pools = pools
        self._liveness = liveness
        self._counts = counts
        self._heartbeat = control_messages.encode(identifier, control_messages.Heartbeat())

    def shout(self, now_ns: int, members: Collection[MeshSession], shout: Shout) -> list[MeshEffect]:
        if len(shout.content) > self._settings.content_bytes_max:
            return self._too_large(len(shout.content))
        self._counts["shouts"] += 1
        if not members:
            return []
        fields = name_octets(shout.pool) + shout.content
        effects: list[MeshEffect] = []
        for session in members:
            command = assemble(BROADCAST, session.numbering.next_number(), fields)
            effects.append(Say(session.peer.instance, command))
            self._liveness.sent(now_ns, session)
        return effects

    def whisper(self, now_ns: int, session: MeshSession, whisper: Whisper) -> list[MeshEffect]:
        if len(whisper.content) > self._settings.content_bytes_max:
            return self._too_large(len(whisper.content))
        self._counts["whispers"] += 1
        if session.is_node and session.sent_ns != now_ns:
            self._liveness.sent(now_ns, session)
        command = assemble(ALIVE, session.numbering.next_number(), whisper.content)
        return [Say(whisper.instance, command, whisper.urgent)]

    def announce_pool_change(
        self, now_ns: int, nodes: Iterable[MeshSession], octet: int, pool: str
    ) -> list[MeshEffect]:
        """JOIN or LEAVE, to every node."""
        fields = name_octets(pool) + put_number(self._pools.status, 1)
        return [self._say(now_ns, session, octet, fields) for session in nodes]

    def ping(self, now_ns: int, session: MeshSession) -> Say:
        self._counts["pings"] += 1
        return self._say(now_ns, session, PING)

    def decenack(self, now_ns: int, session: MeshSession) -> Say:
        return self._say(now_ns, session, DECENACK)

    def heartbeat(self, now_ns: int, session: MeshSession) -> Say:
        self._counts["heartbeats"] += 1
        session.heartbeat_sent_ns = now_ns
        return self._say(now_ns, session, ALIVE, self._heartbeat)

    def ask_pool_list(self, now_ns: int, session: MeshSession) -> Say:
        session.pool_list_asked_ns = now_ns
        return self._say(
            now_ns, session, ALIVE, control_messages.encode(self._identifier, control_messages.AskPoolList())
        )

    def pool_list(self, now_ns: int, session: MeshSession) -> Say:
        session.pool_list_sent_ns = now_ns
        pool_list = control_messages.PoolList(self._pools.names, self._pools.status)
        return self._say(now_ns, session, ALIVE, control_messages.encode(self._identifier, pool_list))

    def on_dropped(self, now_ns: int, session: MeshSession, dropped: CommandDropped) -> list[MeshEffect]:
        _, sequence = read_header(dropped.command)
        session.numbering.on_dropped(sequence)
        self._counts["gapped_outgoing"] += 1
        effects: list[MeshEffect] = [Gapped(session.peer, 1, outgoing=True)]
        if session.is_node and now_ns - session.heartbeat_sent_ns >= self._settings.heartbeat_ns:
            effects.append(self.heartbeat(now_ns, session))
        return effects

    def _say(self, now_ns: int, session: MeshSession, octet: int, fields: bytes = b"", urgent: bool = True) -> Say:
        if session.is_node:
            self._liveness.sent(now_ns, session)
        return session.say(octet, fields, urgent)

    def _too_large(self, size: int) -> list[MeshEffect]:
        self._counts["content_too_large"] += 1
        return [Report("content too large", detail={"size": size, "size_max": self._settings.content_bytes_max})]
