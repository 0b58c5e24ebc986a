"""What we say: numbered commands for the link, each a sign of life to its receiver.

It refuses to know who is in which pool, and when anything is due.

Invariants:
- one shout is encoded once, whatever the number of receivers; only the number differs between them;
- JOIN, LEAVE, PING, DECENACK, heartbeats and rolls are urgent, content is urgent only if the caller says so;
- a node to which we could send nothing else still gets a heartbeat each `heartbeat_ns`, so that it sees the gap.
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
from chaplain.wire.command import SIGNATURE
from chaplain.wire.primitives import put_number

ALIVE, BROADCAST, JOIN, LEAVE, PING, DECENACK = range(2, 8)
_SHOUT = b"%b%c" % (SIGNATURE, BROADCAST)
_SEQUENCE_AT = slice(3, 5)


class MeshOutbound:
    def __init__(
        self, settings: MeshSettings, identifier: int, pools: OwnPools, vigil: Liveness, counts: Counter[str]
    ) -> None:
        self._settings = settings
        self._identifier = identifier
        self._pools = pools
        self._vigil = vigil
        self._counts = counts
        self._heartbeat = control_messages.encode(identifier, control_messages.Heartbeat())

    def shout(self, now_ns: int, members: Collection[MeshSession], shout: Shout) -> list[MeshEffect]:
        if len(shout.content) > self._settings.content_bytes_max:
            return self._too_large(len(shout.content))
        self._counts["shouts"] += 1
        if not members:
            return []
        tail = name_octets(shout.pool) + shout.content
        effects: list[MeshEffect] = []
        for session in members:
            command = b"".join((_SHOUT, session.numbering.next_number().to_bytes(2, "big"), tail))
            effects.append(Say(session.peer.instance, command))
            self._vigil.spoke(now_ns, session)
        return effects

    def whisper(self, now_ns: int, session: MeshSession, whisper: Whisper) -> list[MeshEffect]:
        if len(whisper.content) > self._settings.content_bytes_max:
            return self._too_large(len(whisper.content))
        self._counts["whispers"] += 1
        if session.is_node:
            self._vigil.spoke(now_ns, session)
        return [session.say(ALIVE, whisper.content, whisper.urgent)]

    def tell(self, now_ns: int, nodes: Iterable[MeshSession], octet: int, pool: str) -> list[MeshEffect]:
        """JOIN or LEAVE, to every node."""
        fields = name_octets(pool) + put_number(self._pools.status, 1)
        return [self._say(now_ns, session, octet, fields) for session in nodes]

    def ping(self, now_ns: int, session: MeshSession) -> Say:
        self._counts["pings"] += 1
        return self._say(now_ns, session, PING)

    def answer(self, now_ns: int, session: MeshSession) -> Say:
        return self._say(now_ns, session, DECENACK)

    def beat(self, now_ns: int, session: MeshSession) -> Say:
        self._counts["heartbeats"] += 1
        session.beat_ns = now_ns
        return self._say(now_ns, session, ALIVE, self._heartbeat)

    def ask(self, now_ns: int, session: MeshSession) -> Say:
        session.asked_ns = now_ns
        return self._say(
            now_ns, session, ALIVE, control_messages.encode(self._identifier, control_messages.AskPoolList())
        )

    def roll(self, now_ns: int, session: MeshSession) -> Say:
        session.told_ns = now_ns
        roll = control_messages.PoolList(self._pools.names, self._pools.status)
        return self._say(now_ns, session, ALIVE, control_messages.encode(self._identifier, roll))

    def dropped(self, now_ns: int, session: MeshSession, dropped: CommandDropped) -> list[MeshEffect]:
        session.numbering.dropped(int.from_bytes(dropped.command[_SEQUENCE_AT], "big"))
        self._counts["gapped_outgoing"] += 1
        effects: list[MeshEffect] = [Gapped(session.peer, 1, outgoing=True)]
        if session.is_node and now_ns - session.beat_ns >= self._settings.heartbeat_ns:
            effects.append(self.beat(now_ns, session))
        return effects

    def _say(self, now_ns: int, session: MeshSession, octet: int, fields: bytes = b"", urgent: bool = True) -> Say:
        if session.is_node:
            self._vigil.spoke(now_ns, session)
        return session.say(octet, fields, urgent)

    def _too_large(self, size: int) -> list[MeshEffect]:
        self._counts["content_too_large"] += 1
        return [Report("content too large", detail={"size": size, "size_max": self._settings.content_bytes_max})]
