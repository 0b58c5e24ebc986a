"""Memoizes pure functions during a run: five nodes compute the same value from the same bytes, so one computation is
enough.

Decides what is cached, and for how long: during one run, within a bound. A workload names the functions
(`Workload.memoized_functions`); signatures are cached in every run. Nothing that depends on a node, on time or on
random values is cached.

Invariants: a cached value is frozen, so no node can change what another gets; outside a run the original functions are
in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

from nacl.bindings import crypto_sign, crypto_sign_open

from chaplain.link.auth import identity

ANSWERS_MAX = 1 << 12
SIGNATURES_MAX = 1 << 15

Pure = tuple[ModuleType, str]
"""A module, and the name of a pure function in it."""


@contextmanager
def memoized(pure: Iterable[Pure]) -> Iterator[None]:
    signatures = _Signatures()
    memories: dict[Any, Any] = {crypto_sign: signatures.sign, crypto_sign_open: signatures.open}
    with ExitStack() as restored:
        for module, name in (*pure, (identity, "crypto_sign"), (identity, "crypto_sign_open")):
            function: Callable[..., Any] = getattr(module, name)
            if function not in memories:  # all modules that import the function share one cache
                memories[function] = lru_cache(ANSWERS_MAX)(function)
            restored.callback(setattr, module, name, function)
            setattr(module, name, memories[function])
        yield


class _Signatures:
    """Wraps libsodium: a signature that was made in this run needs no verification."""

    def __init__(self) -> None:
        self._sign = lru_cache(SIGNATURES_MAX)(crypto_sign)
        self._open = lru_cache(SIGNATURES_MAX)(crypto_sign_open)
        self._made: set[tuple[bytes, bytes]] = set()

    def sign(self, message: bytes, secret: bytes) -> bytes:
        signed: bytes = self._sign(message, secret)
        if len(self._made) < SIGNATURES_MAX:
            self._made.add((signed, secret[identity.KEY_BYTES :]))
        return signed

    def open(self, signed: bytes, key: bytes) -> bytes:
        if (signed, key) in self._made:
            return signed[identity.SIGNATURE_BYTES :]
        opened: bytes = self._open(signed, key)
        return opened
