"""What is remembered while a run lasts: pure functions, and which signatures hold."""

from __future__ import annotations

from types import ModuleType

import pytest
from nacl.bindings import crypto_sign, crypto_sign_open

from chaplain.link.auth import identity
from chaplain.link.auth.identity import Identity, verify
from simulator.memo import memoized


def _module(name: str, asked: list[int]) -> ModuleType:
    module = ModuleType(name)
    module.double = lambda number: asked.append(number) or 2 * number  # type: ignore[attr-defined]
    return module


def test_memoized_result_is_shared_by_all_modules_within_a_run():
    asked: list[int] = []
    one, other = _module("one", asked), ModuleType("other")
    double = other.double = one.double
    with memoized([(one, "double"), (other, "double")]):
        assert [one.double(2), other.double(2), one.double(3)] == [4, 4, 6]
        assert asked == [2, 3]
    assert one.double is double
    assert other.double is double


def test_original_functions_are_restored_when_a_run_fails():
    one = _module("one", [])
    double = one.double
    with pytest.raises(ZeroDivisionError), memoized([(one, "double")]):
        raise ZeroDivisionError
    assert one.double is double
    assert (identity.crypto_sign, identity.crypto_sign_open) == (crypto_sign, crypto_sign_open)


def test_memoized_signatures_are_equal_and_forged_ones_are_invalid():
    ann, bob = Identity(b"a" * 32), Identity(b"b" * 32)
    plain = ann.sign(b"label", b"message")
    with memoized(()):
        signature = ann.sign(b"label", b"message")
        assert signature == plain
        for _ in range(2):  # asked the first time, and remembered
            assert verify(ann.key, b"label", b"message", signature)
            assert not verify(bob.key, b"label", b"message", signature)
            assert not verify(ann.key, b"label", b"another", signature)
            assert not verify(ann.key, b"other", b"message", signature)
            assert not verify(ann.key, b"label", b"message", signature[:-1] + b"\0")
        assert verify(bob.key, b"label", b"message", bob.sign(b"label", b"message"))
    with memoized(()):
        assert verify(ann.key, b"label", b"message", plain), "made before the run"
