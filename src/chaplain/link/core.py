"""The link: connections, sessions, and what may be said in them, as one pure core.

Decides who is let in, whom to dial and when, which frames are accepted, and what is dropped at the byte budget.
Refuses to know what a command means: it opens HELLO and nothing else.

Invariants:
- nothing is sent on a channel before its greeting, and nothing sealed before its session;
- commands to one peer leave in the order they were said; none waits beyond the next `Drained` or `Woken`;
- what is given upwards as `Said` was sealed by that very instance for us, comes once, and in the order it was sealed;
- bytes queued on a channel never pass the budget and its reserve by more than greetings;
- every rejection is counted, and reported unless a second's reports of its kind are spent.

`LinkCore` runs on both sides: with a key ring it is a node, without one a client, which dials and is never dialled.
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
    Pin,
    Register,
    RemoveKey,
    Said,
    Say,
    UseKey,
)
from chaplain.link.sessions.dialing import DialAttempt, DialState, SpeakingChannel
from chaplain.link.sessions.duplicate_nodes import Double
from chaplain.link.sessions.handshake import Handshake, describe
from chaplain.link.sessions.hello_checks import HelloChecks
from chaplain.link.sessions.session import NOD, LinkSession
from chaplain.link.sessions.tables import LinkTables
from chaplain.link.settings import LinkSettings
from chaplain.wire.limits import FRAME_BYTES_MAX


class LinkCore:
    """One side of all its connections. `now_ns` is the time of day in Unix nanoseconds and never goes back."""

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
        """A client (no ring) talks only to pinned nodes; a node believes pinned keys before any other."""
        if len(instance) != INSTANCE_BYTES:
            raise ValueError(f"an instance has {INSTANCE_BYTES} octets, not {len(instance)}")
        if (ring is None) is not (settings.endpoint == ""):
            raise ValueError("a node has a key ring and an endpoint, a client neither")
        self._book = LinkTables(identity, instance, settings, rng, ring)
        self._handshake = Handshake(self._book, HelloChecks(self._book, pinned))
        self._door = TokenChecker(settings, ring, identity.identifier) if ring is not None else None
        self._by_channel = self._book.by_channel
        self._sessions = self._book.sessions
        self._client_queues = self._book.client_queues
        self._queue_bytes_max = settings.queue_bytes_max
        self._reserve_bytes = settings.reserve_bytes
        self._bundle_bytes_max = settings.bundle_bytes_max
        self._waiting: list[LinkSession] = []
        """Sessions with commands that wait to be sealed together, and maybe some that have none any more."""
        self.instance = instance
        self.identity = identity
        self.ring = ring
        self.route = route_of(instance)
        """What the routing id of every DEALER begins with that the host dials for us."""
        self.counts = self._book.counts
        """What was done and refused so far, by name, for the host's metrics."""

    def __repr__(self) -> str:
        return f"LinkCore({self.identity!r}, {len(self._sessions)} sessions)"

    @property
    def longest_queue_bytes(self) -> int:
        """What waits on the fullest channel: a sender that keeps it below the budget loses nothing there."""
        return max((line.queued_bytes for line in self._book.lines.values()), default=0)

    def unheard_ns(self, now_ns: int, instance: bytes) -> int:
        """For how long a client may have heard nothing of us when it sealed the last frame that came from it: since we
        said the last of what that frame confirms. 0 if there is no such session.
        """
        session = self._sessions.get(instance)
        return 0 if session is None else now_ns - session.heard_us_ns

    def doubles(self, now_ns: int) -> list[Double]:
        """Nodes that run twice, as far as we have met both."""
        return self._book.doubles.now(now_ns)

    def deadline(self) -> int | None:
        # A host that never says `Drained` must not keep what was said: it is overdue.
        return 0 if self._waiting else self._book.next_ns()

    def step(self, now_ns: int, event: LinkInput) -> list[LinkEffect]:
        # Those that come with every command go first.
        if type(event) is Drained:
            return self._seal_all(now_ns) if self._waiting else []
        if type(event) is Say:
            return self._say(now_ns, event)
        if type(event) is Arrived:
            return self._arrived(now_ns, event)
        if type(event) is Flushed:
            self._flushed(event)
            return []
        out = self._book.begin_step()
        match event:
            case Woken():
                out += self._seal_all(now_ns)
                self._woken(now_ns)
            case Knocked():
                self._knocked(now_ns, event)
            case Connected():
                self._connected(now_ns, event)
            case Disconnected():
                self._disconnected(now_ns, event)
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
            case Pin():
                self._handshake.pin(event)
            case Drained() | Say() | Arrived() | Flushed():
                raise AssertionError("taken above")
            case _:
                assert_never(event)
        return out

    # Talk.

    def _say(self, now_ns: int, event: Say) -> list[LinkEffect]:
        session = self._sessions.get(event.instance)
        if session is None:
            return self._drop(event, "no session")
        command = event.command
        if not command:
            raise ValueError("an empty command is the link's own nod")
        size = len(command) + session.overhead_bytes
        together = session.pending_bytes + size
        room = self._queue_bytes_max + self._reserve_bytes if event.urgent else self._queue_bytes_max
        line = session.line
        if line.queued_bytes + together > room:
            return self._drop(event, "queue is full")
        if line.key and not event.urgent and not self._client_queues.has_room(line.key, line.queued_bytes, together):
            return self._drop(event, "too much waits for this client")
        if together > self._bundle_bytes_max:
            return self._say_apart(now_ns, session, event, size)
        if not session.pending:
            self._waiting.append(session)
        session.pending.append(command)
        session.pending_bytes = together
        return []

    def _say_apart(self, now_ns: int, session: LinkSession, event: Say, size: int) -> list[LinkEffect]:
        """It does not fit into the bundle at hand: that one leaves first, so that the order is kept."""
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
        if session.peer.client:
            session.spoke(now_ns)
        self._book.queue(session.line, len(frame))
        return Send(session.line.channel, frame)

    def _seal_all(self, now_ns: int) -> list[LinkEffect]:
        waiting, self._waiting = self._waiting, []
        return [self._seal(now_ns, session) for session in waiting if session.pending]

    def _drop(self, event: Say, reason: str) -> list[LinkEffect]:
        self.counts["dropped"] += 1
        return [CommandDropped(event.instance, event.command, reason)]

    def _arrived(self, now_ns: int, event: Arrived) -> list[LinkEffect]:
        channel, frame = event.channel, event.frame
        session = self._by_channel.get(channel)
        if session is None or frame[:1] in _GREETINGS or len(frame) > FRAME_BYTES_MAX:
            return self._arrived_unsealed(now_ns, channel, frame)
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

    def _arrived_unsealed(self, now_ns: int, channel: Channel, frame: bytes) -> list[LinkEffect]:
        if len(frame) > FRAME_BYTES_MAX:
            return self._reject(now_ns, channel, "oversized")
        if frame[:1] not in _GREETINGS:
            out = self._reject(now_ns, channel, "no session")
            self._call_back(now_ns, channel)
            return out
        if not self._may_greet_on(channel):
            return self._reject(now_ns, channel, "not a channel for greetings")
        out = self._book.begin_step()
        self._handshake.hear(now_ns, channel, frame)
        return out

    def _call_back(self, now_ns: int, channel: Channel) -> None:
        """Somebody speaks as if our session had not ended, so it was not told: our greeting tells it."""
        book = self._book
        endpoint = book.former.get(channel, "")
        if endpoint and book.call_of(endpoint) is None and len(book.calls) < book.settings.calls_max:
            call = book.calls[endpoint] = DialAttempt(endpoint, wanted=False)
            call.give_up_ns = now_ns + book.settings.greeting_timeout_ns
            self._handshake.dial(now_ns, call)

    def _may_greet_on(self, channel: Channel) -> bool:
        """Nodes are greeted on routes of instances, clients on their own dials."""
        if isinstance(channel, int):
            return self.ring is None and channel in self._book.lines
        return self.ring is not None and is_route_of(channel, channel[1 : 1 + INSTANCE_BYTES])

    def _reject(self, now_ns: int, channel: Channel, reason: str) -> list[LinkEffect]:
        self.counts["frames_rejected"] += 1
        if reason == "replayed":
            self.counts["replays_rejected"] += 1
        out = self._book.begin_step()
        self._book.report(now_ns, "frame rejected", reason, describe(self._book, channel))
        return out

    def _flushed(self, event: Flushed) -> None:
        line = self._book.lines.get(event.channel)
        if line is not None:
            # A route may come back under its old name with what was queued before still being told.
            self._book.queue(line, -min(event.size, line.queued_bytes))

    # The door.

    def _knocked(self, now_ns: int, event: Knocked) -> None:
        book = self._book
        try:
            if self._door is None:
                raise GreetingRefused("a client has no door")
            user = self._door.judge(now_ns, book.clients, event.name, event.proof)
        except (Malformed, GreetingRefused) as error:
            refusal = error if isinstance(error, GreetingRefused) else GreetingRefused("malformed", error=str(error))
            book.counts["knocks_refused"] += 1
            if refusal.reason == "replayed":
                book.counts["replays_rejected"] += 1
            book.report(now_ns, "knock refused", refusal.reason, event.address, **refusal.detail)
            book.out.append(Refuse(event.request, refusal.reason))
        else:
            book.counts["knocks_admitted"] += 1
            book.out.append(Admit(event.request, user))

    # Calls.

    def _meet(self, now_ns: int, event: Meet) -> None:
        book = self._book
        split_endpoint(event.endpoint)
        call = book.call_of(event.endpoint)
        if call is not None:
            call.wanted = True
        elif event.endpoint == book.settings.endpoint:
            book.report(now_ns, "meeting refused", "our own endpoint", event.endpoint)
        elif len(book.calls) >= book.settings.calls_max:
            book.counts["meetings_refused"] += 1
            book.report(now_ns, "meeting refused", "too many calls", event.endpoint)
        else:
            call = book.calls[event.endpoint] = DialAttempt(event.endpoint, wanted=True)
            self._handshake.dial(now_ns, call)

    def _forget(self, now_ns: int, event: Forget) -> None:
        call = self._book.call_of(event.endpoint)
        if call is None:
            return
        self._book.out += self._seal_all(now_ns)
        if call.line is not None and call.line.session is not None:
            self._handshake.end(now_ns, call.line.session, "forgotten")
        self._book.drop_call(call)

    def _dismiss(self, now_ns: int, event: Dismiss) -> None:
        session = self._sessions.get(event.instance)
        if session is None:
            return
        assert session.line.call is None, "a node is forgotten"
        self._book.out += self._seal_all(now_ns)
        self._handshake.end(now_ns, session, "dismissed", keep=session.line)
        self._book.keep_route(session.line)
        self._book.wake(session.line, now_ns + self._book.settings.greeting_timeout_ns)
        self._handshake.greet(now_ns, session.line)

    def _connected(self, now_ns: int, event: Connected) -> None:
        line = self._book.lines.get(event.dial)
        if line is None or line.call is None or line.call.state is not DialState.DIALLING:
            return
        line.call.state = DialState.CONNECTED
        self._book.wake(line.call, now_ns + self._book.settings.greeting_timeout_ns)
        self._handshake.greet(now_ns, line)

    def _disconnected(self, now_ns: int, event: Disconnected) -> None:
        """A lost dial is dialled again; a peer that lost its dial to us will greet anew, and so do we."""
        book = self._book
        line = book.lines.get(event.channel)
        heard = book.by_channel.get(event.channel)
        if line is not None:
            if line.session is not None:
                self._handshake.end(now_ns, line.session, event.reason, keep=line)
            if line.call is None:
                book.close_line(line)
            else:
                line.call.give_up_ns = line.call.give_up_ns or now_ns + book.settings.greeting_timeout_ns
                self._handshake.wait(now_ns, line.call)
        elif heard is not None:
            out = heard.line
            self._handshake.end(now_ns, heard, event.reason)
            self._handshake.greet(now_ns, out)

    def _woken(self, now_ns: int) -> None:
        while (owner := self._book.due(now_ns)) is not None:
            if isinstance(owner, DialAttempt) and owner.state is DialState.WAITING:
                self._handshake.dial(now_ns, owner)
                continue
            line = owner.line if isinstance(owner, DialAttempt) else owner
            assert line is not None
            if line.session is None or not line.session.heard:
                self._abandon(now_ns, line)

    def _abandon(self, now_ns: int, line: SpeakingChannel) -> None:
        """No session came of this line in time, or none that the peer has confirmed with a single frame."""
        book, call = self._book, line.call
        book.counts["greetings_unanswered"] += 1
        book.report(now_ns, "greeting unanswered", call.state.value if call else "route", describe(book, line.channel))
        if line.session is not None:
            self._handshake.end(now_ns, line.session, "never confirmed", keep=line)
        book.out.append(HangUp(line.channel))
        if call is None:
            book.close_line(line)
        else:
            self._handshake.wait(now_ns, call)

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
            self._book.report(now_ns, "key ring change refused", refusal.reason, "", **refusal.detail)

    def _remove_key(self, now_ns: int, ring: KeyRing, key_id: bytes) -> None:
        """Sessions live on, since their keys are their own; offers made under the key are made anew."""
        key = ring.get(key_id)
        ring.remove(key_id)
        for line in list(self._book.lines.values()):
            if line.offer is not None and line.offer.cluster_key == key:
                self._book.drop_offer(line)
                self._handshake.greet(now_ns, line)

    def _register(self, now_ns: int, event: Register) -> None:
        book = self._book
        book.clients = dict(event.clients)
        for line in list(book.lines.values()):
            if line.call is not None:
                continue
            session = line.session
            if session is None and line.key not in book.clients:
                book.out.append(HangUp(line.channel))
                book.close_line(line)
            elif session is not None and book.clients.get(line.key) != session.peer.client:
                self._handshake.end(now_ns, session, "client removed")


NOTHING = (NOD,)
_GREETINGS = (bytes((GREETING_NODE,)), bytes((GREETING_CLIENT,)))
