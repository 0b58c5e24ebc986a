"""Finds packs in a range of the log by their position: cluster message, entry, and pack within the entry.

Decides which octets are at a position. Refuses to check them: the caller knows the digest that they must have.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.errors import Malformed
from chaplain.journal.messages import ingest
from chaplain.journal.messages.cluster import Body, DataEntry
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.storage.records import group_messages, message_of
from chaplain.segment.record import Record


class PackLookup:
    """Packs of the messages in some records. Of two copies of a message the later one counts, as at recovery."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._messages = group_messages(records)
        self._decoded: dict[int, tuple[Body, list[tuple[IngestEntry, ...]]]] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._messages

    def pack(self, index: int, entry: int, pack: int) -> bytes:
        """The pack at this position. Raises `Malformed` if there is none."""
        body, messages = self._decode(index)
        number = sum(isinstance(one, DataEntry) for one in body.entries[:entry])
        if number >= len(messages) or pack >= len(messages[number]):
            raise Malformed(f"message {index} has no pack {pack} in its entry {entry}")
        return bytes(messages[number][pack].raw)

    def _decode(self, index: int) -> tuple[Body, list[tuple[IngestEntry, ...]]]:
        if index not in self._messages:
            raise Malformed(f"message {index} is not in the log")
        if index not in self._decoded:
            message = message_of(self._messages[index])
            self._decoded[index] = (message.body, [_entries(payload) for payload in message.payloads])
        return self._decoded[index]


def _entries(payload: bytes) -> tuple[IngestEntry, ...]:
    try:
        return ingest.decode(payload).entries
    except Malformed:
        return ()
