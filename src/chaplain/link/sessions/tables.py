"""The link's tables: sessions, calls, outgoing channels, offers and timers, and the effects of the current step.

It decides nothing; it keeps the tables consistent with each other.

Invariants:
- `by_channel` contains exactly the sessions in `sessions`; `client_sessions` counts those of clients;
- `offers` contains exactly the current offer of each channel in `outgoing_channels`;
- every call with a channel is in `calls`, and its channel in `outgoing_channels`;
- `client_queues` counts the bytes queued on the channels of clients.
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
from chaplain.link.sessions.dialing import DialAttempt, DialState, OutgoingChannel
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
        """The effects of the current step."""
        self.sessions: dict[bytes, LinkSession] = {}
        """By the peer's instance."""
        self.by_channel: dict[Channel, LinkSession] = {}
        """By the channel on which the peer's frames arrive."""
        self.by_node_key: dict[bytes, LinkSession] = {}
        """Sessions with nodes, by the node's public key."""
        self.calls: dict[str, DialAttempt] = {}
        """By the endpoint that we dial."""
        self.aliases: dict[str, DialAttempt] = {}
        """By the endpoint that the peer advertises, if it differs from the one that we dial."""
        self.outgoing_channels: dict[Channel, OutgoingChannel] = {}
        """The channels on which we send, by their ids."""
        self.half_greeted: dict[Channel, OutgoingChannel] = {}
        """Channels of clients that have greeted and have no session yet, the oldest first."""
        self.offers: dict[bytes, OutgoingChannel] = {}
        """The channel of each current offer, by the offer's nonce."""
        self.clients: dict[bytes, str] = {}
        """Names of the registered clients, by public key."""
        self.client_sessions: Counter[bytes] = Counter()
        """The number of sessions of each client's key."""
        self.ended_endpoints: dict[Channel, str] = {}
        """The endpoints of nodes whose sessions ended, by the channel on which their frames arrived."""
        self.client_queues = ClientQueues(settings)
        self.duplicates = DuplicateNodes(settings.bindings_max)
        self._timers: list[tuple[int, int, DialAttempt | OutgoingChannel]] = []
        self._serial = 0
        self._turn = 0
        self._dial = 0
        self._reports = Reports(settings.reports_per_second_max)

    def begin_step(self) -> list[LinkEffect]:
        """Start a new list of effects and return it."""
        self.out = []
        return self.out

    # Timers. An entry of the heap is valid only while it equals its owner's `due_ns`; others are skipped.

    def set_timer(self, owner: DialAttempt | OutgoingChannel, at_ns: int) -> None:
        owner.due_ns = at_ns
        self._serial += 1
        heapq.heappush(self._timers, (at_ns, self._serial, owner))

    def pop_due(self, now_ns: int) -> DialAttempt | OutgoingChannel | None:
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
        """Report an event. Returns False if the report was omitted because of the limit."""
        report = self._reports.make(now_ns, event, reason, peer, detail)
        if report is not None:
            self.out.append(report)
        return report is not None

    # Channels and offers.

    def call_of(self, endpoint: str) -> DialAttempt | None:
        return self.calls.get(endpoint) or self.aliases.get(endpoint)

    def open_dial(self, call: DialAttempt) -> OutgoingChannel:
        """Open a new outgoing channel for the call."""
        self._dial += 1
        outgoing = call.outgoing = OutgoingChannel(self._dial, call)
        self.outgoing_channels[outgoing.channel] = outgoing
        return outgoing

    def open_route(self, channel: bytes, key: bytes) -> OutgoingChannel:
        """Register the channel of a client that dialled us."""
        outgoing = OutgoingChannel(channel)
        outgoing.key = key
        self.outgoing_channels[channel] = outgoing
        self.mark_half_greeted(outgoing)
        return outgoing

    def add_queued(self, outgoing: OutgoingChannel, size_bytes: int) -> None:
        """Add to the bytes queued on this channel; a negative size subtracts."""
        outgoing.queued_bytes += size_bytes
        if outgoing.key:
            self.client_queues.add(outgoing.key, size_bytes)

    def mark_half_greeted(self, outgoing: OutgoingChannel) -> None:
        """The channel has no session (yet, or any more). It may remain for the time of a handshake."""
        self.half_greeted[outgoing.channel] = outgoing

    def make_offer(self, now_ns: int, outgoing: OutgoingChannel) -> KeyOffer:
        self.drop_offer(outgoing)
        self._turn += 1
        cluster_key = self.ring.used if self.ring is not None and outgoing.call is not None else b""
        outgoing.offer = offer = KeyOffer(self.rng, self._turn, cluster_key, now_ns)
        self.offers[offer.nonce] = outgoing
        return offer

    def drop_offer(self, outgoing: OutgoingChannel) -> None:
        if outgoing.offer is not None:
            del self.offers[outgoing.offer.nonce]
            outgoing.offer = None
        outgoing.echoed = b""

    def close_outgoing(self, outgoing: OutgoingChannel) -> None:
        """Forget the channel. Its session, if it had one, must have ended."""
        assert outgoing.session is None
        self.drop_offer(outgoing)
        self.half_greeted.pop(outgoing.channel, None)
        self.outgoing_channels.pop(outgoing.channel, None)
        self.add_queued(outgoing, -outgoing.queued_bytes)
        outgoing.due_ns = 0

    def drop_call(self, call: DialAttempt) -> None:
        """Forget the call. Its session, if it had one, must have ended."""
        if call.outgoing is not None:
            if call.state is not DialState.WAITING:
                self.out.append(HangUp(call.outgoing.channel))
            self.close_outgoing(call.outgoing)
        call.due_ns = 0
        self.calls.pop(call.endpoint, None)
        if self.aliases.get(call.advertised) is call:
            del self.aliases[call.advertised]

    # Sessions.

    def has_room_for(self, peer: Peer) -> bool:
        """Whether one more session fits.

        Nodes and clients have separate limits, so that clients cannot exclude a node.
        """
        settings = self.settings
        if not peer.client:
            return len(self.by_node_key) < settings.sessions_max
        clients = len(self.sessions) - len(self.by_node_key)
        return clients < settings.sessions_max and self.client_sessions[peer.key] < settings.sessions_per_client_max

    def begin_session(self, session: LinkSession) -> None:
        assert session.peer.instance not in self.sessions
        self.sessions[session.peer.instance] = session
        self.by_channel[session.incoming] = session
        self.ended_endpoints.pop(session.incoming, None)
        if session.peer.client:
            self.client_sessions[session.peer.key] += 1
        else:
            self.by_node_key[session.peer.key] = session
        session.outgoing.session = session
        self.half_greeted.pop(session.outgoing.channel, None)
        self.counts["sessions_begun"] += 1

    def end_session(self, session: LinkSession, reason: str) -> None:
        del self.sessions[session.peer.instance]
        del self.by_channel[session.incoming]
        if session.peer.client:
            self.client_sessions[session.peer.key] -= 1
            if not self.client_sessions[session.peer.key]:
                del self.client_sessions[session.peer.key]
        else:
            del self.by_node_key[session.peer.key]
            self.ended_endpoints[session.incoming] = session.peer.endpoint
            if len(self.ended_endpoints) > self.settings.bindings_max:
                del self.ended_endpoints[next(iter(self.ended_endpoints))]
        assert session.outgoing.session is session
        session.outgoing.session = None
        self.counts["sessions_ended"] += 1
        self.out.append(Parted(session.peer, reason, session.unconfirmed))
        session.pending, session.pending_bytes = [], 0
