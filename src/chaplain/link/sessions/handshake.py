"""The handshake: who greets whom, when, and when a greeting becomes a session.

Decides what follows from a genuine greeting. Whether it is genuine is the judge's; what travels in a session, the
core's.

Invariants:
- a greeting without an echo of a live offer of ours causes a greeting back and nothing else;
- an offer completes one greeting at most; its nonce means nothing afterwards;
- a line carries a greeting before anything else, and sealed frames only of the session that was completed on it.

State table: docs/connection.md.
"""

from __future__ import annotations

from chaplain.core import Channel, Dial, HangUp, Send
from chaplain.errors import Malformed
from chaplain.link.auth import hello as codec
from chaplain.link.auth.connect_token import knock_as_client, knock_as_node
from chaplain.link.auth.hello import GREETING_CLIENT, RESERVED, Claim
from chaplain.link.auth.key_exchange import Party, derive
from chaplain.link.endpoint import split_endpoint
from chaplain.link.errors import GreetingRefused
from chaplain.link.events import Introduce, Met, Peer, Pin
from chaplain.link.sessions.aead import make_seal
from chaplain.link.sessions.dialing import DialAttempt, DialState, SpeakingChannel
from chaplain.link.sessions.hello_checks import CheckedHello, HelloChecks
from chaplain.link.sessions.session import NOD, LinkSession
from chaplain.link.sessions.tables import LinkTables
from chaplain.wire import command as commands
from chaplain.wire.command import Hello

_TELLING = ("other version", "other cluster", "other seal")


class Handshake:
    def __init__(self, book: LinkTables, judge: HelloChecks) -> None:
        self._book = book
        self._judge = judge
        self._role = "client" if book.ring is None else "node"
        self._address = split_endpoint(book.settings.endpoint) if book.settings.endpoint else ("", 0)
        self._introduce = Introduce((), 0, {})

    def introduce(self, introduce: Introduce) -> None:
        """Speak so from now on. Raises `ValueError` for what no HELLO can hold."""
        for name in introduce.headers:
            if name.startswith(RESERVED):
                raise ValueError(f"header names beginning with {RESERVED!r} are the link's own: {name!r}")
        if len(introduce.headers) > 200:
            raise ValueError("a greeting has room for at most 200 headers beside the link's own")
        commands.encode(Hello(1, *self._address, introduce.pools, introduce.status, introduce.headers))
        self._introduce = introduce

    def pin(self, pin: Pin) -> None:
        self._judge.pin(pin.keys, pin.gone)

    # Dialling.

    def dial(self, now_ns: int, call: DialAttempt) -> None:
        book = self._book
        assert call.state is DialState.WAITING
        line = book.open_line(call)
        assert isinstance(line.channel, int)
        if book.ring is None:
            name, proof = knock_as_client(book.identity, now_ns, book.rng)
        else:
            name, proof = knock_as_node(book.ring, book.identity.identifier, now_ns, book.rng)
        call.state = DialState.DIALLING
        book.wake(call, now_ns + book.settings.greeting_timeout_ns)
        book.out.append(Dial(line.channel, call.endpoint, name, proof))

    def wait(self, now_ns: int, call: DialAttempt) -> None:
        """The line is gone: dial again later, or give up a call that only answered somebody."""
        book = self._book
        assert call.line is not None
        book.close_line(call.line)
        call.state = DialState.WAITING
        if not call.wanted and now_ns >= call.give_up_ns:
            book.drop_call(call)
        else:
            book.wake(call, now_ns + call.backoff_ns(book.settings, book.rng))

    # Greeting.

    def greet(self, now_ns: int, line: SpeakingChannel) -> None:
        book = self._book
        offer = line.offer or book.make_offer(now_ns, line)
        claim = Claim(
            version=book.settings.version,
            cluster=book.settings.cluster,
            role=self._role,
            instance=book.instance,
            key=book.identity.key,
            identifier=book.identity.identifier,
            turn=offer.turn,
            nonce=offer.nonce,
            share=offer.share,
            seal=book.settings.seal,
            echo=line.echo,
            to=line.to,
        )
        said = self._introduce
        headers = {**codec.claim_headers(claim), **said.headers}
        frame = codec.encode(book.identity, offer, Hello(1, *self._address, said.pools, said.status, headers))
        line.echoed = line.echo
        book.queue(line, len(frame))
        book.counts["greetings_sent"] += 1
        book.out.append(Send(line.channel, frame))

    def hear(self, now_ns: int, channel: Channel, frame: bytes) -> None:
        try:
            greeting = self._judge.judge(channel, frame)
            self._welcome(now_ns, channel, greeting)
        except Malformed as error:
            self._refuse(now_ns, channel, frame[0], GreetingRefused("malformed", error=str(error)))
        except GreetingRefused as refusal:
            self._refuse(now_ns, channel, frame[0], refusal)

    def _refuse(self, now_ns: int, channel: Channel, octet: int, refusal: GreetingRefused) -> None:
        book = self._book
        book.counts["greetings_refused"] += 1
        if refusal.reason == "replayed":
            book.counts["replays_rejected"] += 1
        told = book.report(now_ns, "greeting refused", refusal.reason, describe(book, channel), **refusal.detail)
        if told and refusal.reason in _TELLING and isinstance(channel, bytes) and octet == GREETING_CLIENT:
            # A registered client of another make: a greeting of ours lets its user see both sides of the difference.
            line = SpeakingChannel(channel)
            self.greet(now_ns, line)
            book.drop_offer(line)

    def _welcome(self, now_ns: int, channel: Channel, greeting: CheckedHello) -> None:
        book, claim = self._book, greeting.claim
        session = book.sessions.get(claim.instance)
        if session is not None and claim.turn <= session.turn:
            raise GreetingRefused("replayed", turn=claim.turn)
        line = book.offers.get(claim.echo) if claim.to == book.instance else None
        if line is None:
            self._answer(now_ns, channel, greeting)
        elif self._leads_to(line, channel, greeting):
            self._complete(now_ns, line, channel, greeting)
        else:
            raise GreetingRefused("another endpoint leads there", endpoint=greeting.peer.endpoint)

    def _leads_to(self, line: SpeakingChannel, channel: Channel, greeting: CheckedHello) -> bool:
        """Whether the peer that echoed the offer is the one this line was made for."""
        if line.call is None:
            return line.channel == channel
        if greeting.peer.client or (self._role == "client" and line.channel != channel):
            return False
        # An endpoint known by another call is not this one's, whatever was echoed: offers can be overheard.
        return self._book.call_of(greeting.peer.endpoint) in (None, line.call)

    # A greeting that proves the peer to be there.

    def _complete(self, now_ns: int, line: SpeakingChannel, channel: Channel, greeting: CheckedHello) -> None:
        book, claim, peer = self._book, greeting.claim, greeting.peer
        old = [book.sessions.get(peer.instance), line.session]
        if not peer.client:
            old.append(book.by_node_key.get(peer.key))
        if not any(old) and not book.has_room_for(peer):
            raise GreetingRefused("too many sessions", sessions=len(book.sessions))
        session = self._session(line, channel, greeting)
        if line.echoed != claim.nonce:
            line.echo, line.to = claim.nonce, claim.instance
            self.greet(now_ns, line)
        book.drop_offer(line)
        line.echo = line.to = b""
        for before in old:
            if before is not None and book.sessions.get(before.peer.instance) is before:
                again = before.peer.instance == peer.instance
                self.end(now_ns, before, "greeted anew" if again else "another instance took its place", line)
        book.begin(session)
        if line.call is not None:
            self._settle(line.call, peer.endpoint)
        if not peer.client:
            self._judge.bindings.bind(peer)
            self._look_for_doubles(now_ns, peer)
        # Whether the peer completed its side too shows when its first frame, at least the nod, comes in time.
        book.wake(line.call or line, now_ns + book.settings.greeting_timeout_ns)
        self._nod(now_ns, session)
        book.out.append(Met(peer, greeting.hello))

    def _look_for_doubles(self, now_ns: int, peer: Peer) -> None:
        double = self._book.doubles.met(now_ns, peer)
        if double is not None:
            where = " and ".join(double.endpoints)
            reason = f"two processes run with this node's identity, at {where}: stop the one that is a copy"
            self._book.report(now_ns, "identity used twice", reason, f"{double.identifier:08x}")

    def _nod(self, now_ns: int, session: LinkSession) -> None:
        frame = session.close(NOD)
        session.spoke(now_ns)
        self._book.queue(session.line, len(frame))
        self._book.out.append(Send(session.line.channel, frame))

    def _session(self, line: SpeakingChannel, channel: Channel, greeting: CheckedHello) -> LinkSession:
        book, claim, offer = self._book, greeting.claim, line.offer
        assert offer is not None
        us = Party(book.instance, book.identity.key, offer.nonce, offer.share, offer.cluster_key)
        them = Party(claim.instance, claim.key, claim.nonce, claim.share, greeting.cluster_key)
        secret = offer.secret_with(claim.share)
        algorithm = book.settings.seal
        closing = make_seal(algorithm, derive(secret, algorithm, us, them))
        opening = make_seal(algorithm, derive(secret, algorithm, them, us))
        return LinkSession(greeting.peer, claim.turn, line, channel, (closing, opening), offered_ns=offer.made_ns)

    def _settle(self, call: DialAttempt, endpoint: str) -> None:
        """The call has its session: no memory of failures, and the peer's own name for its endpoint."""
        book = self._book
        call.attempt = 0
        call.give_up_ns = 0
        if book.aliases.get(call.advertised) is call:
            del book.aliases[call.advertised]
        call.advertised = endpoint
        if endpoint != call.endpoint:
            book.aliases[endpoint] = call

    def end(self, now_ns: int, session: LinkSession, reason: str, keep: SpeakingChannel | None = None) -> None:
        """The session is over. Its line, unless it is to be kept, goes on without one for as long as it may."""
        book, line = self._book, session.line
        book.end(session, reason)
        if not session.peer.client:
            self._judge.bindings.release(session.peer)
        if line is keep:
            return
        if line.call is None:
            book.out.append(HangUp(line.channel))
            book.close_line(line)
        else:
            line.call.give_up_ns = now_ns + book.settings.greeting_timeout_ns
            book.wake(line.call, line.call.give_up_ns)

    # A greeting that proves nothing yet.

    def _answer(self, now_ns: int, channel: Channel, greeting: CheckedHello) -> None:
        claim = greeting.claim
        call = None if greeting.peer.client else self._call_back(now_ns, channel, greeting)
        if call is None:
            line = self._book.lines.get(channel) or self._open_route(now_ns, channel, greeting)
        else:
            if call.state is DialState.WAITING:
                # Somebody is there now, so there is nothing to wait for.
                self.dial(now_ns, call)
            assert call.line is not None
            line = call.line
        if line.offer is not None and claim.nonce == line.echoed:
            return  # Answered already; the peer's proof is on its way.
        if line.queued_bytes > self._book.settings.queue_bytes_max:
            raise GreetingRefused("queue is full")  # Somebody asks without end and reads nothing.
        line.echo, line.to = claim.nonce, claim.instance
        if call is None or call.state is DialState.CONNECTED:
            self.greet(now_ns, line)

    def _call_back(self, now_ns: int, channel: Channel, greeting: CheckedHello) -> DialAttempt:
        book = self._book
        if isinstance(channel, int):
            call = book.lines[channel].call
            assert call is not None
            return call
        endpoint = greeting.peer.endpoint
        found = book.call_of(endpoint)
        if found is not None:
            session = found.line.session if found.line is not None else None
            if session is not None and session.peer.key != greeting.peer.key:
                # Addresses are only claimed; a session there proves whose this one is.
                raise GreetingRefused("endpoint belongs to another key", endpoint=endpoint)
            return found
        if len(book.calls) >= book.settings.calls_max:
            raise GreetingRefused("too many calls", calls_max=book.settings.calls_max)
        call = book.calls[endpoint] = DialAttempt(endpoint, wanted=False)
        call.give_up_ns = now_ns + book.settings.greeting_timeout_ns
        return call

    def _open_route(self, now_ns: int, channel: Channel, greeting: CheckedHello) -> SpeakingChannel:
        book = self._book
        assert isinstance(channel, bytes)
        if len(book.half_greeted) >= book.settings.half_greeted_max:
            # A greeting takes one round trip, so the oldest is the likeliest to have been abandoned.
            oldest = next(iter(book.half_greeted.values()))
            book.out.append(HangUp(oldest.channel))
            book.close_line(oldest)
            book.counts["half_greeted_hung_up"] += 1
        line = book.open_route(channel, greeting.peer.key)
        book.wake(line, now_ns + book.settings.greeting_timeout_ns)
        return line


def describe(book: LinkTables, channel: Channel) -> str:
    """Whom to blame in a report: the peer if it is known, else the channel."""
    session = book.by_channel.get(channel)
    if session is not None:
        return session.peer.client or f"{session.peer.identifier:08x}"
    if isinstance(channel, bytes):
        return f"route {channel[:17].hex()}"
    line = book.lines.get(channel)
    return line.call.endpoint if line is not None and line.call is not None else f"dial {channel}"
