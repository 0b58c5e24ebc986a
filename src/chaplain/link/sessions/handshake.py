"""The handshake: decides when to greet, and when a greeting completes a session.

It acts on genuine greetings. `hello_checks.py` decides whether a greeting is genuine; `core.py` processes the frames
of a session.

Invariants:
- a greeting that echoes no current offer of ours only causes a greeting back;
- an offer completes at most one greeting; its nonce is invalid afterwards;
- a channel carries a greeting before anything else, and sealed frames only of the session that was completed on it.

State table: docs/connection.md.
"""

from __future__ import annotations

from chaplain.core import Channel, Dial, HangUp, Send
from chaplain.errors import Malformed
from chaplain.link.auth import hello as codec
from chaplain.link.auth.connect_token import knock_as_client, knock_as_node
from chaplain.link.auth.hello import GREETING_CLIENT, RESERVED, HelloClaims
from chaplain.link.auth.key_exchange import Party, derive
from chaplain.link.endpoint import split_endpoint
from chaplain.link.errors import GreetingRefused
from chaplain.link.events import Introduce, Met, Peer, PinNodeKeys
from chaplain.link.sessions.aead import make_seal
from chaplain.link.sessions.dialing import DialAttempt, DialState, OutgoingChannel
from chaplain.link.sessions.hello_checks import CheckedHello, HelloChecks
from chaplain.link.sessions.session import CONFIRM, LinkSession
from chaplain.link.sessions.tables import LinkTables
from chaplain.wire import command as commands
from chaplain.wire.command import Hello

_EXPLAINED = ("other version", "other cluster", "other seal")
"""Refusals that we answer with a greeting, so that the client's user sees both versions, clusters or seals."""


class Handshake:
    def __init__(self, tables: LinkTables, checks: HelloChecks) -> None:
        self._tables = tables
        self._checks = checks
        self._role = "client" if tables.ring is None else "node"
        self._address = split_endpoint(tables.settings.endpoint) if tables.settings.endpoint else ("", 0)
        self._introduce = Introduce((), 0, {})

    def introduce(self, introduce: Introduce) -> None:
        """Use this content in our greetings from now on.

        Raises `ValueError` for content that does not fit into a HELLO.
        """
        for name in introduce.headers:
            if name.startswith(RESERVED):
                raise ValueError(f"header names beginning with {RESERVED!r} are the link's own: {name!r}")
        if len(introduce.headers) > 200:
            raise ValueError("a greeting has room for at most 200 headers beside the link's own")
        commands.encode(Hello(1, *self._address, introduce.pools, introduce.status, introduce.headers))
        self._introduce = introduce

    def pin(self, pin: PinNodeKeys) -> None:
        self._checks.pin(pin.keys, pin.gone)

    # Dialling.

    def dial(self, now_ns: int, call: DialAttempt) -> None:
        tables = self._tables
        assert call.state is DialState.WAITING
        outgoing = tables.open_dial(call)
        assert isinstance(outgoing.channel, int)
        if tables.ring is None:
            name, proof = knock_as_client(tables.identity, now_ns, tables.rng)
        else:
            name, proof = knock_as_node(tables.ring, tables.identity.identifier, now_ns, tables.rng)
        call.state = DialState.DIALLING
        tables.set_timer(call, now_ns + tables.settings.greeting_timeout_ns)
        tables.out.append(Dial(outgoing.channel, call.endpoint, name, proof))

    def schedule_redial(self, now_ns: int, call: DialAttempt) -> None:
        """The channel is gone. Redial later; but drop the call if it only answered a greeting of the peer and its time
        is over.
        """
        tables = self._tables
        assert call.outgoing is not None
        tables.close_outgoing(call.outgoing)
        call.state = DialState.WAITING
        if not call.wanted and now_ns >= call.give_up_ns:
            tables.drop_call(call)
        else:
            tables.set_timer(call, now_ns + call.backoff_ns(tables.settings, tables.rng))

    # Greeting.

    def greet(self, now_ns: int, outgoing: OutgoingChannel) -> None:
        tables = self._tables
        offer = outgoing.offer or tables.make_offer(now_ns, outgoing)
        claim = HelloClaims(
            version=tables.settings.version,
            cluster=tables.settings.cluster,
            role=self._role,
            instance=tables.instance,
            key=tables.identity.key,
            identifier=tables.identity.identifier,
            turn=offer.turn,
            nonce=offer.nonce,
            share=offer.share,
            seal=tables.settings.seal,
            echo=outgoing.echo,
            to=outgoing.to,
        )
        introduce = self._introduce
        headers = {**codec.claim_headers(claim), **introduce.headers}
        frame = codec.encode(
            tables.identity, offer, Hello(1, *self._address, introduce.pools, introduce.status, headers)
        )
        outgoing.echoed = outgoing.echo
        tables.add_queued(outgoing, len(frame))
        tables.counts["greetings_sent"] += 1
        tables.out.append(Send(outgoing.channel, frame))

    def on_greeting(self, now_ns: int, channel: Channel, frame: bytes) -> None:
        try:
            greeting = self._checks.check(channel, frame)
            self._accept(now_ns, channel, greeting)
        except Malformed as error:
            self._refuse(now_ns, channel, frame[0], GreetingRefused("malformed", error=str(error)))
        except GreetingRefused as refusal:
            self._refuse(now_ns, channel, frame[0], refusal)

    def _refuse(self, now_ns: int, channel: Channel, octet: int, refusal: GreetingRefused) -> None:
        tables = self._tables
        tables.counts["greetings_refused"] += 1
        if refusal.reason == "replayed":
            tables.counts["replays_rejected"] += 1
        reported = tables.report(
            now_ns, "greeting refused", refusal.reason, describe(tables, channel), **refusal.detail
        )
        if reported and refusal.reason in _EXPLAINED and isinstance(channel, bytes) and octet == GREETING_CLIENT:
            # The client is registered but differs in version, cluster or seal. Our greeting shows its user both sides.
            outgoing = OutgoingChannel(channel)
            self.greet(now_ns, outgoing)
            tables.drop_offer(outgoing)

    def _accept(self, now_ns: int, channel: Channel, greeting: CheckedHello) -> None:
        tables, claim = self._tables, greeting.claim
        session = tables.sessions.get(claim.instance)
        if session is not None and claim.turn <= session.turn:
            raise GreetingRefused("replayed", turn=claim.turn)
        # Replay protection: a greeting completes a session only if it echoes the nonce of an offer that we made and
        # that nobody has used. A recorded greeting echoes an old nonce and only causes a greeting back.
        outgoing = tables.offers.get(claim.echo) if claim.to == tables.instance else None
        if outgoing is None:
            self._greet_back(now_ns, channel, greeting)
        elif self._belongs_to(outgoing, channel, greeting):
            self._complete(now_ns, outgoing, channel, greeting)
        else:
            raise GreetingRefused("another endpoint leads there", endpoint=greeting.peer.endpoint)

    def _belongs_to(self, outgoing: OutgoingChannel, channel: Channel, greeting: CheckedHello) -> bool:
        """Whether the peer that echoed the offer is the one for which this channel was opened."""
        if outgoing.call is None:
            return outgoing.channel == channel
        if greeting.peer.client or (self._role == "client" and outgoing.channel != channel):
            return False
        # An endpoint that belongs to another call does not belong to this one, whatever the peer echoed: an
        # eavesdropper can copy an offer.
        return self._tables.call_of(greeting.peer.endpoint) in (None, outgoing.call)

    # Greetings that echo our offer: they prove that the peer is present now.

    def _complete(self, now_ns: int, outgoing: OutgoingChannel, channel: Channel, greeting: CheckedHello) -> None:
        tables, claim, peer = self._tables, greeting.claim, greeting.peer
        old = [tables.sessions.get(peer.instance), outgoing.session]
        if not peer.client:
            old.append(tables.by_node_key.get(peer.key))
        if not any(old) and not tables.has_room_for(peer):
            raise GreetingRefused("too many sessions", sessions=len(tables.sessions))
        session = self._session(outgoing, channel, greeting)
        # The peer can complete its side only after our greeting echoed its nonce.
        if outgoing.echoed != claim.nonce:
            outgoing.echo, outgoing.to = claim.nonce, claim.instance
            self.greet(now_ns, outgoing)
        tables.drop_offer(outgoing)
        outgoing.echo = outgoing.to = b""
        for before in old:
            if before is not None and tables.sessions.get(before.peer.instance) is before:
                again = before.peer.instance == peer.instance
                self.end_session(
                    now_ns, before, "greeted anew" if again else "another instance took its place", outgoing
                )
        tables.begin_session(session)
        if outgoing.call is not None:
            self._on_established(outgoing.call, peer.endpoint)
        if not peer.client:
            self._checks.owners.bind(peer)
            self._check_duplicates(now_ns, peer)
        # The peer's first frame, at least its confirmation, shows that it completed its side, too. It must arrive
        # before this timer.
        tables.set_timer(outgoing.call or outgoing, now_ns + tables.settings.greeting_timeout_ns)
        self._send_confirmation(now_ns, session)
        tables.out.append(Met(peer, greeting.hello))

    def _check_duplicates(self, now_ns: int, peer: Peer) -> None:
        duplicate = self._tables.duplicates.met(now_ns, peer)
        if duplicate is not None:
            where = " and ".join(duplicate.endpoints)
            reason = f"two processes run with this node's identity, at {where}: stop the one that is a copy"
            self._tables.report(now_ns, "identity used twice", reason, f"{duplicate.identifier:08x}")

    def _send_confirmation(self, now_ns: int, session: LinkSession) -> None:
        frame = session.close(CONFIRM)
        session.record_sent(now_ns)
        self._tables.add_queued(session.outgoing, len(frame))
        self._tables.out.append(Send(session.outgoing.channel, frame))

    def _session(self, outgoing: OutgoingChannel, channel: Channel, greeting: CheckedHello) -> LinkSession:
        tables, claim, offer = self._tables, greeting.claim, outgoing.offer
        assert offer is not None
        us = Party(tables.instance, tables.identity.key, offer.nonce, offer.share, offer.cluster_key)
        them = Party(claim.instance, claim.key, claim.nonce, claim.share, greeting.cluster_key)
        secret = offer.secret_with(claim.share)
        algorithm = tables.settings.seal
        closing = make_seal(algorithm, derive(secret, algorithm, us, them))
        opening = make_seal(algorithm, derive(secret, algorithm, them, us))
        return LinkSession(greeting.peer, claim.turn, outgoing, channel, (closing, opening), offered_ns=offer.made_ns)

    def _on_established(self, call: DialAttempt, endpoint: str) -> None:
        """The call has a session: reset its failures, and record the endpoint that the peer advertises."""
        tables = self._tables
        call.attempt = 0
        call.give_up_ns = 0
        if tables.aliases.get(call.advertised) is call:
            del tables.aliases[call.advertised]
        call.advertised = endpoint
        if endpoint != call.endpoint:
            tables.aliases[endpoint] = call

    def end_session(self, now_ns: int, session: LinkSession, reason: str, keep: OutgoingChannel | None = None) -> None:
        """End the session.

        Its channel is closed if a client opened it; a call's channel remains until the call's time-out.

        `keep` names a channel that remains unchanged.
        """
        tables, outgoing = self._tables, session.outgoing
        tables.end_session(session, reason)
        if not session.peer.client:
            self._checks.owners.release(session.peer)
        if outgoing is keep:
            return
        if outgoing.call is None:
            tables.out.append(HangUp(outgoing.channel))
            tables.close_outgoing(outgoing)
        else:
            outgoing.call.give_up_ns = now_ns + tables.settings.greeting_timeout_ns
            tables.set_timer(outgoing.call, outgoing.call.give_up_ns)

    # Greetings without an echo: they may be replays, so we only greet back.

    def _greet_back(self, now_ns: int, channel: Channel, greeting: CheckedHello) -> None:
        claim = greeting.claim
        call = None if greeting.peer.client else self._dial_back(now_ns, channel, greeting)
        if call is None:
            outgoing = self._tables.outgoing_channels.get(channel) or self._open_route(now_ns, channel, greeting)
        else:
            if call.state is DialState.WAITING:
                # The peer is reachable now, so the back-off ends.
                self.dial(now_ns, call)
            assert call.outgoing is not None
            outgoing = call.outgoing
        if outgoing.offer is not None and claim.nonce == outgoing.echoed:
            return  # we greeted back already, and the peer's echo is on its way
        if outgoing.queued_bytes > self._tables.settings.queue_bytes_max:
            raise GreetingRefused("queue is full")  # the peer greets again and again and reads nothing
        outgoing.echo, outgoing.to = claim.nonce, claim.instance
        if call is None or call.state is DialState.CONNECTED:
            self.greet(now_ns, outgoing)

    def _dial_back(self, now_ns: int, channel: Channel, greeting: CheckedHello) -> DialAttempt:
        tables = self._tables
        if isinstance(channel, int):
            call = tables.outgoing_channels[channel].call
            assert call is not None
            return call
        endpoint = greeting.peer.endpoint
        found = tables.call_of(endpoint)
        if found is not None:
            session = found.outgoing.session if found.outgoing is not None else None
            if session is not None and session.peer.key != greeting.peer.key:
                # A greeting only claims its endpoint. The session at this endpoint proves that another key owns it.
                raise GreetingRefused("endpoint belongs to another key", endpoint=endpoint)
            return found
        if len(tables.calls) >= tables.settings.calls_max:
            raise GreetingRefused("too many calls", calls_max=tables.settings.calls_max)
        call = tables.calls[endpoint] = DialAttempt(endpoint, wanted=False)
        call.give_up_ns = now_ns + tables.settings.greeting_timeout_ns
        return call

    def _open_route(self, now_ns: int, channel: Channel, greeting: CheckedHello) -> OutgoingChannel:
        tables = self._tables
        assert isinstance(channel, bytes)
        if len(tables.half_greeted) >= tables.settings.half_greeted_max:
            # A handshake takes one round trip, so the oldest one is the most likely to have been abandoned.
            oldest = next(iter(tables.half_greeted.values()))
            tables.out.append(HangUp(oldest.channel))
            tables.close_outgoing(oldest)
            tables.counts["handshakes_crowded_out"] += 1
        outgoing = tables.open_route(channel, greeting.peer.key)
        tables.set_timer(outgoing, now_ns + tables.settings.greeting_timeout_ns)
        return outgoing


def describe(tables: LinkTables, channel: Channel) -> str:
    """The name of a channel's peer in reports: the peer if it is known, else the channel."""
    session = tables.by_channel.get(channel)
    if session is not None:
        return session.peer.client or f"{session.peer.identifier:08x}"
    if isinstance(channel, bytes):
        return f"route {channel[:17].hex()}"
    outgoing = tables.outgoing_channels.get(channel)
    return outgoing.call.endpoint if outgoing is not None and outgoing.call is not None else f"dial {channel}"
