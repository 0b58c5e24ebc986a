"""The link as one pure core: connections, sessions, and the commands sent in them.

It decides which connections to admit, which endpoints to dial and when, which frames to accept, and which commands to
drop at the byte budget. It does not interpret commands: HELLO is the only one that it decodes.

Invariants:
- a greeting is the first message on a channel, and frames are sealed only in a session;
- commands to one peer are sent in the order of their `Say`; none waits beyond the next `Drained` or `Woken`;
- every command in a `Said` was sealed by that instance for this node, and is delivered once, in the order of sealing;
- bytes queued on a channel never exceed the budget and its reserve by more than the size of greetings;
- every rejection is counted, and reported unless this second's reports of its kind are used up.

`LinkCore` runs on both sides. With a key ring it is a node. Without one it is a client, which dials and is never
dialled.
"""

from __future__ import annotations

from random import Random
from typing import assert_never

from chaplain.core import (
    Admit,
    Arrived,
    Channel,
    Connected,
    Disconnected,
    Drained,
    Flushed,
    HangUp,
    Knocked,
    Refuse,
    Send,
    Woken,
)
from chaplain.errors import Malformed
from chaplain.link.auth.connect_token import TokenChecker
from chaplain.link.auth.hello import GREETING_CLIENT, GREETING_NODE
from chaplain.link.auth.identity import INSTANCE_BYTES, Identity, is_route_of, route_of
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.endpoint import split_endpoint
from chaplain.link.errors import GreetingRefused
from chaplain.link.events import (
    CommandDropped,
    Dismiss,
    Forget,
    InstallKey,
    Introduce,
    LinkEffect,
    LinkInput,
    Meet,
    Missed,
    PinNodeKeys,
    Register,
    RemoveKey,
    Said,
    Say,
    UseKey,
)
from chaplain.link.sessions.dialing import DialAttempt, DialState, OutgoingChannel
from chaplain.link.sessions.duplicate_nodes import DuplicateNode
from chaplain.link.sessions.handshake import Handshake, describe
from chaplain.link.sessions.hello_checks import HelloChecks
from chaplain.link.sessions.session import CONFIRM, LinkSession
from chaplain.link.sessions.tables import LinkTables
from chaplain.link.settings import LinkSettings
from chaplain.wire.limits import FRAME_BYTES_MAX


class LinkCore:
    """All connections of one process. `now_ns` is Unix time in nanoseconds and never decreases."""

    def __init__(
        self,
        identity: Identity,
        instance: bytes,
        settings: LinkSettings,
        rng: Random,
        *,
        ring: KeyRing | None = None,
        pinned: frozenset[bytes] = frozenset(),
    ) -> None:
        """A client (no ring) accepts only pinned nodes. For a node, pinned keys own their identifiers."""
        if len(instance) != INSTANCE_BYTES:
            raise ValueError(f"an instance has {INSTANCE_BYTES} octets, not {len(instance)}")
        if (ring is None) is not (settings.endpoint == ""):
            raise ValueError("a node has a key ring and an endpoint, a client neither")
        self._tables = LinkTables(identity, instance, settings, rng, ring)
        self._handshake = Handshake(self._tables, HelloChecks(self._tables, pinned))
        self._token_checker = TokenChecker(settings, ring, identity.identifier) if ring is not None else None
        self._by_channel = self._tables.by_channel
        self._sessions = self._tables.sessions
        self._client_queues = self._tables.client_queues
        self._queue_bytes_max = settings.queue_bytes_max
        self._reserve_bytes = settings.reserve_bytes
        self._bundle_bytes_max = settings.bundle_bytes_max
        self._waiting: list[LinkSession] = []
        """Sessions with commands that wait to be sealed together. Some may have no commands any more."""
        self.instance = instance
        self.identity = identity
        self.ring = ring
        self.route = route_of(instance)
        """The prefix of the routing ids of all DEALER sockets that the host opens for this process."""
        self.counts = self._tables.counts
        """Counters of actions and refusals by name, for the host's metrics."""

    def __repr__(self) -> str:
        return f"LinkCore({self.identity!r}, {len(self._sessions)} sessions)"

    @property
    def longest_queue_bytes(self) -> int:
        """Bytes queued on the fullest channel. A sender that keeps this below the budget loses nothing there."""
        return max((outgoing.queued_bytes for outgoing in self._tables.outgoing_channels.values()), default=0)

    def unheard_ns(self, now_ns: int, instance: bytes) -> int:
        """An upper bound of the time for which a client had received nothing from us when it sealed its last frame.

        It is the time since we sent the last command which that frame confirms. 0 if there is no such session.
        """
        session = self._sessions.get(instance)
        return 0 if session is None else now_ns - session.confirmed_sent_ns

    def duplicates(self, now_ns: int) -> list[DuplicateNode]:
        """Nodes whose identity is used by two running processes, if this node has had sessions with both."""
        return self._tables.duplicates.current(now_ns)

    def deadline(self) -> int | None:
        # Pending commands are due at once, so that a host which never sends `Drained` delivers them, too.
        return 0 if self._waiting else self._tables.next_ns()

    def step(self, now_ns: int, event: LinkInput) -> list[LinkEffect]:
        # The four most frequent inputs come first: each command causes one of them.
        if type(event) is Drained:
            return self._seal_all(now_ns) if self._waiting else []
        if type(event) is Say:
            return self._on_say(now_ns, event)
        if type(event) is Arrived:
            return self._on_arrived(now_ns, event)
        if type(event) is Flushed:
            self._on_flushed(event)
            return []
        out = self._tables.begin_step()
        match event:
            case Woken():
                out += self._seal_all(now_ns)
                self._on_woken(now_ns)
            case Knocked():
                self._on_knocked(now_ns, event)
            case Connected():
                self._on_connected(now_ns, event)
            case Disconnected():
                self._on_disconnected(now_ns, event)
            case Meet():
                self._meet(now_ns, event)
            case Forget():
                self._forget(now_ns, event)
            case Dismiss():
                self._dismiss(now_ns, event)
            case Introduce():
                self._handshake.introduce(event)
            case InstallKey() | UseKey() | RemoveKey():
                self._change_ring(now_ns, event)
            case Register():
                self._register(now_ns, event)
            case PinNodeKeys():
                self._handshake.pin(event)
            case Drained() | Say() | Arrived() | Flushed():
                raise AssertionError("handled above")
            case _:
                assert_never(event)
        return out

    # Commands and frames.

    def _on_say(self, now_ns: int, event: Say) -> list[LinkEffect]:
        session = self._sessions.get(event.instance)
        if session is None:
            return self._drop(event, "no session")
        command = event.command
        if not command:
            raise ValueError("an empty command is the link's own confirmation")
        size = len(command) + session.overhead_bytes
        total_bytes = session.pending_bytes + size
        # Flow control: commands are dropped at the byte budget instead of queued without a bound. Heartbeats, pings and
        # membership are urgent and have a reserve, so that a full queue does not make a live peer look dead.
        room = self._queue_bytes_max + self._reserve_bytes if event.urgent else self._queue_bytes_max
        outgoing = session.outgoing
        if outgoing.queued_bytes + total_bytes > room:
            return self._drop(event, "queue is full")
        if (
            outgoing.key
            and not event.urgent
            and not self._client_queues.has_room(outgoing.key, outgoing.queued_bytes, total_bytes)
        ):
            return self._drop(event, "too much waits for this client")
        if total_bytes > self._bundle_bytes_max:
            return self._say_in_new_frame(now_ns, session, event, size)
        if not session.pending:
            self._waiting.append(session)
        session.pending.append(command)
        session.pending_bytes = total_bytes
        return []

    def _say_in_new_frame(self, now_ns: int, session: LinkSession, event: Say, size: int) -> list[LinkEffect]:
        """Seal the pending bundle first: the command does not fit into it, and commands must keep their order."""
        if size > FRAME_BYTES_MAX:
            return self._drop(event, "larger than a frame")
        out: list[LinkEffect] = [self._seal(now_ns, session)] if session.pending else []
        session.pending.append(event.command)
        session.pending_bytes = size
        if size > self._bundle_bytes_max:
            out.append(self._seal(now_ns, session))
        else:
            self._waiting.append(session)
        return out

    def _seal(self, now_ns: int, session: LinkSession) -> Send:
        frame = session.close_pending()
        outgoing = session.outgoing
        outgoing.queued_bytes += len(frame)
        if session.peer.client:
            session.record_sent(now_ns)
        if outgoing.key:
            self._client_queues.add(outgoing.key, len(frame))
        return Send(outgoing.channel, frame)

    def _seal_all(self, now_ns: int) -> list[LinkEffect]:
        waiting, self._waiting = self._waiting, []
        return [self._seal(now_ns, session) for session in waiting if session.pending]

    def _drop(self, event: Say, reason: str) -> list[LinkEffect]:
        self.counts["dropped"] += 1
        return [CommandDropped(event.instance, event.command, reason)]

    def _on_arrived(self, now_ns: int, event: Arrived) -> list[LinkEffect]:
        channel, frame = event.channel, event.frame
        session = self._by_channel.get(channel)
        # The peer may greet on a channel with a session: it has ended its side and starts anew.
        if session is None or frame[:1] in _GREETINGS or len(frame) > FRAME_BYTES_MAX:
            return self._on_unsealed(now_ns, channel, frame)
        try:
            commands, missed = session.open(frame)
        except GreetingRefused as refusal:
            return self._reject(now_ns, channel, refusal.reason)
        instance = session.peer.instance
        out: list[LinkEffect] = []
        if missed:
            self.counts["missed"] += missed
            out.append(Missed(instance, missed))
        if commands != NOTHING:
            out.append(Said(instance, commands))
        return out

    def _on_unsealed(self, now_ns: int, channel: Channel, frame: bytes) -> list[LinkEffect]:
        if len(frame) > FRAME_BYTES_MAX:
            return self._reject(now_ns, channel, "oversized")
        if frame[:1] not in _GREETINGS:
            out = self._reject(now_ns, channel, "no session")
            self._dial_back(now_ns, channel)
            return out
        if not self._may_greet_on(channel):
            return self._reject(now_ns, channel, "not a channel for greetings")
        out = self._tables.begin_step()
        self._handshake.on_greeting(now_ns, channel, frame)
        return out

    def _dial_back(self, now_ns: int, channel: Channel) -> None:
        """The peer still uses a session that has ended here. Dial the peer: our greeting informs it of the end."""
        tables = self._tables
        endpoint = tables.ended_endpoints.get(channel, "")
        if endpoint and tables.call_of(endpoint) is None and len(tables.calls) < tables.settings.calls_max:
            call = tables.calls[endpoint] = DialAttempt(endpoint, wanted=False)
            call.give_up_ns = now_ns + tables.settings.greeting_timeout_ns
            self._handshake.dial(now_ns, call)

    def _may_greet_on(self, channel: Channel) -> bool:
        """A node accepts greetings on routes that an instance dialled, a client on its own connections."""
        if isinstance(channel, int):
            return self.ring is None and channel in self._tables.outgoing_channels
        return self.ring is not None and is_route_of(channel, channel[1 : 1 + INSTANCE_BYTES])

    def _reject(self, now_ns: int, channel: Channel, reason: str) -> list[LinkEffect]:
        self.counts["frames_rejected"] += 1
        if reason == "replayed":
            self.counts["replays_rejected"] += 1
        out = self._tables.begin_step()
        self._tables.report(now_ns, "frame rejected", reason, describe(self._tables, channel))
        return out

    def _on_flushed(self, event: Flushed) -> None:
        outgoing = self._tables.outgoing_channels.get(event.channel)
        if outgoing is not None:
            # A client may reconnect under its old routing id while the host still reports flushed bytes of the old
            # connection, so the reported size may exceed what is queued.
            self._tables.add_queued(outgoing, -min(event.size, outgoing.queued_bytes))

    # Admission of connections (ZAP).

    def _on_knocked(self, now_ns: int, event: Knocked) -> None:
        tables = self._tables
        try:
            if self._token_checker is None:
                raise GreetingRefused("clients accept no connections")
            user = self._token_checker.check(now_ns, tables.clients, event.name, event.proof)
        except (Malformed, GreetingRefused) as error:
            refusal = error if isinstance(error, GreetingRefused) else GreetingRefused("malformed", error=str(error))
            tables.counts["tokens_refused"] += 1
            if refusal.reason == "replayed":
                tables.counts["replays_rejected"] += 1
            tables.report(now_ns, "knock refused", refusal.reason, event.address, **refusal.detail)
            tables.out.append(Refuse(event.request, refusal.reason))
        else:
            tables.counts["tokens_admitted"] += 1
            tables.out.append(Admit(event.request, user))

    # Calls: endpoints to keep a session with.

    def _meet(self, now_ns: int, event: Meet) -> None:
        tables = self._tables
        split_endpoint(event.endpoint)
        call = tables.call_of(event.endpoint)
        if call is not None:
            call.wanted = True
        elif event.endpoint == tables.settings.endpoint:
            tables.report(now_ns, "meeting refused", "our own endpoint", event.endpoint)
        elif len(tables.calls) >= tables.settings.calls_max:
            tables.counts["meetings_refused"] += 1
            tables.report(now_ns, "meeting refused", "too many calls", event.endpoint)
        else:
            call = tables.calls[event.endpoint] = DialAttempt(event.endpoint, wanted=True)
            self._handshake.dial(now_ns, call)

    def _forget(self, now_ns: int, event: Forget) -> None:
        call = self._tables.call_of(event.endpoint)
        if call is None:
            return
        self._tables.out += self._seal_all(now_ns)
        if call.outgoing is not None and call.outgoing.session is not None:
            self._handshake.end_session(now_ns, call.outgoing.session, "forgotten")
        self._tables.drop_call(call)

    def _dismiss(self, now_ns: int, event: Dismiss) -> None:
        session = self._sessions.get(event.instance)
        if session is None:
            return
        assert session.outgoing.call is None, "a node is forgotten"
        self._tables.out += self._seal_all(now_ns)
        self._handshake.end_session(now_ns, session, "dismissed", keep=session.outgoing)
        self._tables.mark_half_greeted(session.outgoing)
        self._tables.set_timer(session.outgoing, now_ns + self._tables.settings.greeting_timeout_ns)
        self._handshake.greet(now_ns, session.outgoing)

    def _on_connected(self, now_ns: int, event: Connected) -> None:
        outgoing = self._tables.outgoing_channels.get(event.dial)
        if outgoing is None or outgoing.call is None or outgoing.call.state is not DialState.DIALLING:
            return
        outgoing.call.state = DialState.CONNECTED
        self._tables.set_timer(outgoing.call, now_ns + self._tables.settings.greeting_timeout_ns)
        self._handshake.greet(now_ns, outgoing)

    def _on_disconnected(self, now_ns: int, event: Disconnected) -> None:
        """Redial a lost outgoing connection. A peer that lost its connection to us greets again, and so do we."""
        tables = self._tables
        outgoing = tables.outgoing_channels.get(event.channel)
        heard = tables.by_channel.get(event.channel)
        if outgoing is not None:
            if outgoing.session is not None:
                self._handshake.end_session(now_ns, outgoing.session, event.reason, keep=outgoing)
            if outgoing.call is None:
                tables.close_outgoing(outgoing)
            else:
                outgoing.call.give_up_ns = outgoing.call.give_up_ns or now_ns + tables.settings.greeting_timeout_ns
                self._handshake.schedule_redial(now_ns, outgoing.call)
        elif heard is not None:
            out = heard.outgoing
            self._handshake.end_session(now_ns, heard, event.reason)
            self._handshake.greet(now_ns, out)

    def _on_woken(self, now_ns: int) -> None:
        while (owner := self._tables.pop_due(now_ns)) is not None:
            if isinstance(owner, DialAttempt) and owner.state is DialState.WAITING:
                self._handshake.dial(now_ns, owner)
                continue
            outgoing = owner.outgoing if isinstance(owner, DialAttempt) else owner
            assert outgoing is not None
            if outgoing.session is None or not outgoing.session.heard:
                self._abandon(now_ns, outgoing)

    def _abandon(self, now_ns: int, outgoing: OutgoingChannel) -> None:
        """No session was completed on this channel in time, or the peer confirmed it with no frame."""
        tables, call = self._tables, outgoing.call
        tables.counts["greetings_unanswered"] += 1
        tables.report(
            now_ns, "greeting unanswered", call.state.value if call else "route", describe(tables, outgoing.channel)
        )
        if outgoing.session is not None:
            self._handshake.end_session(now_ns, outgoing.session, "never confirmed", keep=outgoing)
        tables.out.append(HangUp(outgoing.channel))
        if call is None:
            tables.close_outgoing(outgoing)
        else:
            self._handshake.schedule_redial(now_ns, call)

    # Keys and clients.

    def _change_ring(self, now_ns: int, event: InstallKey | UseKey | RemoveKey) -> None:
        try:
            if self.ring is None:
                raise GreetingRefused("a client has no key ring")
            match event:
                case InstallKey():
                    self.ring.install(event.key)
                case UseKey():
                    self.ring.use(event.key_id)
                case RemoveKey():
                    self._remove_key(now_ns, self.ring, event.key_id)
                case _:
                    assert_never(event)
        except GreetingRefused as refusal:
            self._tables.report(now_ns, "key ring change refused", refusal.reason, "", **refusal.detail)

    def _remove_key(self, now_ns: int, ring: KeyRing, key_id: bytes) -> None:
        """Sessions continue, because they have their own keys. Offers made under the removed key are replaced."""
        key = ring.get(key_id)
        ring.remove(key_id)
        for outgoing in list(self._tables.outgoing_channels.values()):
            if outgoing.offer is not None and outgoing.offer.cluster_key == key:
                self._tables.drop_offer(outgoing)
                self._handshake.greet(now_ns, outgoing)

    def _register(self, now_ns: int, event: Register) -> None:
        tables = self._tables
        tables.clients = dict(event.clients)
        for outgoing in list(tables.outgoing_channels.values()):
            if outgoing.call is not None:
                continue
            session = outgoing.session
            if session is None and outgoing.key not in tables.clients:
                tables.out.append(HangUp(outgoing.channel))
                tables.close_outgoing(outgoing)
            elif session is not None and tables.clients.get(outgoing.key) != session.peer.client:
                self._handshake.end_session(now_ns, session, "client removed")


NOTHING = (CONFIRM,)
_GREETINGS = (bytes((GREETING_NODE,)), bytes((GREETING_CLIENT,)))
