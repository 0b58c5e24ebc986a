"""Which key ring a node starts with, where the configured one and the rotated one are two files."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaplain.errors import ConfigError
from chaplain.link.auth.keyring import KeyRing
from chaplain.node.keyring_store import KEYRING_FILE
from chaplain.runtime.layers.keyring import choose_keyring

FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))


def put(file: Path, *keys: bytes) -> None:
    file.write_text(KeyRing(keys[0], keys[1:]).text())
    file.chmod(0o600)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The configured file, the data directory and the rotated ring of a node that was started and rotated twice."""
    configured, data = tmp_path / "etc-keyring", tmp_path / "data"
    data.mkdir()
    put(configured, FIRST)
    assert choose_keyring(configured, data).used == FIRST
    put(data / KEYRING_FILE, SECOND)
    return configured, data, data / KEYRING_FILE


def test_rotated_ring_precedes_the_configured_one(places: tuple[Path, Path, Path]) -> None:
    configured, data, _ = places
    assert choose_keyring(configured, data).used == SECOND
    configured.unlink()
    assert choose_keyring(configured, data).used == SECOND


def test_replaced_configured_ring_stops_the_start(places: tuple[Path, Path, Path]) -> None:
    configured, data, rotated = places
    put(configured, THIRD)
    with pytest.raises(ConfigError, match=f"remove {rotated} to use the new key"):
        choose_keyring(configured, data)
    rotated.unlink()
    assert choose_keyring(configured, data).ids == KeyRing(THIRD).ids
    put(rotated, SECOND)
    assert choose_keyring(configured, data).used == SECOND, "rotated again since then"


def test_configured_ring_with_the_used_key_is_accepted(places: tuple[Path, Path, Path]) -> None:
    configured, data, rotated = places
    put(configured, SECOND)
    put(rotated, THIRD, SECOND)
    assert choose_keyring(configured, data).used == THIRD


def test_replacing_the_single_ring_file_is_enough(tmp_path: Path) -> None:
    put(tmp_path / KEYRING_FILE, FIRST)
    assert choose_keyring(tmp_path / KEYRING_FILE, tmp_path).used == FIRST
    put(tmp_path / KEYRING_FILE, SECOND)
    assert choose_keyring(tmp_path / KEYRING_FILE, tmp_path).used == SECOND
    assert [file.name for file in tmp_path.iterdir()] == [KEYRING_FILE]
