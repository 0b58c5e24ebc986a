"""Idempotency keys: one key, one write."""

from __future__ import annotations

import pytest

from chaplain.gateway import problems
from chaplain.gateway.idempotency import IdempotencyKeys
from chaplain.gateway.problems import Problem, ProblemKind

KEY = ("shop", "k1")


@pytest.fixture
def keys() -> IdempotencyKeys[str]:
    return IdempotencyKeys(10.0, keys_max=3, keys_per_token_max=2)


def refusal(keys: IdempotencyKeys[str], now_s: float, key: tuple[str, str], fingerprint: bytes = b"f") -> ProblemKind:
    with pytest.raises(Problem) as found:
        keys.begin(now_s, key, fingerprint)
    return found.value.kind


def test_repeated_write_gets_the_first_receipt_until_the_key_is_forgotten(keys: IdempotencyKeys[str]) -> None:
    assert keys.begin(0.0, KEY, b"f") is None
    assert refusal(keys, 1.0, KEY) is problems.IN_PROGRESS
    keys.written(2.0, KEY, "receipt")
    assert keys.begin(11.9, KEY, b"f") == "receipt"
    assert keys.begin(12.0, KEY, b"f") is None
    assert len(keys) == 1


def test_key_of_a_different_write_is_refused(keys: IdempotencyKeys[str]) -> None:
    keys.begin(0.0, KEY, b"f")
    assert refusal(keys, 0.0, KEY, b"g") is problems.KEY_REUSED
    keys.written(0.0, KEY, "receipt")
    assert refusal(keys, 0.0, KEY, b"g") is problems.KEY_REUSED
    assert keys.begin(0.0, ("other", "k1"), b"g") is None


def test_unknown_outcome_is_retried_with_the_id_of_the_first_write(keys: IdempotencyKeys[str]) -> None:
    keys.begin(0.0, KEY, b"f")
    keys.unknown(1.0, KEY, (7, 9))
    assert keys.begin(2.0, KEY, b"f") == (7, 9)
    assert refusal(keys, 20.0, KEY) is problems.IN_PROGRESS
    keys.unknown(20.0, KEY, (7, 9))
    assert keys.begin(21.0, KEY, b"f") == (7, 9)
    keys.written(22.0, KEY, "receipt")
    assert keys.begin(23.0, KEY, b"f") == "receipt"


def test_failed_write_frees_its_key(keys: IdempotencyKeys[str]) -> None:
    keys.begin(0.0, KEY, b"f")
    keys.failed(KEY)
    assert keys.begin(0.0, KEY, b"g") is None


def test_key_of_a_lost_write_stays_in_use_until_it_is_forgotten(keys: IdempotencyKeys[str]) -> None:
    keys.begin(0.0, KEY, b"f")
    keys.lost(1.0, KEY)
    assert refusal(keys, 10.9, KEY) is problems.IN_PROGRESS
    assert keys.begin(11.0, KEY, b"f") is None


def test_keys_beyond_a_bound_are_refused_and_none_is_forgotten_early(keys: IdempotencyKeys[str]) -> None:
    for name in ("a", "b"):
        keys.begin(0.0, ("shop", name), b"f")
        keys.written(0.0, ("shop", name), name)
    assert refusal(keys, 1.0, ("shop", "c")) is problems.RATE_LIMITED
    keys.begin(1.0, ("other", "c"), b"f")
    assert refusal(keys, 1.0, ("third", "d")) is problems.BUSY
    assert keys.begin(9.0, ("shop", "a"), b"f") == "a"
    assert keys.begin(10.0, ("shop", "c"), b"f") is None
