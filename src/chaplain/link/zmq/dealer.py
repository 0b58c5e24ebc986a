"""ZeroMQ sockets with bounded queues, and the state of a dialled one as its monitor reports it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import zmq

from chaplain.core import Dial
from chaplain.link.zmq.fragments import PIECE_BYTES_MAX

QUEUE_MESSAGES = 64
"""High-water mark of every socket: times `PIECE_BYTES_MAX`, 4 MiB for each direction of a connection."""
DIAL_TIMEOUT_NS = 5_000_000_000
NEVER_MS = 24 * 3600 * 1000
"""The reconnect interval of a DEALER, which is closed as soon as its connection is lost.

So it never reconnects by itself.

ZeroMQ's own option against reconnecting (-1), and IMMEDIATE, discard messages that arrived and were not read when a
connection is lost: libzmq terminates the pipe without delay (session_base_t::reconnect, socket_base_t::hiccuped).
"""

UP = "up"
_MEANINGS = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: UP,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "refused",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "no node answers there, but something else",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "hung up during the handshake",
    zmq.EVENT_DISCONNECTED: "connection lost",
    zmq.EVENT_CLOSED: "nobody answers",
    zmq.EVENT_CONNECT_RETRIED: "nobody answers",
}
_EVENT = struct.Struct("=Hi")


CLIENT_QUEUE_MESSAGES = 8
"""High-water mark of a ROUTER's sending side, which serves clients only: nodes are sent to on dialled connections. Our
byte budgets do not count messages that ZeroMQ has accepted, so this is small: times `PIECE_BYTES_MAX`, 512 KiB for a
session."""


def make_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    for option, value in (
        (zmq.MAXMSGSIZE, PIECE_BYTES_MAX),
        (zmq.SNDHWM, CLIENT_QUEUE_MESSAGES if kind == zmq.ROUTER else QUEUE_MESSAGES),
        (zmq.RCVHWM, QUEUE_MESSAGES),
        (zmq.LINGER, 0),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, 15),
        (zmq.TCP_KEEPALIVE_INTVL, 5),
        (zmq.TCP_KEEPALIVE_CNT, 3),
    ):
        socket.setsockopt(option, value)
    return socket


class DealerSocket:
    """One dialled connection. It never reconnects: its token admits one connection, and so does its greeting."""

    __slots__ = ("dealer", "descriptor", "drain", "monitor")

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], routing_id: bytes, dial: Dial, drain: Callable[[], None]
    ) -> None:
        self.drain = drain
        self.dealer = dealer = make_socket(context, zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, routing_id)
        dealer.setsockopt(zmq.PLAIN_USERNAME, dial.name)
        dealer.setsockopt(zmq.PLAIN_PASSWORD, dial.proof)
        dealer.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        dealer.setsockopt(zmq.IPV6, int("[" in dial.endpoint))
        dealer.setsockopt(zmq.HANDSHAKE_IVL, DIAL_TIMEOUT_NS // 1_000_000)
        dealer.setsockopt(zmq.CONNECT_TIMEOUT, DIAL_TIMEOUT_NS // 1_000_000)
        self.descriptor = -1
        """The file descriptor of its TCP connection, once there is one."""
        self.monitor: zmq.Socket[bytes] = dealer.get_monitor_socket(sum(_MEANINGS) | zmq.EVENT_CONNECTED)

    def next_event(self) -> str:
        """Return `UP`, or why the connection ended. Raises `zmq.Again` when the monitor has no event."""
        event, value = _EVENT.unpack_from(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
        if event == zmq.EVENT_CONNECTED:
            self.descriptor = value
            return self.next_event()
        return _MEANINGS[event]

    def close(self, linger_ms: int) -> None:
        self.dealer.disable_monitor()
        self.monitor.close(0)
        self.dealer.close(linger_ms)
