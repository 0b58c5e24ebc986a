"""Tokens: what is stored, who may read it, and which token a header names."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from chaplain.errors import ConfigError, Missing
from chaplain.gateway.tokens import (
    RELOAD_S,
    TokenStore,
    create_token,
    list_tokens,
    remove_token,
    token_file,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "gateway"


def test_file_of_a_token_is_private_and_contains_only_its_hash(directory: Path) -> None:
    token = create_token(directory, "shop", Path("/shop.identity"))
    file = token_file(directory, "shop")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    secret = token.split("_", 2)[2]
    assert secret not in file.read_text()
    record = list_tokens(directory)[0]
    assert (record.name, record.identity, record.client) == ("shop", "/shop.identity", "")
    assert secret not in repr(record)
    assert record.sha256 not in repr(record)


def test_store_finds_only_exact_tokens_with_bearer(directory: Path) -> None:
    token, other = (create_token(directory, name, Path("/i")) for name in ("shop", "other"))
    store = TokenStore(directory, Clock(), pytest.fail)
    found = store.find(f"Bearer {token}")
    assert found is not None
    assert found.name == "shop"
    assert store.find(f"bearer {token}") == found
    prefix, identifier, _ = token.split("_", 2)
    mixed = f"{prefix}_{identifier}_{other.split('_', 2)[2]}"
    wrong = "A" if token[-1] != "A" else "B"
    for header in ("", token, f"Basic {token}", f"Bearer {mixed}", f"Bearer {token[:-1]}{wrong}", f"Bearer {token}x",
                   f"Bearer {prefix}_000000000000_{'A' * 43}", "Bearer ü", f"Bearer {token}\n{token}"):  # fmt: skip
        assert store.find(header) is None, header


def test_removal_counts_although_the_directory_keeps_its_time_of_change(directory: Path) -> None:
    clock = Clock()
    token = create_token(directory, "shop", Path("/i"))
    store = TokenStore(directory, clock, pytest.fail)
    assert store.find(f"Bearer {token}") is not None
    changed = directory.stat()
    remove_token(directory, "shop")
    os.utime(directory, ns=(changed.st_atime_ns, changed.st_mtime_ns))  # as a coarse clock would
    clock.now_s += RELOAD_S
    assert store.find(f"Bearer {token}") is None


def test_removed_and_new_tokens_count_after_the_reload_time(directory: Path) -> None:
    clock = Clock()
    store = TokenStore(directory, clock, pytest.fail)
    assert store.find("Bearer x") is None
    token = create_token(directory, "shop", Path("/i"))
    clock.now_s += RELOAD_S
    found = store.find(f"Bearer {token}")
    assert found is not None
    remove_token(directory, "shop")
    assert store.is_valid(found)
    clock.now_s += RELOAD_S
    assert not store.is_valid(found)
    assert store.find(f"Bearer {token}") is None


def test_unreadable_file_leaves_the_known_tokens_valid_and_is_reported(directory: Path) -> None:
    clock, reports = Clock(), list[str]()
    token = create_token(directory, "shop", Path("/i"))
    store = TokenStore(directory, clock, reports.append)
    assert store.find(f"Bearer {token}") is not None
    create_token(directory, "other", Path("/i"))
    token_file(directory, "other").chmod(0o644)
    clock.now_s += RELOAD_S
    assert store.find(f"Bearer {token}") is not None
    assert "can be read by others" in reports[0]
    token_file(directory, "other").chmod(0o600)
    clock.now_s += RELOAD_S
    store.find("")
    assert len(reports) == 1


def test_taken_wrong_and_missing_names_are_refused(directory: Path) -> None:
    create_token(directory, "shop", Path("/i"))
    with pytest.raises(ConfigError, match="exists"):
        create_token(directory, "shop", Path("/i"))
    for name in ("", "../shop", ".shop", "a b", "x" * 65):
        with pytest.raises(ConfigError, match="name"):
            create_token(directory, name, Path("/i"))
    with pytest.raises(Missing, match="no token 'none'"):
        remove_token(directory, "none")


def test_damaged_file_is_named(directory: Path) -> None:
    create_token(directory, "shop", Path("/i"))
    token_file(directory, "shop").write_text("{}")
    with pytest.raises(ConfigError, match=r"shop\.token is no token file"):
        list_tokens(directory)
