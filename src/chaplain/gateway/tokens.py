"""Bearer tokens: which client of the cluster each of them stands for.

A token is `cpl_ID_SECRET`. The file of a token contains its id, the SHA-256 of the token and the path of the client's
identity file; the token itself is stored nowhere. It has 256 random bits, so a fast hash is enough. The id finds the
file, and the hashes are compared in constant time. Each token is a file of its own, so that commands never overwrite
each other's changes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from chaplain.config import find_cluster
from chaplain.core import Frozen
from chaplain.errors import ConfigError, Malformed, Missing
from chaplain.runtime.secret_files import read_secret, write_secret

DIRECTORY = "gateway"
"""Within the directory of the cluster."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TOKENS_MAX = 10_000
PREFIX = "cpl"
ID_BYTES, SECRET_BYTES = 6, 32
TOKEN = re.compile(rf"{PREFIX}_([0-9a-f]{{{2 * ID_BYTES}}})_[A-Za-z0-9_-]{{43}}")
RELOAD_S = 1.0
"""A new or removed token counts after this time."""
SETTLED_NS = 2_000_000_000
"""A directory that changed less than this time ago is read again: another change may leave its time as it is, because a
file system's clock is coarse.
"""
_SUFFIX = ".token"
_UNREAD = -1
"""No directory has this time of change."""
_NO_DIGEST = bytes(32)


class TokenRecord(Frozen, frozen=True, kw_only=True):
    """The contents of a token's file. `repr` shows no hash."""

    name: str
    id: str
    sha256: str
    identity: str
    """Path of the client's identity file."""
    client: str = ""
    """The client that `chaplain token new` added for this token, and `chaplain token remove` removes."""

    def __repr__(self) -> str:
        return f"TokenRecord({self.name!r}, {self.id!r}, {self.identity!r})"


def token_directory(cluster: str | Path) -> Path:
    """The directory with the tokens of a cluster's gateway."""
    return find_cluster(cluster).parent / DIRECTORY


def make_directory(directory: Path) -> None:
    directory.mkdir(mode=0o700, exist_ok=True)


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ConfigError(f"a token's name has 1 to 64 letters, digits, dots, dashes and underscores, not {name!r:.80}")
    return name


def create_token(directory: Path, name: str, identity: Path, client: str = "") -> str:
    """Store a new token and return its text, which cannot be read again."""
    identifier = secrets.token_hex(ID_BYTES)
    token = f"{PREFIX}_{identifier}_{secrets.token_urlsafe(SECRET_BYTES)}"
    record = TokenRecord(
        name=check_name(name), id=identifier, sha256=_digest(token).hex(), identity=str(identity), client=client
    )
    make_directory(directory)
    write_secret(token_file(directory, name), msgspec.json.encode(record).decode() + "\n")
    return token


def token_file(directory: Path, name: str) -> Path:
    return directory / f"{check_name(name)}{_SUFFIX}"


def list_tokens(directory: Path) -> list[TokenRecord]:
    """All tokens, by name. Raises `ConfigError` if a file is damaged or can be read by others."""
    files = sorted(directory.glob(f"*{_SUFFIX}"))
    if len(files) > TOKENS_MAX:
        raise ConfigError(f"{directory}: more than {TOKENS_MAX} tokens")
    return [read_secret(file, _parse, "token") for file in files]


def remove_token(directory: Path, name: str) -> TokenRecord:
    """Delete a token. Running gateways refuse it after `RELOAD_S`."""
    file = token_file(directory, name)
    if not file.exists():
        raise Missing(f"there is no token {name!r} in {directory}")
    record = read_secret(file, _parse, "token")
    file.unlink()
    return record


def _parse(text: str) -> TokenRecord:
    try:
        return msgspec.json.decode(text, type=TokenRecord)
    except msgspec.DecodeError as error:
        raise Malformed(str(error)) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class TokenStore:
    """The tokens that a running gateway accepts. Reads the directory again when it changes."""

    def __init__(self, directory: Path, clock_s: Callable[[], float], report: Callable[[str], object]) -> None:
        self._directory = directory
        self._clock_s = clock_s
        self._report = report
        self._by_id: dict[str, TokenRecord] = {}
        self._version: int | None = _UNREAD
        self._checked_s: float | None = None

    def find(self, authorization: str) -> TokenRecord | None:
        """The token of an `Authorization` header, or None if it is not valid."""
        self._reload()
        scheme, _, token = authorization.partition(" ")
        parsed = TOKEN.fullmatch(token.strip())
        if scheme.lower() != "bearer" or parsed is None:
            return None
        record = self._by_id.get(parsed[1])
        expected = _NO_DIGEST if record is None else bytes.fromhex(record.sha256)
        return record if hmac.compare_digest(_digest(parsed[0]), expected) else None

    def is_valid(self, record: TokenRecord) -> bool:
        """Whether a token that was found earlier still exists."""
        self._reload()
        return self._by_id.get(record.id) == record

    def _reload(self) -> None:
        now_s = self._clock_s()
        if self._checked_s is not None and now_s < self._checked_s + RELOAD_S:
            return
        self._checked_s = now_s
        version = None
        with suppress(FileNotFoundError):
            version = self._directory.stat().st_mtime_ns
        if version == self._version:
            return
        settled = version is None or time.time_ns() - version > SETTLED_NS
        self._version = version if settled else _UNREAD
        try:
            self._by_id = {record.id: record for record in list_tokens(self._directory)}
        except (ConfigError, OSError) as error:  # an unreadable file must not revoke or accept others
            self._version = _UNREAD
            self._report(f"tokens were not read again: {error}")
