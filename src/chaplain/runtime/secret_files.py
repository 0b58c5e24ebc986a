"""Reads and writes files with secrets: identities and key rings.

A secret file has mode 600. This module refuses to read a file that group or others can access and does not repair its
mode: another user may have read the key already, so the operator has to decide whether to replace it.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from chaplain import durable
from chaplain.errors import ConfigError, Malformed
from chaplain.link.auth.identity import KEY_BYTES, Identity, from_text
from chaplain.link.auth.keyring import KeyRing

SECRET_BYTES_MAX = 64 * 1024

T = TypeVar("T")


def read_identity(file: Path) -> Identity:
    return read_secret(file, Identity.parse, "identity")


def read_keyring(file: Path) -> KeyRing:
    return read_secret(file, KeyRing.parse, "keyring")


def read_public_key(text: str, where: str) -> bytes:
    try:
        return from_text(text, KEY_BYTES, where)
    except Malformed as error:
        raise ConfigError(f"{error}; copy the line of 'key' from the identity file") from None


def write_secret(file: Path, text: str) -> None:
    """Create the file. It never overwrites an existing file, because an overwritten key cannot be recovered."""
    try:
        durable.write_new(file, text)
    except FileExistsError:
        raise ConfigError(f"{file} exists; choose another name, for a key is never overwritten") from None
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error


def read_secret(file: Path, parse: Callable[[str], T], kind: str) -> T:
    """Read a secret file of any kind. Raises ConfigError if others can read it too."""
    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & 0o077:
                remedy = f"`chmod 600 {shlex.quote(str(file))}`"
                raise ConfigError(f"{file} can be read by others (mode {mode:o}); run {remedy}")
            return parse(stream.read(SECRET_BYTES_MAX).decode())
    except OSError as error:
        command = f"`chaplain key new --kind {kind} --out {shlex.quote(str(file))}`"
        hint = f"; make one with {command}" if kind in {"identity", "keyring"} else ""
        raise ConfigError(f"cannot read the {kind} file {file}: {error.strerror}{hint}") from error
    except (Malformed, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no {kind} file: {error}") from None
