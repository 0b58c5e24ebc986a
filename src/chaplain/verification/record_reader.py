"""Reads the records of messages at known places, in a task: each is checked, or described as damaged.

This module decides whether a record can be read from any of its copies. It does not interpret the content. A file that
cannot be opened is an error of the whole task, and never damage: the plan has seen the file, so it was there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from chaplain.errors import Malformed, StorageError
from chaplain.segment.files import OpenSegment
from chaplain.segment.record import Record, decode_body, decode_head
from chaplain.verification.access import access_errors, open_segment
from chaplain.verification.batches import Damage, Keys, MessagePart
from chaplain.verification.chain_selection import Place, SelectedMessage
from chaplain.verification.checker import SegmentChecker
from chaplain.verification.header_scan import ScannedRecord, scan_headers
from chaplain.verification.proof_segments import ProofSegment
from chaplain.verification.tree_check import LeafChecker, LeafRange
from chaplain.verification.violations import Break


class RecordReader:
    """Reads records, with one file open at a time. Raises an error if the node recycled a file while it was read."""

    def __init__(self) -> None:
        self._path = ""
        self._segment: OpenSegment | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._leave(check=kind is None)

    def _leave(self, *, check: bool) -> None:
        segment, self._segment, self._path = self._segment, None, ""
        if segment is not None:
            with segment:
                if check:
                    segment.check_not_recycled()

    def _open(self, path: str) -> OpenSegment:
        if self._segment is None or path != self._path:
            self._leave(check=True)
            self._segment, self._path = open_segment(path), path
        return self._segment

    def read(self, places: Sequence[Place], reason: str) -> MessagePart:
        """Return the first readable copy of a record. Copies that differ from it count as damage."""
        if not places:
            return Damage(reason or "no record of it")
        found = [self._read(place) for place in places]
        readable = [part for part in found if isinstance(part, Record)]
        for part in readable[1:]:
            if part.body != readable[0].body:
                head = msgspec.structs.replace(part, body=b"")
                reason = "it was written again, and is not the same there"
                return Damage(reason, head, bytes(part.body), Path(places[found.index(part)][0]).name)
        return readable[0] if readable else found[0]

    def _read(self, place: Place) -> MessagePart:
        path, position, size_bytes = place
        try:
            segment = self._open(path)
            data = segment.peek(position, size_bytes)
            head = decode_head(data, segment.header.identity, position)
        except Malformed as error:
            return Damage(str(error), file=Path(path).name)
        try:
            return msgspec.structs.replace(head.record, body=decode_body(data, head))
        except Malformed as error:
            body = data[head.body_at : head.body_at + head.body_bytes]
            return Damage(str(error), head.record, body, Path(path).name)


class PeerCopies:
    """Copies of records in other nodes' logs. A log is scanned once, when the first damaged record needs it."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = folders
        self._places: list[dict[tuple[int, int, bytes], Place]] | None = None

    def attach(self, message: SelectedMessage, parts: list[MessagePart]) -> list[MessagePart]:
        """Return the parts, each damaged one with the content of another node's copy."""
        if not self._folders or not any(isinstance(part, Damage) and part.body for part in parts):
            return parts
        return [
            part._replace(peer_body=self._find((message.index, number, message.chain)))
            if isinstance(part, Damage) and part.body
            else part
            for number, part in enumerate(parts)
        ]

    def _find(self, name: tuple[int, int, bytes]) -> bytes:
        if self._places is None:
            self._places = [_places(folder) for folder in self._folders]
        for places in self._places:
            if name in places:
                with suppress(OSError, StorageError), RecordReader() as reader:
                    part = reader.read([places[name]], "")
                    if isinstance(part, Record):
                        return bytes(part.body)
        return b""


def _places(folder: str) -> dict[tuple[int, int, bytes], Place]:
    """Return the places of all records in another node's folder; none if it cannot be read.

    The copies only help to name damage more exactly, so they are not needed for the verification.
    """
    records: list[ScannedRecord] = []
    with suppress(OSError, StorageError):
        records = [step for step in scan_headers(folder) if isinstance(step, ScannedRecord)]
    return {
        (record.index, record.part, record.chain): (record.path, record.position, record.size_bytes)
        for record in records
    }


def check(
    messages: Iterable[SelectedMessage],
    keys: Keys | None = None,
    siblings: Sequence[str] = (),
    leaf_range: LeafRange | None = None,
) -> ProofSegment:
    """Verify consecutive messages. `siblings` are folders with other nodes' copies of the log. `leaf_range` has the
    leaves of these messages, if they are compared with a signed checkpoint.

    Raises `Inaccessible` if a file cannot be read, or if the node dropped it in the meantime.
    """
    with access_errors():
        leaves = None if leaf_range is None else LeafChecker(leaf_range)
    checker, peer_copies = SegmentChecker(keys, leaves), PeerCopies(siblings)
    breaks = checker.segment.breaks
    with access_errors(), RecordReader() as reader:
        for message in messages:
            before = len(breaks)
            checker.check(
                message, peer_copies.attach(message, [reader.read(places, message.reason) for places in message.places])
            )
            if len(breaks) > before:
                breaks[before:] = [_placed(one, message) for one in breaks[before:]]
    if leaves is not None:
        breaks += leaves.check_end()
        checker.segment.subtrees = leaves.subtrees
    return checker.segment


def _placed(one: Break, message: SelectedMessage) -> Break:
    """Add the file name to a break, if all records of the message are in one file."""
    files = {path for places in message.places for path, _, _ in places}
    return one if one.file or len(files) != 1 else msgspec.structs.replace(one, file=Path(files.pop()).name)
