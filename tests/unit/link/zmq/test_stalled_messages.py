"""Who was let in and sends parts of a message without end is ended; who waits for a slow loop is not."""

from __future__ import annotations

import select
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from chaplain.core import Arrived, Connected, Disconnected, Send
from chaplain.link.zmq.stalled_messages import BUFFERED_BYTES_MAX, StalledMessages
from tests.unit.link.zmq.hostile_connections import GREETING, address
from tests.unit.link.zmq.sockets_stage import PATIENCE_S, Side, until

SERVER, CALLER = b"s" * 16, b"c" * 16
ANY = "tcp://127.0.0.1:*"
KNOCK = b"\x05HELLO\x01n\x04open"
PART = b"\x03" + struct.pack(">Q", 60_000) + bytes(60_000)
"""With more to come."""
DEALER = {b"Socket-Type": b"DEALER", b"Identity": b"\x01" + b"v" * 24}
ROUTER = {b"Socket-Type": b"ROUTER", b"Identity": b""}
LAST = b"\x00\x04last"


def properties(given: dict[bytes, bytes]) -> bytes:
    return b"".join(bytes((len(name),)) + name + struct.pack(">I", len(value)) + value for name, value in given.items())


def hears(connection: socket.socket) -> Callable[[bytes], bool]:
    """Whether a word has come on it by now."""
    seen = bytearray()

    def has_come(word: bytes) -> bool:
        with suppress(BlockingIOError):
            seen.extend(connection.recv(4096))
        return word in seen

    return has_come


def let_in(server: Side) -> socket.socket:
    """A connection of somebody who speaks ZeroMQ's protocol by hand: its library finishes what it begins."""
    insider = socket.create_connection(address(server.sockets.endpoint), timeout=PATIENCE_S)
    insider.setblocking(False)
    answered = hears(insider)
    insider.sendall(GREETING + b"\x04" + bytes((len(KNOCK),)) + KNOCK)
    until(lambda: answered(b"WELCOME"), server)
    initiate = b"\x08INITIATE" + properties(DEALER)
    insider.sendall(b"\x04" + bytes((len(initiate),)) + initiate)
    until(lambda: answered(b"READY"), server)
    return insider


def pour(insider: socket.socket, octets: bytes, *sides: Side) -> None:
    left = memoryview(octets)

    def poured() -> bool:
        nonlocal left
        with suppress(BlockingIOError):
            left = left[insider.send(left) :]
        return not left

    until(poured, *sides)


def has_ended(insider: socket.socket) -> bool:
    try:
        return insider.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_endless_message_ends_its_connection_and_no_other() -> None:
    with Side(SERVER, ANY) as server, Side(CALLER) as caller, let_in(server) as insider:
        caller.dial(1, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)
        pour(insider, PART * (BUFFERED_BYTES_MAX // len(PART) + 1), server)
        until(lambda: has_ended(insider), server, caller)
        assert server.sockets.counts["link_unfinished_ended"] == 1
        caller.sockets.perform(Send(1, b"still here"))
        until(lambda: server.of(Arrived), server, caller)
        assert caller.of(Disconnected) == []


def test_connection_waiting_for_a_blocked_loop_is_kept() -> None:
    with Side(SERVER, ANY) as server, let_in(server) as insider:
        limiter = server.sockets._accept_limiter
        assert limiter is not None
        whole = bytes((PART[0] & ~1,)) + PART[1:]
        pour(insider, whole * 8)
        for _ in range(10):
            limiter.stalled.check_all()
        assert not has_ended(insider)
        pour(insider, LAST)
        until(lambda: len(server.of(Arrived)) == 9, server)
        assert server.sockets.counts["link_unfinished_ended"] == 0


def test_endless_message_on_an_outgoing_connection_ends_it() -> None:
    """Whoever is at an address can speak ZeroMQ's protocol; that it is no node shows later."""
    with socket.create_server(("127.0.0.1", 0)) as listener, Side(CALLER) as caller:
        caller.dial(1, f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        until(lambda: select.select([listener], [], [], 0)[0], caller)
        impostor, _ = listener.accept()
        with impostor:
            impostor.setblocking(False)
            asked = hears(impostor)
            impostor.sendall(GREETING)
            until(lambda: asked(b"HELLO"), caller)
            impostor.sendall(b"\x04\x08\x07WELCOME")
            until(lambda: asked(b"INITIATE"), caller)
            ready = b"\x05READY" + properties(ROUTER)
            impostor.sendall(b"\x04" + bytes((len(ready),)) + ready)
            until(lambda: caller.of(Connected), caller)
            pour(impostor, PART * (BUFFERED_BYTES_MAX // len(PART) + 1), caller)
            until(lambda: caller.of(Disconnected), caller)
            assert caller.sockets.counts["link_unfinished_ended"] == 1


def test_ended_connection_is_forgotten() -> None:
    stalled = StalledMessages(Counter(), lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        descriptor = accepted.fileno()
        stalled.opened(descriptor)
        stalled.check_all()
        assert stalled
        accepted.close()
        stalled.check_all()
        assert not stalled
        stalled.opened(descriptor)  # it had ended before anybody looked
        assert not stalled
