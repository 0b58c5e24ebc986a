"""ZeroMQ, as a node and a client use it: performs the link's socket effects and turns what happens into inputs.

One ROUTER, if an endpoint is given, for those who dial us; one DEALER per dial, thrown away at its first
disconnection, because a DEALER that reconnects by itself would deliver what it had queued without a greeting.
It decides nothing: who may come in, what a frame means and how much may be queued are the core's business.

ZeroMQ signals through one file descriptor per socket, and only when something changed since the socket was last
found empty. So a socket is drained until it is empty or is put down as unfinished, and one that was written to, which
may have swallowed a signal, is drained once more before waiting. A bound instance spares itself that for its DEALERs:
whoever it dials answers by a dial of its own, and finding a DEALER empty costs an exception.

Invariants: frames of a channel keep their order both ways; every dial ends in exactly one `Disconnected` unless the
core hung up first; `Connected` follows only a finished handshake; no queue passes its bound.
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
from chaplain.link.zmq.fragments import PIECE_BYTES_MAX, Joiner, is_piece
from chaplain.link.zmq.poller import Poll
from chaplain.link.zmq.send_queue import OUTBOX_BYTES_MAX, Outbox
from chaplain.link.zmq.stalled_messages import StalledMessages
from chaplain.link.zmq.zap import ZapHandler

SocketInput: TypeAlias = Knocked | Connected | Disconnected | Arrived | Flushed
SocketEffect: TypeAlias = Admit | Refuse | Dial | HangUp | Send

JOINING_BYTES_MAX = 64 * 1024 * 1024
DRAIN_MESSAGES_MAX = 256
"""Messages taken from one socket per wake-up, so that timers and other sockets get their turn."""
FLUSH_BYTES = 8 * 1024
"""`Flushed` waits until there is this much to tell in all, or nothing else: each frame would cost another step."""
EAGER_FLUSH_BYTES = 64 * 1024
"""With this much to tell nobody waits for anything else."""
BLOCKED_RETRY_NS = 5_000_000
"""ZeroMQ's signal that a full queue has room can be swallowed by a read; so look again after this."""

# As plain numbers: putting two of ZeroMQ's own together costs more than the sending.
_NOW = int(zmq.NOBLOCK)
_NOW_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_CAN_READ = int(zmq.POLLIN)
_SOURCE = int(zmq.SRCFD)


class Sockets:
    """The connections of one instance. Everything but `wake` belongs to one thread."""

    def __init__(
        self,
        instance: bytes,
        bind: str | None = None,
        strangers_max: int = STRANGERS_MAX,
        members: Iterable[str] = (),
    ) -> None:
        """`members` are the addresses of the cluster's nodes: for them the door reserves places."""
        self.counts: Counter[str] = Counter()
        self.endpoint = ""
        self.routing_id = route_of(instance)
        self._inputs: list[SocketInput] = []
        self._flushed: dict[Channel, int] = {}
        self._flushed_bytes = 0
        """Of all channels since `Flushed` was last told."""
        self._outboxes: dict[Channel, Outbox] = {}
        self._dialled = StalledMessages(self.counts, self._drain_lines)
        self._joiner = Joiner(self.counts, JOINING_BYTES_MAX)
        self._lines: dict[int, DealerSocket] = {}
        self._dialling: dict[int, int] = {}
        self._unfinished: dict[Callable[[], None], None] = {}
        self._poll = Poll()
        self.watch = self._poll.watch
        """Have `wait` call a function whenever a descriptor of the host's own can be read."""
        self.wake = self._poll.wake
        """Make `wait` return soon. The one method that any thread may call."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 8192)
        self._router: zmq.Socket[bytes] | None = None
        self._porter: ZapHandler | None = None
        self._door: AcceptLimiter | None = None
        if bind is not None:
            try:
                self._bind(bind, strangers_max, members)
            except BaseException:
                self.close()
                raise

    def _bind(self, endpoint: str, strangers_max: int, members: Iterable[str]) -> None:
        door = AcceptLimiter(endpoint, self.counts, self.wake, strangers_max, members)
        self._porter = ZapHandler(self._context, self.counts)
        self._watch_zmq(self._porter.socket, self._drain_porter)
        router = make_socket(self._context, zmq.ROUTER)
        router.setsockopt(zmq.PLAIN_SERVER, 1)
        router.setsockopt(zmq.ZAP_DOMAIN, b"chaplain")
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._router, self._door, self.endpoint = router, door, door.endpoint
        door.attach(router)
        self._watch_zmq(router, self._drain_router)

    # Waiting.

    def wait(self, timeout_ns: int | None = None) -> list[SocketInput]:
        """What has happened; waits for something to happen for so long at most."""
        if self._door is not None and self._door.unfinished.asks:
            self._unfinished[self._drain_router] = None
        unfinished, self._unfinished = self._unfinished, {}
        if self._outboxes:
            unfinished.update((self._drain_of(channel), None) for channel in self._outboxes)
        for drain in unfinished:
            drain()
        self._poll.run(self._timeout_s(timeout_ns))
        if self._dialling:
            self._give_up()
        self._dialled.tend(time.monotonic_ns())
        inputs, self._inputs = self._inputs, []
        if self._flushed and (not inputs or self._flushed_bytes >= FLUSH_BYTES):
            inputs += [Flushed(channel, size) for channel, size in self._flushed.items()]
            self._flushed, self._flushed_bytes = {}, 0
        return inputs

    def fileno(self) -> int:
        """Can be read when something has happened, for a loop that watches descriptors and does not wait here."""
        return self._poll.fileno()

    def left_alone_s(self, timeout_ns: int | None) -> float | None:
        """For how long `wait` need not be called while that descriptor is silent; None: for as long as it is."""
        left_s = self._timeout_s(timeout_ns)
        return None if left_s < 0 else left_s

    @property
    def queued_bytes(self) -> int:
        return sum(outbox.size for outbox in self._outboxes.values())

    def _timeout_s(self, timeout_ns: int | None) -> float:
        if self._inputs or self._unfinished or self._flushed_bytes >= EAGER_FLUSH_BYTES:
            return 0
        if timeout_ns is not None and not self._outboxes and not self._dialling:
            return timeout_ns / 1e9 if timeout_ns > 0 else 0
        bounds_ns = [] if timeout_ns is None else [timeout_ns]
        if self._outboxes:
            bounds_ns.append(BLOCKED_RETRY_NS)
        if self._dialling:
            bounds_ns.append(next(iter(self._dialling.values())) - time.monotonic_ns())
        # epoll counts whole milliseconds and rounds up, which suits deadlines.
        return max(0, min(bounds_ns)) / 1e9 if bounds_ns else -1

    def _watch_zmq(self, socket: zmq.Socket[bytes], drain: Callable[[], None]) -> None:
        self._poll.watch(socket.fileno(), drain)
        self._unfinished[drain] = None  # it may have signalled before we watched

    def _drain_of(self, channel: Channel) -> Callable[[], None]:
        return self._lines[channel].drain if isinstance(channel, int) else self._drain_router

    # What came in.

    def _drain_porter(self) -> None:
        assert self._porter is not None
        try:
            for _ in range(DRAIN_MESSAGES_MAX):
                knocked = self._porter.take()
                if knocked is not None:
                    self._inputs.append(knocked)
        except zmq.Again:
            return
        self._unfinished[self._drain_porter] = None

    def _drain_router(self) -> None:
        router, door = self._router, self._door
        assert router is not None
        assert door is not None
        receive, unfinished = router.recv, door.unfinished
        for _ in range(DRAIN_MESSAGES_MAX):
            # Unlike a DEALER, see below, a ROUTER keeps what arrived before a connection's end: so it can be asked.
            if not int(router.get(_EVENTS)) & _CAN_READ:
                unfinished.took_all()
                break
            route, part = receive(_NOW), receive(_NOW, copy=False)
            unfinished.took(int(part.get(_SOURCE)))
            self._take(router, route, part)
        else:
            self._unfinished[self._drain_router] = None
            return
        if self._outboxes:
            for channel in [channel for channel in self._outboxes if isinstance(channel, bytes)]:
                self._flush(channel)

    def _drain_dealer(self, dial: int) -> None:
        line = self._lines.get(dial)
        if line is None:
            return
        try:
            # Read before ZeroMQ is asked anything else, so that what arrived comes before the news of the
            # connection's end (`lines.NEVER_MS` keeps ZeroMQ from discarding it).
            for _ in range(DRAIN_MESSAGES_MAX):
                part = line.dealer.recv(_NOW, copy=False)
                self._dialled.took(int(part.get(_SOURCE)))
                self._take(line.dealer, dial, part)
            self._unfinished[line.drain] = None
        except zmq.Again:
            self._flush(dial)

    def _drain_lines(self) -> None:
        """All that is there, of everybody we dialled."""
        for line in list(self._lines.values()):
            self._unfinished.pop(line.drain, None)
            line.drain()
        if not any(line.drain in self._unfinished for line in self._lines.values()):
            self._dialled.took_all()

    def _take(self, socket: zmq.Socket[bytes], channel: Channel, part: zmq.Frame) -> None:
        if part.more:
            # No frame of ours has a second part: read past it, or its parts would pass for routing ids.
            self.counts["link_multipart_discarded"] += 1
            while part.more:
                part = socket.recv(_NOW, copy=False)
            return
        frame = self._joiner.take(channel, part.bytes)
        if frame is not None:
            self._inputs.append(Arrived(channel, frame))

    def _drain_monitor(self, dial: int) -> None:
        while (line := self._lines.get(dial)) is not None:
            try:
                news = line.news()
            except zmq.Again:
                return
            if news == UP:
                del self._dialling[dial]
                self._dialled.opened(line.descriptor)
                self._inputs.append(Connected(dial))
            else:
                self._drain_dealer(dial)  # what arrived before the end still counts
                self._lose(dial, news)

    def _give_up(self) -> None:
        now_ns = time.monotonic_ns()
        for dial, give_up_ns in list(self._dialling.items()):
            if give_up_ns > now_ns:
                break
            self._lose(dial, "nobody answers in time")

    # What is to be done.

    def perform(self, effect: SocketEffect) -> None:
        match effect:
            case Send():
                self.send(effect.channel, effect.frame)
            case Dial():
                self._dial(effect)
            case HangUp():
                self._drop(effect.channel)
            case Admit() | Refuse():
                assert self._porter is not None, "only a bound instance is knocked at"
                self._porter.answer(effect)
                self._unfinished[self._drain_porter] = None
            case _:
                assert_never(effect)

    def _dial(self, effect: Dial) -> None:
        dial = effect.dial
        assert dial not in self._lines, f"dial {dial} is in use"
        routing_id = self.routing_id + os.urandom(DIAL_BYTES)
        try:
            line = DealerSocket(self._context, routing_id, effect, partial(self._drain_dealer, dial))
        except zmq.ZMQError as error:  # no descriptors are left; others may be given back until it is dialled again
            self._lose(dial, f"cannot dial {effect.endpoint}: {error.strerror}")
            return
        self._lines[dial] = line
        self._dialling[dial] = time.monotonic_ns() + DIAL_TIMEOUT_NS
        self._watch_zmq(line.dealer, line.drain)
        self._watch_zmq(line.monitor, partial(self._drain_monitor, dial))
        try:
            line.dealer.connect(effect.endpoint)
        except zmq.ZMQError as error:
            self._lose(dial, f"cannot dial {effect.endpoint}: {error.strerror}")

    def send(self, channel: Channel, frame: bytes) -> None:
        if isinstance(channel, int) and channel not in self._lines:
            return  # its `Disconnected` is on the way to the core
        outbox = self._outboxes.get(channel)
        if outbox is None:
            if len(frame) <= PIECE_BYTES_MAX and self._send_at_once(channel, frame):
                return
            outbox = self._outboxes[channel] = Outbox()
        outbox.put(frame)
        self._flush(channel)
        if outbox.size > OUTBOX_BYTES_MAX and channel in self._outboxes:
            self._lose(channel, "it does not keep up")

    def _send_at_once(self, channel: Channel, frame: bytes) -> bool:
        """Whether ZeroMQ took the frame, or the channel is lost: nothing waits on it, and nothing is to be cut."""
        assert not is_piece(frame), "no frame begins like a piece"
        router = self._router
        try:
            if isinstance(channel, int):
                line = self._lines[channel]
                line.dealer.send(frame, _NOW)
                if router is None:
                    self._unfinished[line.drain] = None
            else:
                assert router is not None, "only a bound instance has routes"
                router.send(channel, _NOW_MORE)
                router.send(frame, _NOW)
                self._unfinished[self._drain_router] = None
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            self._lose(channel, error.strerror or "unreachable")
            return True
        size = len(frame)
        self._flushed[channel] = self._flushed.get(channel, 0) + size
        self._flushed_bytes += size
        return True

    def _flush(self, channel: Channel) -> None:
        """Give ZeroMQ what it takes. It signals when it can take more."""
        outbox = self._outboxes.get(channel)
        if outbox is None:
            return
        try:
            sent_bytes = outbox.flush(self._route(channel) if isinstance(channel, bytes) else self._deal(channel))
        except zmq.ZMQError as error:
            self._lose(channel, error.strerror or "unreachable")
            return
        if sent_bytes:
            self._unfinished[self._drain_of(channel)] = None
            self._flushed[channel] = self._flushed.get(channel, 0) + sent_bytes
            self._flushed_bytes += sent_bytes
        if outbox.empty:
            del self._outboxes[channel]

    def _deal(self, dial: int) -> Callable[[bytes], None]:
        send = self._lines[dial].dealer.send
        return lambda message: send(message, _NOW)

    def _route(self, route: bytes) -> Callable[[bytes], None]:
        assert self._router is not None, "only a bound instance has routes"
        send = self._router.send

        def send_routed(message: bytes) -> None:
            send(route, _NOW_MORE)
            send(message, _NOW)

        return send_routed

    # Ends.

    def _lose(self, channel: Channel, reason: str) -> None:
        self._drop(channel)
        self._inputs.append(Disconnected(channel, reason))

    def _drop(self, channel: Channel) -> None:
        self._outboxes.pop(channel, None)
        self._flushed.pop(channel, None)
        self._joiner.forget(channel)
        if isinstance(channel, int):
            self._dialling.pop(channel, None)
            line = self._lines.pop(channel, None)
            if line is not None:
                self._close_line(line, linger_ms=0)

    def _close_line(self, line: DealerSocket, linger_ms: int) -> None:
        self._poll.unwatch(line.dealer.fileno())
        self._poll.unwatch(line.monitor.fileno())
        line.close(linger_ms)

    def close(self, linger_ms: int = 0) -> None:
        """End every connection; what ZeroMQ has taken may still leave for so long."""
        for line in self._lines.values():
            self._close_line(line, linger_ms)
        self._lines.clear()
        if self._router is not None and self._door is not None:
            self._door.close(self._router)
            self._router.close(linger_ms)
        if self._porter is not None:
            self._porter.socket.close(0)
        self._context.term()
        self._poll.close()
