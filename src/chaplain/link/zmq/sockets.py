"""ZeroMQ sockets of a node or client: performs the link's socket effects and turns socket events into inputs.

There is one ROUTER, if an endpoint is given, for incoming connections, and one DEALER for each dial. A DEALER is closed
at its first disconnection, because a DEALER that reconnects by itself would deliver its queue without a greeting. This
module decides nothing. The core admits connections, interprets frames and bounds the queues.

ZeroMQ signals through one file descriptor for each socket, and only when something changed since the socket was last
found empty. So each socket is drained until it is empty, or else is listed in `_to_drain`. Writing to a socket may have
consumed a signal, so the socket is drained once more before the next wait. An instance with a ROUTER does not do this
for its DEALERs, because its peers answer on connections of their own, and reading an empty DEALER costs an exception.

Invariants: frames of a channel keep their order in both directions; every dial ends in exactly one `Disconnected`
unless the core hung up first; `Connected` follows only a finished handshake; no queue exceeds its bound.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias, assert_never

import zmq

from chaplain.core import (
    Admit,
    Arrived,
    Channel,
    Connected,
    Dial,
    Disconnected,
    Flushed,
    HangUp,
    Knocked,
    Refuse,
    Send,
)
from chaplain.link.auth.identity import DIAL_BYTES, route_of
from chaplain.link.zmq.accept_limiter import STRANGERS_MAX, AcceptLimiter
from chaplain.link.zmq.dealer import DIAL_TIMEOUT_NS, UP, DealerSocket, make_socket
from chaplain.link.zmq.fragments import PIECE_BYTES_MAX, Reassembler, is_piece
from chaplain.link.zmq.poller import make_poll
from chaplain.link.zmq.send_queue import OUTBOX_BYTES_MAX, Outbox
from chaplain.link.zmq.stalled_messages import StalledMessages
from chaplain.link.zmq.zap import ZapHandler

SocketInput: TypeAlias = Knocked | Connected | Disconnected | Arrived | Flushed
SocketEffect: TypeAlias = Admit | Refuse | Dial | HangUp | Send

JOINING_BYTES_MAX = 64 * 1024 * 1024
DRAIN_MESSAGES_MAX = 256
"""Messages read from one socket in one wake-up, so that timers and other sockets get their turn."""
FLUSH_BYTES = 8 * 1024
"""`Flushed` waits until this many bytes were flushed, or there is no other input: each input costs a step."""
EAGER_FLUSH_BYTES = 64 * 1024
"""Above this size, `wait` returns at once to report flushed bytes."""
BLOCKED_RETRY_NS = 5_000_000
"""A read can consume ZeroMQ's signal that a full queue has room, so a blocked queue is retried after this time."""

# Plain integers: combining two of pyzmq's enum flags costs more than sending a message.
_NOW = int(zmq.NOBLOCK)
_NOW_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_CAN_READ = int(zmq.POLLIN)
_SOURCE = int(zmq.SRCFD)


class Sockets:
    """The connections of one instance. All methods but `wake` belong to one thread."""

    def __init__(
        self,
        instance: bytes,
        bind: str | None = None,
        strangers_max: int = STRANGERS_MAX,
        members: Iterable[str] = (),
    ) -> None:
        """`members` are the addresses of the cluster's nodes, for which the accept limiter reserves places."""
        self.counts: Counter[str] = Counter()
        self.endpoint = ""
        self.routing_id = route_of(instance)
        self._inputs: list[SocketInput] = []
        self._flushed: dict[Channel, int] = {}
        self._flushed_bytes = 0
        """Over all channels, since the last `Flushed`."""
        self._outboxes: dict[Channel, Outbox] = {}
        self._dialled_stalls = StalledMessages(self.counts, self._drain_dealers)
        self._reassembler = Reassembler(self.counts, JOINING_BYTES_MAX)
        self._connections: dict[int, DealerSocket] = {}
        self._dialling: dict[int, int] = {}
        self._to_drain: dict[Callable[[], None], None] = {}
        """Functions to call before the next wait, because their sockets may have more to read without a signal."""
        self._poll = make_poll()
        self.watch = self._poll.watch
        """Let `wait` call a function whenever a descriptor of the host is readable."""
        self.wake = self._poll.wake
        """Make `wait` return soon. The only method that any thread may call."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8192)
        self._router: zmq.Socket[bytes] | None = None
        self._zap: ZapHandler | None = None
        self._accept_limiter: AcceptLimiter | None = None
        if bind is not None:
            try:
                self._bind(bind, strangers_max, members)
            except BaseException:
                self.close()
                raise

    def _bind(self, endpoint: str, strangers_max: int, members: Iterable[str]) -> None:
        limiter = AcceptLimiter(endpoint, self.counts, self.wake, strangers_max, members)
        self._zap = ZapHandler(self._context, self.counts)
        self._watch_zmq(self._zap.socket, self._drain_zap)
        router = make_socket(self._context, zmq.ROUTER)
        router.setsockopt(zmq.PLAIN_SERVER, 1)
        router.setsockopt(zmq.ZAP_DOMAIN, b"chaplain")
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router, self._accept_limiter, self.endpoint = router, limiter, limiter.endpoint
        limiter.attach(router)
        self._watch_zmq(router, self._drain_router)

    # Waiting.

    def wait(self, timeout_ns: int | None = None) -> list[SocketInput]:
        """Return the events since the last call; block up to `timeout_ns` while there are none."""
        if self._accept_limiter is not None and self._accept_limiter.stalled.wants_drain:
            self._to_drain[self._drain_router] = None
        stalled, self._to_drain = self._to_drain, {}
        if self._outboxes:
            stalled.update((self._drain_of(channel), None) for channel in self._outboxes)
        for drain in stalled:
            drain()
        self._poll.run(self._timeout_s(timeout_ns))
        if self._dialling:
            self._expire_dials()
        self._dialled_stalls.check_if_due(time.monotonic_ns())
        inputs, self._inputs = self._inputs, []
        if self._flushed and (not inputs or self._flushed_bytes >= FLUSH_BYTES):
            inputs += [Flushed(channel, size) for channel, size in self._flushed.items()]
            self._flushed, self._flushed_bytes = {}, 0
        return inputs

    def fileno(self) -> int:
        """Readable when an event has happened, for an event loop that polls descriptors instead of calling `wait`."""
        return self._poll.fileno()

    def idle_timeout_s(self, timeout_ns: int | None) -> float | None:
        """How long `wait` need not be called while that descriptor is not readable; None means without limit."""
        left_s = self._timeout_s(timeout_ns)
        return None if left_s < 0 else left_s

    @property
    def queued_bytes(self) -> int:
        return sum(outbox.size for outbox in self._outboxes.values())

    def _timeout_s(self, timeout_ns: int | None) -> float:
        if self._inputs or self._to_drain or self._flushed_bytes >= EAGER_FLUSH_BYTES:
            return 0
        if timeout_ns is not None and not self._outboxes and not self._dialling:
            return timeout_ns / 1e9 if timeout_ns > 0 else 0
        bounds_ns = [] if timeout_ns is None else [timeout_ns]
        if self._outboxes:
            bounds_ns.append(BLOCKED_RETRY_NS)
        if self._dialling:
            bounds_ns.append(next(iter(self._dialling.values())) - time.monotonic_ns())
        # epoll rounds up to whole milliseconds, so that a wait never ends before its deadline.
        return max(0, min(bounds_ns)) / 1e9 if bounds_ns else -1

    def _watch_zmq(self, socket: zmq.Socket[bytes], drain: Callable[[], None]) -> None:
        self._poll.watch(socket.fileno(), drain)
        self._to_drain[drain] = None  # it may have signalled before it was watched

    def _drain_of(self, channel: Channel) -> Callable[[], None]:
        return self._connections[channel].drain if isinstance(channel, int) else self._drain_router

    # Input.

    def _drain_zap(self) -> None:
        assert self._zap is not None
        try:
            for _ in range(DRAIN_MESSAGES_MAX):
                knocked = self._zap.take()
                if knocked is not None:
                    self._inputs.append(knocked)
        except zmq.Again:
            return
        self._to_drain[self._drain_zap] = None

    def _drain_router(self) -> None:
        router, limiter = self._router, self._accept_limiter
        assert router is not None
        assert limiter is not None
        receive, stalled = router.recv, limiter.stalled
        for _ in range(DRAIN_MESSAGES_MAX):
            # A ROUTER, unlike a DEALER (see below), keeps messages that arrived before a connection ended. So reading
            # its events first loses nothing.
            if not int(router.get(_EVENTS)) & _CAN_READ:
                stalled.all_drained()
                break
            route, part = receive(_NOW), receive(_NOW, copy=False)
            stalled.message_received(int(part.get(_SOURCE)))
            self._receive_part(router, route, part)
        else:
            self._to_drain[self._drain_router] = None
            return
        if self._outboxes:
            for channel in [channel for channel in self._outboxes if isinstance(channel, bytes)]:
                self._flush(channel)

    def _drain_dealer(self, dial: int) -> None:
        connection = self._connections.get(dial)
        if connection is None:
            return
        try:
            # Read before any other call of ZeroMQ, so that received messages come before the event that the
            # connection ended (`dealer.NEVER_MS` keeps ZeroMQ from discarding them).
            for _ in range(DRAIN_MESSAGES_MAX):
                part = connection.dealer.recv(_NOW, copy=False)
                self._dialled_stalls.message_received(int(part.get(_SOURCE)))
                self._receive_part(connection.dealer, dial, part)
            self._to_drain[connection.drain] = None
        except zmq.Again:
            self._flush(dial)

    def _drain_dealers(self) -> None:
        """Read all waiting messages of all dialled connections."""
        for connection in list(self._connections.values()):
            self._to_drain.pop(connection.drain, None)
            connection.drain()
        if not any(connection.drain in self._to_drain for connection in self._connections.values()):
            self._dialled_stalls.all_drained()

    def _receive_part(self, socket: zmq.Socket[bytes], channel: Channel, part: zmq.Frame) -> None:
        if part.more:
            # Our frames never have a second part. Skip the whole message, or its parts would be read as routing ids.
            self.counts["link_multipart_discarded"] += 1
            while part.more:
                part = socket.recv(_NOW, copy=False)
            return
        # All pieces but the last have this size; ZeroMQ's own buffer saves a copy of them.
        message = part.buffer if len(part) == PIECE_BYTES_MAX else part.bytes
        frame = self._reassembler.take(channel, message)
        if frame is not None:
            self._inputs.append(Arrived(channel, frame))

    def _drain_monitor(self, dial: int) -> None:
        while (connection := self._connections.get(dial)) is not None:
            try:
                event = connection.next_event()
            except zmq.Again:
                return
            if event == UP:
                del self._dialling[dial]
                self._dialled_stalls.opened(connection.descriptor)
                self._inputs.append(Connected(dial))
            else:
                self._drain_dealer(dial)  # what arrived before the end still counts
                self._disconnect(dial, event)

    def _expire_dials(self) -> None:
        now_ns = time.monotonic_ns()
        for dial, give_up_ns in list(self._dialling.items()):
            if give_up_ns > now_ns:
                break
            self._disconnect(dial, "nobody answers in time")

    # Effects.

    def perform(self, effect: SocketEffect) -> None:
        match effect:
            case Send():
                self.send(effect.channel, effect.frame)
            case Dial():
                self._dial(effect)
            case HangUp():
                self._discard(effect.channel)
            case Admit() | Refuse():
                assert self._zap is not None, "only a bound instance admits connections"
                self._zap.answer(effect)
                self._to_drain[self._drain_zap] = None
            case _:
                assert_never(effect)

    def _dial(self, effect: Dial) -> None:
        dial = effect.dial
        assert dial not in self._connections, f"dial {dial} is in use"
        routing_id = self.routing_id + os.urandom(DIAL_BYTES)
        try:
            connection = DealerSocket(self._context, routing_id, effect, partial(self._drain_dealer, dial))
        except zmq.ZMQError as error:  # no descriptors are left; others may be given back until it is dialled again
            self._disconnect(dial, f"cannot dial {effect.endpoint}: {error.strerror}")
            return
        self._connections[dial] = connection
        self._dialling[dial] = time.monotonic_ns() + DIAL_TIMEOUT_NS
        self._watch_zmq(connection.dealer, connection.drain)
        self._watch_zmq(connection.monitor, partial(self._drain_monitor, dial))
        try:
            connection.dealer.connect(effect.endpoint)
        except zmq.ZMQError as error:
            self._disconnect(dial, f"cannot dial {effect.endpoint}: {error.strerror}")

    def send(self, channel: Channel, frame: bytes) -> None:
        if isinstance(channel, int) and channel not in self._connections:
            return  # the core has not processed its `Disconnected` yet
        outbox = self._outboxes.get(channel)
        if outbox is None:
            if len(frame) <= PIECE_BYTES_MAX and self._send_at_once(channel, frame):
                return
            outbox = self._outboxes[channel] = Outbox()
        outbox.put(frame)
        self._flush(channel)
        if outbox.size > OUTBOX_BYTES_MAX and channel in self._outboxes:
            self._disconnect(channel, "it does not keep up")

    def _send_at_once(self, channel: Channel, frame: bytes) -> bool:
        """Whether ZeroMQ accepted the frame, or the channel is lost.

        Only for frames that need no cutting, with no queue.
        """
        assert not is_piece(frame), "no frame begins like a piece"
        router = self._router
        try:
            if isinstance(channel, int):
                connection = self._connections[channel]
                connection.dealer.send(frame, _NOW)
                if router is None:
                    self._to_drain[connection.drain] = None
            else:
                assert router is not None, "only a bound instance has routes"
                router.send(channel, _NOW_MORE)
                router.send(frame, _NOW)
                self._to_drain[self._drain_router] = None
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            self._disconnect(channel, error.strerror or "unreachable")
            return True
        size = len(frame)
        self._flushed[channel] = self._flushed.get(channel, 0) + size
        self._flushed_bytes += size
        return True

    def _flush(self, channel: Channel) -> None:
        """Pass as much as ZeroMQ accepts. It signals when it can accept more."""
        outbox = self._outboxes.get(channel)
        if outbox is None:
            return
        try:
            sent_bytes = outbox.flush(
                self._router_send(channel) if isinstance(channel, bytes) else self._dealer_send(channel)
            )
        except zmq.ZMQError as error:
            self._disconnect(channel, error.strerror or "unreachable")
            return
        if sent_bytes:
            self._to_drain[self._drain_of(channel)] = None
            self._flushed[channel] = self._flushed.get(channel, 0) + sent_bytes
            self._flushed_bytes += sent_bytes
        if outbox.empty:
            del self._outboxes[channel]

    def _dealer_send(self, dial: int) -> Callable[[bytes], None]:
        send = self._connections[dial].dealer.send
        return lambda message: send(message, _NOW)

    def _router_send(self, route: bytes) -> Callable[[bytes], None]:
        assert self._router is not None, "only a bound instance has routes"
        send = self._router.send

        def send_routed(message: bytes) -> None:
            send(route, _NOW_MORE)
            send(message, _NOW)

        return send_routed

    # Ends of connections.

    def _disconnect(self, channel: Channel, reason: str) -> None:
        if isinstance(channel, bytes):
            self._to_drain[self._drain_router] = None  # the failed write may have consumed a signal
        self._discard(channel)
        self._inputs.append(Disconnected(channel, reason))

    def _discard(self, channel: Channel) -> None:
        self._outboxes.pop(channel, None)
        self._flushed.pop(channel, None)
        self._reassembler.forget(channel)
        if isinstance(channel, int):
            self._dialling.pop(channel, None)
            connection = self._connections.pop(channel, None)
            if connection is not None:
                self._close_connection(connection, linger_ms=0)

    def _close_connection(self, connection: DealerSocket, linger_ms: int) -> None:
        self._poll.unwatch(connection.dealer.fileno())
        self._poll.unwatch(connection.monitor.fileno())
        connection.close(linger_ms)

    def close(self, linger_ms: int = 0) -> None:
        """End every connection; ZeroMQ may still send what it has accepted for `linger_ms`."""
        for connection in self._connections.values():
            self._close_connection(connection, linger_ms)
        self._connections.clear()
        if self._router is not None and self._accept_limiter is not None:
            self._accept_limiter.close(self._router)
            self._router.close(linger_ms)
        if self._zap is not None:
            self._zap.socket.close(0)
        self._context.term()
        self._poll.close()
