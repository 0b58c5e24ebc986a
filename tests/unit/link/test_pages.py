"""The hex and text examples on the pages about identity and connection, decoded and made again."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from chaplain.core import Connected, Send
from chaplain.link.auth import connect_token
from chaplain.link.auth import hello as greeting
from chaplain.link.auth.identity import Identity, verify
from chaplain.link.auth.key_exchange import Party, derive
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.core import LinkCore
from chaplain.link.events import Meet
from chaplain.link.sessions import batching
from chaplain.link.sessions.aead import BUNDLED, HEADER, make_seal
from chaplain.link.settings import LinkSettings
from chaplain.wire import command as commands

DOCS = Path(__file__).parents[3] / "docs"
NOW_NS = 1_800_000_000 * 10**9
CLUSTER_KEY = bytes(range(32))


class Repeating(random.Random):
    """All that is random on the pages is `a0`."""

    def randbytes(self, n: int) -> bytes:
        return b"\xa0" * n


def blocks(page: str, kind: str) -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def file_of(first_line: str) -> str:
    """The example of a file, known by how it begins."""
    (block,) = [block for block in blocks("identity.md", "") if block.startswith(first_line + "\n")]
    return block


def octets(kind: str) -> bytes:
    (block,) = blocks("connection.md", kind)
    return bytes.fromhex("".join(block.split()))


@pytest.fixture
def identity() -> Identity:
    return Identity.parse(file_of("chaplain identity 1"))


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing.parse(file_of("chaplain keyring 1"))


def test_identity_and_key_ring_examples_match_the_code(identity: Identity, ring: KeyRing) -> None:
    page = (DOCS / "identity.md").read_text()
    assert identity.text() == file_of("chaplain identity 1")
    assert f"`{identity.identifier:08x}`" in page
    assert ring.text() == file_of("chaplain keyring 1")
    assert ring.used == CLUSTER_KEY
    assert f"`{ring.used_id.hex()}`" in page


def test_node_token_example_matches_the_code(identity: Identity, ring: KeyRing) -> None:
    shown = octets("knock-node")
    name, proof = shown[:34], shown[34:]
    assert connect_token.decode(name) == connect_token.NodeKnock(
        ring.used_id, identity.identifier, NOW_NS, b"\xa0" * 16
    )
    assert connect_token.knock_as_node(ring, identity.identifier, NOW_NS, Repeating()) == (name, proof)


def test_client_token_example_matches_the_code(identity: Identity) -> None:
    shown = octets("knock-client")
    name, proof = shown[:58], shown[58:]
    assert connect_token.decode(name) == connect_token.ClientKnock(identity.key, NOW_NS, b"\xa0" * 16)
    assert verify(identity.key, b"chaplain knock 1", name, proof)
    assert connect_token.knock_as_client(identity, NOW_NS, Repeating()) == (name, proof)


@pytest.mark.parametrize("role", ["node", "client"])
def test_greeting_examples_match_the_code(identity: Identity, ring: KeyRing, role: str) -> None:
    frame = octets(f"greeting-{role}")
    envelope = greeting.open_envelope(frame)
    claim, hello = greeting.open_hello(envelope.hello)
    assert greeting.signature_holds(envelope, identity.key)
    assert (claim.role, claim.cluster, claim.instance) == (role, "example", b"\xb0" * 16)
    assert (claim.echo, claim.to, claim.turn) == (b"", b"", 1)
    if role == "node":
        assert greeting.mac_holds(envelope, CLUSTER_KEY)
        assert (hello.ipaddress, hello.port) == ("127.0.0.1", 7001)
    else:
        assert envelope.prover == identity.key
        assert (hello.ipaddress, hello.port) == ("", 0)
    settings = LinkSettings("example", "tcp://127.0.0.1:7001" if role == "node" else "")
    core = LinkCore(identity, b"\xb0" * 16, settings, Repeating(), ring=ring if role == "node" else None)
    core.step(NOW_NS, Meet("tcp://127.0.0.1:7002"))
    assert core.step(NOW_NS, Connected(1)) == [Send(1, frame)]


def test_page_names_every_header() -> None:
    claim = greeting.HelloClaims(
        (1, 0), "c", "node", bytes(16), bytes(32), 0, 1, bytes(16), bytes(32), "aes-256-gcm", bytes(16), bytes(16)
    )
    page = (DOCS / "connection.md").read_text()
    on_page = re.findall(r"^\| `(chaplain\.[a-z]+)`", page, re.MULTILINE)
    assert on_page == list(greeting.claim_headers(claim))


def test_session_key_example_matches_the_code() -> None:
    sender, receiver = (
        Party(
            bytes([0x00 | low]) * 16, bytes([0x10 | low]) * 32, bytes([0x20 | low]) * 16, bytes([0x30 | low]) * 32, key
        )
        for low, key in ((0xA, CLUSTER_KEY), (0xB, CLUSTER_KEY))
    )
    shown = octets("session-keys")
    assert derive(bytes(32), "aes-256-gcm", sender, receiver) == shown[:32]
    assert derive(bytes(32), "aes-256-gcm", receiver, sender) == shown[32:]


@pytest.mark.parametrize(("kind", "algorithm"), [("seal-gcm", "aes-256-gcm"), ("seal-hmac", "hmac-sha256")])
def test_seal_examples_match_the_code(kind: str, algorithm: str) -> None:
    frame = octets(kind)
    seal = make_seal(algorithm, CLUSTER_KEY)
    assert HEADER.unpack_from(frame) == (seal.octet, 2, 1)
    opened = seal.open(frame)
    assert opened is not None
    assert commands.decode(opened) == commands.Ping(2)
    assert seal.close(2, 1, opened) == frame


@pytest.mark.parametrize(("kind", "algorithm"), [("bundle-gcm", "aes-256-gcm"), ("bundle-hmac", "hmac-sha256")])
def test_bundle_example_matches_the_code(kind: str, algorithm: str) -> None:
    plain, frame = octets("bundle"), octets(kind)
    assert [commands.decode(each) for each in batching.unpack(plain)] == [commands.Ping(2), commands.DecenAck(3)]
    assert batching.pack(batching.unpack(plain)) == plain
    seal = make_seal(algorithm, CLUSTER_KEY)
    assert HEADER.unpack_from(frame) == (seal.octet | BUNDLED, 3, 1)
    assert seal.open(frame) == plain
    assert seal.close(3, 1, plain, BUNDLED) == frame


def test_page_names_default_bounds() -> None:
    page = (DOCS / "connection.md").read_text().replace(",", "")
    defaults = LinkSettings("c")
    for name in (
        "sessions_max",
        "sessions_per_client_max",
        "calls_max",
        "half_greeted_max",
        "bindings_max",
        "reports_per_second_max",
    ):
        assert f"`{name}` {getattr(defaults, name)}" in page
    assert f"`queue_bytes_max` {defaults.queue_bytes_max >> 20} MiB" in page
    assert f"`reserve_bytes` {defaults.reserve_bytes >> 20} MiB" in page
    assert f"`bundle_bytes_max` {defaults.bundle_bytes_max >> 10} KiB" in page
    assert f"`greeting_timeout_ns` ({defaults.greeting_timeout_ns // 10**9} s)" in page
    assert f"`knock_window_ns` ({defaults.knock_window_ns // 10**9} s)" in page
