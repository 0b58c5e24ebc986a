"""Reads the records of messages whose places are known, for tasks: checked, or with what is wrong with them.

Decides whether a record can be read, wherever it was written. Refuses to know what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

import msgspec

from chaplain.errors import Malformed
from chaplain.pipeline.batches import Damage, Keys, Part
from chaplain.pipeline.checker import Checker
from chaplain.pipeline.ledger import Held, Place
from chaplain.pipeline.runs import Run
from chaplain.segment.files import OpenSegment
from chaplain.segment.record import Record, decode_body, decode_head


class PartReader:
    """Keeps one file open at a time. A file that was recycled meanwhile is an error when it is left."""

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
                    segment.check_life()

    def _open(self, path: str) -> OpenSegment:
        if self._segment is None or path != self._path:
            self._leave(check=True)
            self._segment, self._path = OpenSegment(path), path
        return self._segment

    def read(self, places: Sequence[Place], reason: str) -> Part:
        """The first that can be read of what was written, first and again; what else can be read must be the same."""
        if not places:
            return Damage(reason or "no record of it")
        found = [self._read(place) for place in places]
        readable = [part for part in found if isinstance(part, Record)]
        for part in readable[1:]:
            if part.body != readable[0].body:
                head = msgspec.structs.replace(part, body=b"")
                return Damage("it was written again, and is not the same there", head, bytes(part.body))
        return readable[0] if readable else found[0]

    def _read(self, place: Place) -> Part:
        path, position, size_bytes = place
        try:
            segment = self._open(path)
            data = segment.peek(position, size_bytes)
            head = decode_head(data, segment.header.identity, position)
        except (Malformed, FileNotFoundError) as wrong:
            return Damage(str(wrong))
        try:
            return msgspec.structs.replace(head.record, body=decode_body(data, head))
        except Malformed as wrong:
            return Damage(str(wrong), head.record, data[head.body_at : head.body_at + head.body_bytes])


def check(messages: Iterable[Held], keys: Keys | None = None) -> Run:
    """Prove messages that follow one another."""
    checker = Checker(keys)
    with PartReader() as reader:
        for held in messages:
            checker.message(held, [reader.read(places, held.reason) for places in held.places])
    return checker.run
