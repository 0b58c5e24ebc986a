"""Attackers of a bound endpoint; each runs until it is stopped.

Run as `python -m tests.unit.link.zmq.hostile_connections KIND ENDPOINT`.

They are processes of their own, so that they can use a core without slowing the honest pair's interpreter.
"""

from __future__ import annotations

import resource
import selectors
import socket
import struct
import sys
import time

import zmq

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"PLAIN" + bytes(15) + b"\x00" + bytes(31)
HELLO = b"\x05HELLO\x05wrong\x05proof"


def address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def half_open(endpoint: str, count: int = 10_000) -> None:
    """So many connections at a time that greet and then say nothing; one that is ended is opened anew."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + 200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    selector = selectors.DefaultSelector()
    where = address(endpoint)

    def open_one() -> None:
        stranger = socket.socket()
        stranger.setblocking(False)
        stranger.connect_ex(where)
        selector.register(stranger, selectors.EVENT_WRITE)

    for _ in range(count):
        open_one()
    print("ready", flush=True)
    while True:
        for key, events in selector.select():
            stranger = key.fileobj
            assert isinstance(stranger, socket.socket)
            try:
                if events & selectors.EVENT_WRITE:
                    stranger.send(GREETING)
                    selector.modify(stranger, selectors.EVENT_READ)
                elif not stranger.recv(4096):
                    raise ConnectionResetError
            except OSError:
                selector.unregister(stranger)
                stranger.close()
                open_one()
        time.sleep(0.001)  # an attacker with a core of its own: this machine may have only two


def keep_pouring(endpoint: str, opening: bytes, chunk: bytes) -> None:
    print("ready", flush=True)
    while True:
        try:
            with socket.create_connection(address(endpoint), timeout=5) as stranger:
                stranger.sendall(GREETING + opening)
                while True:
                    stranger.sendall(chunk)
        except OSError:
            time.sleep(0.01)


def endless_multipart(endpoint: str) -> None:
    part = b"\x01\xff" + bytes(255)
    keep_pouring(endpoint, b"", part * 4000)


def long_commands(endpoint: str) -> None:
    """Handshake commands as long as the socket allows; many connections, each of which waits before its last octet."""
    print("ready", flush=True)
    held: list[socket.socket] = []
    command = b"\x06" + struct.pack(">Q", 65536) + bytes(65535)
    while True:
        try:
            stranger = socket.create_connection(address(endpoint), timeout=1)
            stranger.settimeout(1)
            stranger.sendall(GREETING + command)
            held.append(stranger)
        except OSError:
            time.sleep(0.01)
        if len(held) > 5000:
            held.pop(0).close()


def giant_command(endpoint: str) -> None:
    keep_pouring(endpoint, b"\x06" + struct.pack(">Q", 1 << 30), bytes(1 << 20))


def wrong_password(endpoint: str) -> None:
    """Whole handshakes with a wrong proof, as fast as they are refused."""
    print("ready", flush=True)
    command = b"\x04" + bytes((len(HELLO),)) + HELLO
    while True:
        try:
            with socket.create_connection(address(endpoint), timeout=2) as stranger:
                stranger.settimeout(2)
                stranger.sendall(GREETING + command)
                seen = b""
                while b"400" not in seen:  # the refusal
                    more = stranger.recv(4096)
                    if not more:
                        break
                    seen += more
        except OSError:
            time.sleep(0.01)


def flood(endpoint: str, count: int = 100_000) -> None:
    """Messages without a handshake, from one connection after another."""
    keep_pouring(endpoint, b"", (b"\x00\x64" + bytes(100)) * count)


def insider_flood(endpoint: str, count: int = 100_000) -> None:
    """One that was let in and sends messages nobody asked for."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.PLAIN_USERNAME, b"n")
    dealer.setsockopt(zmq.PLAIN_PASSWORD, b"right")
    dealer.connect(endpoint)
    print("ready", flush=True)
    while True:
        for _ in range(count):
            dealer.send(bytes(100))


KINDS = (half_open, endless_multipart, long_commands, giant_command, wrong_password, flood, insider_flood)

if __name__ == "__main__":
    {kind.__name__: kind for kind in KINDS}[sys.argv[1]](sys.argv[2])
