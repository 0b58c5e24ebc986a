"""URLs in place of a directory, errors that are built-in ones, too, and what `repr` shows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

import chaplain
from chaplain import AsyncClient, Client, errors
from chaplain.client.connect.identity_file import format_identity_file
from chaplain.client.connect.options import ConnectOptions, prepare
from chaplain.client.connect.url import parse_url
from chaplain.client.io.call_registry import error_of
from chaplain.client.protocol.call_events import Failure, Raised, refusal
from chaplain.errors import ConfigError, Misused
from chaplain.link.auth.identity import Identity

ME = Identity.generate(Random(1))


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    """An identity file with everything but the endpoints."""
    file = tmp_path / "my identity"
    file.write_text(format_identity_file(ME, "shop", "aes-256-gcm", [ME.key]))
    return file


def prepared(cluster: str | None, **given: object) -> ConnectOptions:
    rest = dict.fromkeys(("endpoints", "identity", "node_keys", "name", "node")) | given
    return prepare(cluster, timeout_s=1.0, **rest)  # type: ignore[arg-type]


def test_url_names_endpoints_and_identity(identity: Path) -> None:
    options = prepared(f"chaplain://10.0.0.1:7001,[::1]:7002?identity={identity}".replace(" ", "%20"))
    assert options.endpoints == ("tcp://10.0.0.1:7001", "tcp://[::1]:7002")
    assert (options.identity.key, options.cluster, options.node_keys) == (ME.key, "shop", {ME.key})


def test_url_is_found_in_the_environment_after_the_cluster(identity: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAPLAIN_URL", f"chaplain://10.0.0.1:7001?identity={identity}&name=other")
    monkeypatch.delenv("CHAPLAIN_CLUSTER", raising=False)
    assert prepared(None).cluster == "other"
    assert prepared(None, endpoints="tcp://10.0.0.9:1", name="mine").endpoints == ("tcp://10.0.0.9:1",)
    monkeypatch.setenv("CHAPLAIN_CLUSTER", "/nowhere")
    with pytest.raises(ConfigError, match="nowhere"):
        prepared(None)


def test_identity_of_the_environment_completes_a_url(identity: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAPLAIN_IDENTITY", str(identity))
    assert prepared("chaplain://10.0.0.1:7001").identity.key == ME.key


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("chaplain://h:1?identity=a&password=b", "'password' is unknown"),
        ("chaplain://h:1?identity=a&identity=b", "one twice"),
        ("chaplain://me:secret@h:1?identity=a", "other parts"),
        ("chaplain://h:1/stream?identity=a", "other parts"),
        ("chaplain://h:1?identity", "bad query field"),
        ("chaplain://[::1?identity=a", "URL"),
    ],
)
def test_url_of_another_shape_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        parse_url(url)
    assert "secret" not in str(raised.value)


def test_url_without_a_port_is_refused(identity: Path) -> None:
    with pytest.raises((ConfigError, Misused), match="tcp://address:port"):
        prepared(f"chaplain://10.0.0.1?identity={identity}".replace(" ", "%20"))


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.Unreachable, ConnectionError),
        (errors.Unreachable, TimeoutError),
        (errors.Forbidden, PermissionError),
        (errors.Forbidden, errors.Refused),
        (errors.Missing, LookupError),
        (errors.Misused, ValueError),
    ],
)
def test_errors_are_the_builtin_ones_that_programs_expect(kind: type[Exception], builtin: type[Exception]) -> None:
    error = kind("what to do")
    assert isinstance(error, builtin)
    assert isinstance(error, errors.ChaplainError)
    assert str(error) == "what to do"


@pytest.mark.parametrize("kind", [errors.Unknown, errors.StatementFailed, errors.NotExecutor])
def test_error_that_must_not_be_taken_for_another_is_no_builtin_one(kind: type[Exception]) -> None:
    """A program that repeats after a `ConnectionError` must not repeat a write whose outcome is unknown."""
    assert not issubclass(kind, OSError)


@pytest.mark.parametrize("kind", ["no_right", "not_allowed"])
def test_lack_of_a_right_is_forbidden(kind: str) -> None:
    assert type(error_of(Raised(1, refusal(kind), "ask an admin"))) is errors.Forbidden
    assert refusal("busy") is Failure.REFUSED


def test_listener_that_waits_gets_a_timeout_error_and_does_not_end(cluster) -> None:
    """`Unreachable` is a `TimeoutError`; that of an iterator's own timeout ends the iteration."""

    async def work() -> None:
        async with AsyncClient.connect(**cluster.how) as client:
            listener = client.events(timeout=30)
            await listener._subscription.started()
            listener._subscription._sink.fail(errors.Unreachable("it is down"))
            with pytest.raises(errors.Unreachable):
                await anext(listener)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_repr_of_a_client_names_its_cluster_and_state(cluster) -> None:
    client = Client.connect(**cluster.how, name=None)
    places = ", ".join(cluster.how["endpoints"])
    assert repr(client) == f"<Client of cluster 'chaplain' at {places}: open>"
    assert repr(client.journal("orders")) == "Journal('orders')"
    assert repr(client.journal("orders").writer()) == "<Writer of 'orders': open, 0 receipts>"
    client.close()
    assert repr(client).endswith(": closed>")
    assert repr(AsyncClient.connect(**cluster.how)).endswith(": not connected>")


def test_repr_of_a_large_message_is_short() -> None:
    message = chaplain.PoolMessage("chat", bytes(1 << 20), 1, "ann", 0, False)
    assert len(repr(message)) < 500
    assert "<1048576 bytes: b'" in repr(message)
    assert repr(chaplain.Member(1, "tcp://x:1", "alive", 3)).startswith("Member(id=1, uri='tcp://x:1', state='alive'")


def test_names_for_annotations_are_importable() -> None:
    with_methods = {"Cursor": "commit", "Journal": "write", "Listener": "close", "Reader": "close", "Sql": "query"}
    for name, method in with_methods.items():
        assert callable(getattr(getattr(chaplain, name), method))
        assert callable(getattr(getattr(chaplain, f"Async{name}"), method))
    assert issubclass(chaplain.Writer, object)
