"""Connections: bounds, time-outs and refusals before a request reaches the application."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from chaplain.errors import ConfigError
from chaplain.gateway.server import check_exposure, make_server
from chaplain.gateway.settings import GatewaySettings, load_settings
from chaplain.runtime.http.listening import listen
from tests.support.process_cluster import until
from tests.unit.gateway.scenes import Scene

PATIENCE_S = 60.0


@contextmanager
def served(scene: Scene, tls: tuple[Path, Path] | None = None) -> Iterator[int]:
    listening = listen("127.0.0.1", 0)
    server = make_server(scene.app, scene.settings, tls)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listening.close()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def problem(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    found = json.loads(body)
    assert int(head.split()[1]) == found["status"]
    return found["status"], found["type"].rpartition(":")[2]


def test_refusals_of_the_server_are_problems(tmp_path: Path) -> None:
    with served(Scene(tmp_path / "gateway", header_bytes_max=4096)) as port:
        for sent, expected in (
            (b"nonsense\r\n\r\n", (400, "invalid-request")),
            (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 8000, (431, "header-too-large")),
            (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", (400, "invalid-request")),
        ):
            with connect(port) as connection:
                connection.sendall(sent)
                assert problem(read_all(connection)) == expected


def test_slow_header_closes_the_connection_also_after_a_first_request(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(served(Scene(tmp_path / "gateway", header_seconds=0.5)))
        silent, slow, second = (stack.enter_context(connect(port)) for _ in range(3))
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert second.recv(65536).startswith(b"HTTP/1.1 200")
        second.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert [read_all(one) for one in (silent, slow)] == [b"", b""]
        assert b"HTTP" not in read_all(second)


def test_slow_body_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", body_seconds=0.2)
    with served(scene) as port, connect(port) as slow:
        head = f"POST /v1/streams/a/messages HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {scene.token}\r\n"
        slow.sendall(head.encode() + b"Content-Type: text/plain\r\nContent-Length: 100\r\n\r\nx")
        assert problem(read_all(slow)) == (408, "request-timeout")


@pytest.mark.parametrize("bound", ["connections_max", "connections_per_address_max"])
def test_connection_beyond_the_bound_is_refused(tmp_path: Path, bound: str) -> None:
    with served(Scene(tmp_path / "gateway", **{bound: 2})) as port:
        with connect(port) as first, connect(port) as second:
            for one in (first, second):
                one.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                assert one.recv(65536).startswith(b"HTTP/1.1 200")
            with connect(port) as third:
                assert problem(read_all(third)) == (503, "busy")
        until(lambda: _is_served(port), "closed connections make room")


def _is_served(port: int) -> bool:
    with connect(port) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return read_all(one).startswith(b"HTTP/1.1 200")


def test_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway", stalled_seconds=0.2, page_bytes_max=32 * 1024 * 1024)
    scene.cluster.value = b"x" * (4 * 1024 * 1024)
    with served(scene) as port, connect(port) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"GET /v1/streams/a/messages HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {scene.token}\r\n\r\n"
        stalled.sendall(head.encode())
        until(lambda: scene.gateway.requests.total == 1, "the answer has begun")
        until(lambda: scene.gateway.requests.total == 0, "the gateway gave up")
        assert scene.gateway.buffered.total == 0


def test_follower_that_leaves_is_noticed(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "gateway")
    with served(scene) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.request("GET", "/v1/streams/a/follow", headers={"Authorization": f"Bearer {scene.token}"})
        answer = connection.getresponse()
        assert answer.readline() == b": following\n"
        assert scene.gateway.followers.total == 1
        answer.close()
        connection.close()
        until(lambda: scene.gateway.followers.total == 0, "the follower's place is free")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    start = datetime.now(UTC) - timedelta(days=1)
    dated = builder.not_valid_before(start).not_valid_after(start + timedelta(days=3))
    signed = dated.add_extension(names, critical=False).sign(key, hashes.SHA256())
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return folder / "cert.pem", folder / "key.pem"


def test_tls_serves_verified_clients_and_no_plain_ones(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with served(Scene(tmp_path / "gateway"), (certificate, key)) as port:
        trusting = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=trusting)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        with connect(port) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"200 OK" not in read_all(plain)


def test_accepted_connection_sends_without_delay() -> None:
    with listen("127.0.0.1", 0) as listening, connect(listening.getsockname()[1]):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_plain_http_beyond_loopback_needs_an_explicit_option() -> None:
    check_exposure("127.0.0.1", tls=False, plain=False)
    check_exposure("0.0.0.0", tls=True, plain=False)
    check_exposure("0.0.0.0", tls=False, plain=True)
    with pytest.raises(ConfigError, match="unencrypted"):
        check_exposure("0.0.0.0", tls=False, plain=False)


def test_settings_file_overrides_defaults_and_wrong_ones_are_named(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("followers_max = 3\nbody_seconds = 1.5\n")
    assert load_settings(file) == GatewaySettings(followers_max=3, body_seconds=1.5)
    assert load_settings(None) == GatewaySettings()
    for text, said in (("followers = 3", "followers"), ("followers_max = 'x'", "int"), ("followers_max = 0", "above 0"),
                       ("=", "Invalid")):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            load_settings(file)
