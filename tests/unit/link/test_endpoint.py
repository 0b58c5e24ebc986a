from __future__ import annotations

import pytest

from chaplain.errors import ConfigError
from chaplain.link.endpoint import bare_host, is_endpoint, split_bind_endpoint, split_endpoint

CONNECT = {
    "tcp://127.0.0.1:7400": ("127.0.0.1", 7400),
    "tcp://node-1.example.org:1": ("node-1.example.org", 1),
    "tcp://[::1]:65535": ("[::1]", 65535),
    "tcp://[fe80::1%eth0]:7400": ("[fe80::1%eth0]", 7400),
}
BIND_ONLY = {
    "tcp://*:7400": ("*", 7400),
    "tcp://127.0.0.1:0": ("127.0.0.1", 0),
    "tcp://eth0:*": ("eth0", 0),
    "tcp://[::]:*": ("::", 0),
}
NEITHER = (
    "",
    "tcp://",
    "tcp://127.0.0.1",
    "127.0.0.1:7400",
    "udp://127.0.0.1:7400",
    "tcp://:7400",
    "tcp://a:65536",
    "tcp://a:-1",
    "tcp://a:+7",
    "tcp://a:7\n",
    "tcp://a:\u0667",
    "tcp://a b:7",
    "tcp://a/b:7",
    f"tcp://{'a' * 129}:7",
)


@pytest.mark.parametrize("endpoint", CONNECT)
def test_endpoint_to_connect_to_splits_into_address_and_port(endpoint: str) -> None:
    assert split_endpoint(endpoint) == CONNECT[endpoint]
    assert is_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", CONNECT)
def test_endpoint_to_connect_to_can_be_bound_without_its_brackets(endpoint: str) -> None:
    address, port = CONNECT[endpoint]
    assert split_bind_endpoint(endpoint) == (bare_host(address), port)


@pytest.mark.parametrize("endpoint", BIND_ONLY)
def test_wildcard_endpoint_is_valid_only_for_binding(endpoint: str) -> None:
    assert split_bind_endpoint(endpoint) == BIND_ONLY[endpoint]
    assert not is_endpoint(endpoint)
    with pytest.raises(ConfigError, match="tcp://address:port wanted"):
        split_endpoint(endpoint)


@pytest.mark.parametrize("endpoint", NEITHER)
def test_invalid_endpoint_text_is_refused_with_one_error(endpoint: str) -> None:
    assert not is_endpoint(endpoint)
    for split in (split_endpoint, split_bind_endpoint):
        with pytest.raises(ConfigError, match="endpoint: tcp://address:port wanted, not "):
            split(endpoint)
