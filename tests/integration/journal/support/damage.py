"""Harm to the files of a node that is down."""

from __future__ import annotations

from pathlib import Path

from chaplain.journal.storage.records import is_message
from chaplain.runtime.layers.journal import DISK_FILE
from chaplain.segment.header import read_headers
from chaplain.segment.scan import scan
from tests.support.process_cluster import Node


def segments(node: Node) -> list[Path]:
    return sorted((node.folder / "segments").glob("journal-*.segment"))


def records(file: Path) -> list[tuple[int, int, int, bool]]:
    """Where each record of a segment lies in its file, its index, and whether it belongs to a message."""
    data = file.read_bytes()
    header = read_headers(data).header
    assert header is not None
    found = scan(data, header).records
    base = header.base
    return [(head.position - base, head.end - base, record.index, is_message(record)) for head, record in found]


def flip(file: Path, at: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        octet = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([octet ^ 1]))


def flip_last_message(node: Node) -> None:
    for file in reversed(segments(node)):
        messages = [record for record in records(file) if record[3]]
        if messages:
            return flip(file, messages[-1][0] + 60)
    raise AssertionError(f"{node} holds no message")


def flip_in_the_middle(node: Node) -> None:
    file = segments(node)[0]
    messages = [record for record in records(file) if record[3]]
    flip(file, messages[len(messages) // 2][0] + 60)


def wipe(node: Node) -> None:
    for file in [*segments(node), *node.folder.glob("**/journal.*"), node.folder / DISK_FILE]:
        file.unlink(missing_ok=True)
