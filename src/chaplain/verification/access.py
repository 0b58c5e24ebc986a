"""Opens files of a log for a verification, and distinguishes a file that cannot be read from one with wrong content.

This module decides which failures say nothing about the content of the log: missing rights, a folder that is not
mounted here, a file that vanished, a failing device. They become `Inaccessible`, which ends the verification, because a
break must name a fault of the log. Octets that a node can repair stay damage: an unreadable sector behind a readable
header is read as zeros (`segment.salvage`), and a copy of the record further on replaces it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chaplain.errors import Inaccessible, Malformed
from chaplain.segment import salvage
from chaplain.segment.files import OpenSegment, Recycled
from chaplain.segment.layout import RECORDS_START


@contextmanager
def access_errors() -> Iterator[None]:
    """Raise `Inaccessible` for errors of the operating system, and for files that the node recycled meanwhile."""
    try:
        yield
    except OSError as error:
        where = "a file of the log" if error.filename is None else os.fsdecode(error.filename)
        raise Inaccessible(f"cannot read {where}: {error.strerror or error}") from error
    except Recycled as error:
        raise Inaccessible(f"{error}: the node dropped this part of its log; verify again") from error


def exists(path: Path) -> bool:
    """Whether there is such a file. Raises `OSError` if this is unknown, unlike `Path.exists` of Python 3.14."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def open_segment(path: Path | str) -> OpenSegment:
    """Open a segment. Raises `Malformed` only if its header can be read and is wrong."""
    try:
        return OpenSegment(path)
    except Malformed:
        if not _is_header_readable(path):
            raise Inaccessible(f"cannot read {path}: the disk does not return its header") from None
        raise


def _is_header_readable(path: Path | str) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return salvage.is_readable(descriptor, 0, RECORDS_START)
    finally:
        os.close(descriptor)
