"""The link's tables: sessions, calls, lines, offers, timers, and the effects of the step at hand.

Decides nothing; keeps the tables agreeing with each other.

Invariants:
- `by_channel` leads to exactly the sessions in `sessions`; `client_sessions` counts those of clients;
- `offers` holds exactly the live offer of each line in `lines`;
- every call with a line is in `calls`, and its line in `lines`;
- `client_queues` counts what waits on the lines of clients in `lines`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from random import Random

from chaplain.core import Channel, HangUp
from chaplain.link.auth.identity import Identity
from chaplain.link.auth.key_exchange import KeyOffer
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.events import LinkEffect, Parted, Peer
from chaplain.link.sessions.client_queues import ClientQueues
from chaplain.link.sessions.dialing import DialAttempt, DialState, SpeakingChannel
from chaplain.link.sessions.duplicate_nodes import DuplicateNodes
from chaplain.link.sessions.report_limiter import Reports
from chaplain.link.sessions.session import LinkSession
from chaplain.link.settings import LinkSettings


class LinkTables:
    def __init__(
        self, identity: Identity, instance: bytes, settings: LinkSettings, rng: Random, ring: KeyRing | None
    ) -> None:
        self.identity = identity
        self.instance = instance
        self.settings = settings
        self.rng = rng
        self.ring = ring
        self.counts: Counter[str] = Counter()
        self.out: list[LinkEffect] = []
        self.sessions: dict[bytes, LinkSession] = {}
        self.by_channel: dict[Channel, LinkSession] = {}
        self.by_node_key: dict[bytes, LinkSession] = {}
        self.calls: dict[str, DialAttempt] = {}
        self.aliases: dict[str, DialAttempt] = {}
        self.lines: dict[Channel, SpeakingChannel] = {}
        self.half_greeted: dict[Channel, SpeakingChannel] = {}
        self.offers: dict[bytes, SpeakingChannel] = {}
        self.clients: dict[bytes, str] = {}
        self.client_sessions: Counter[bytes] = Counter()
        """How many sessions each client's key has."""
        self.former: dict[Channel, str] = {}
        """Where the nodes are whose sessions ended, by the channel they spoke on."""
        self.client_queues = ClientQueues(settings)
        self.doubles = DuplicateNodes(settings.bindings_max)
        self._timers: list[tuple[int, int, DialAttempt | SpeakingChannel]] = []
        self._serial = 0
        self._turn = 0
        self._dial = 0
        self._reports = Reports(settings.reports_per_second_max)

    def begin_step(self) -> list[LinkEffect]:
        self.out = []
        return self.out

    # Timers. An entry counts only while its owner's `due_ns` still says the same.

    def wake(self, owner: DialAttempt | SpeakingChannel, at_ns: int) -> None:
        owner.due_ns = at_ns
        self._serial += 1
        heapq.heappush(self._timers, (at_ns, self._serial, owner))

    def due(self, now_ns: int) -> DialAttempt | SpeakingChannel | None:
        while self._timers and self._timers[0][0] <= now_ns:
            at_ns, _, owner = heapq.heappop(self._timers)
            if owner.due_ns == at_ns:
                owner.due_ns = 0
                return owner
        return None

    def next_ns(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    # Reports and counts.

    def report(self, now_ns: int, event: str, reason: str, peer: str = "", **detail: str | int) -> bool:
        """Whether the report was made, and not left out because its second is full."""
        report = self._reports.make(now_ns, event, reason, peer, detail)
        if report is not None:
            self.out.append(report)
        return report is not None

    # Lines and offers.

    def call_of(self, endpoint: str) -> DialAttempt | None:
        return self.calls.get(endpoint) or self.aliases.get(endpoint)

    def open_line(self, call: DialAttempt) -> SpeakingChannel:
        """A fresh dial for the call."""
        self._dial += 1
        line = call.line = SpeakingChannel(self._dial, call)
        self.lines[line.channel] = line
        return line

    def open_route(self, channel: bytes, key: bytes) -> SpeakingChannel:
        line = SpeakingChannel(channel)
        line.key = key
        self.lines[channel] = line
        self.keep_route(line)
        return line

    def queue(self, line: SpeakingChannel, size_bytes: int) -> None:
        """So many bytes more wait on this line; fewer, if it is negative."""
        line.queued_bytes += size_bytes
        if line.key:
            self.client_queues.add(line.key, size_bytes)

    def keep_route(self, line: SpeakingChannel) -> None:
        """For as long as a greeting may take: it has no session, or none any more."""
        self.half_greeted[line.channel] = line

    def make_offer(self, now_ns: int, line: SpeakingChannel) -> KeyOffer:
        self.drop_offer(line)
        self._turn += 1
        cluster_key = self.ring.used if self.ring is not None and line.call is not None else b""
        line.offer = offer = KeyOffer(self.rng, self._turn, cluster_key, now_ns)
        self.offers[offer.nonce] = line
        return offer

    def drop_offer(self, line: SpeakingChannel) -> None:
        if line.offer is not None:
            del self.offers[line.offer.nonce]
            line.offer = None
        line.echoed = b""

    def close_line(self, line: SpeakingChannel) -> None:
        """Forget the channel. Its session, if it had one, must have ended."""
        assert line.session is None
        self.drop_offer(line)
        self.half_greeted.pop(line.channel, None)
        self.lines.pop(line.channel, None)
        self.queue(line, -line.queued_bytes)
        line.due_ns = 0

    def drop_call(self, call: DialAttempt) -> None:
        """Forget the call; its session, if it had one, must have ended."""
        if call.line is not None:
            if call.state is not DialState.WAITING:
                self.out.append(HangUp(call.line.channel))
            self.close_line(call.line)
        call.due_ns = 0
        self.calls.pop(call.endpoint, None)
        if self.aliases.get(call.advertised) is call:
            del self.aliases[call.advertised]

    # Sessions.

    def has_room_for(self, peer: Peer) -> bool:
        """For one more session. Nodes and clients are counted apart, or clients could keep a node out."""
        settings = self.settings
        if not peer.client:
            return len(self.by_node_key) < settings.sessions_max
        clients = len(self.sessions) - len(self.by_node_key)
        return clients < settings.sessions_max and self.client_sessions[peer.key] < settings.sessions_per_client_max

    def begin(self, session: LinkSession) -> None:
        assert session.peer.instance not in self.sessions
        self.sessions[session.peer.instance] = session
        self.by_channel[session.inward] = session
        self.former.pop(session.inward, None)
        if session.peer.client:
            self.client_sessions[session.peer.key] += 1
        else:
            self.by_node_key[session.peer.key] = session
        session.line.session = session
        self.half_greeted.pop(session.line.channel, None)
        self.counts["sessions_begun"] += 1

    def end(self, session: LinkSession, reason: str) -> None:
        del self.sessions[session.peer.instance]
        del self.by_channel[session.inward]
        if session.peer.client:
            self.client_sessions[session.peer.key] -= 1
            if not self.client_sessions[session.peer.key]:
                del self.client_sessions[session.peer.key]
        else:
            del self.by_node_key[session.peer.key]
            self.former[session.inward] = session.peer.endpoint
            if len(self.former) > self.settings.bindings_max:
                del self.former[next(iter(self.former))]
        assert session.line.session is session
        session.line.session = None
        self.counts["sessions_ended"] += 1
        self.out.append(Parted(session.peer, reason, session.unconfirmed))
        session.pending, session.pending_bytes = [], 0
