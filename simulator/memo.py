"""What follows from octets alone is computed once in a run: five nodes ask, and each gets the same answer.

Decides what is remembered, and for how long: while a run lasts, within a bound. A workload names the functions
(`Workload.recalled`); signatures are remembered in every run. Refuses to remember anything that depends on a node, on
time or on chance.

Invariants: an answer is frozen, so that nobody can change what another was given; whoever is not within a run gets the
functions themselves.
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
"""A module, and what it calls a function of its arguments alone."""


@contextmanager
def recalling(pure: Iterable[Pure]) -> Iterator[None]:
    signatures = _Signatures()
    memories: dict[Any, Any] = {crypto_sign: signatures.sign, crypto_sign_open: signatures.open}
    with ExitStack() as restored:
        for module, name in (*pure, (identity, "crypto_sign"), (identity, "crypto_sign_open")):
            function: Callable[..., Any] = getattr(module, name)
            if function not in memories:  # one memory, whatever modules call it
                memories[function] = lru_cache(ANSWERS_MAX)(function)
            restored.callback(setattr, module, name, function)
            setattr(module, name, memories[function])
        yield


class _Signatures:
    """libsodium, which need not be asked whether a signature holds that it made."""

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
