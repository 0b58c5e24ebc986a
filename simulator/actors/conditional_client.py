"""A client whose writes have conditions, near what is true, so that many hold and many do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaplain.journal.messages.conditions import (
    HEADER,
    TAGS_HEADER,
    Condition,
    Fence,
    KeyUnchanged,
    NextOffset,
    TagUnchanged,
    encode,
    encode_tags,
)
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import SLOT_BYTES, SignatureType, sign_pack
from chaplain.link.auth.identity import Identity
from chaplain.segment.headers import encode_headers
from chaplain.segment.pack import Pack, encode_pack
from simulator.actors.journal_clients import SimClient

if TYPE_CHECKING:
    from simulator.workloads.conditions import Conditions

KEYS = (b"a", b"b", b"c", b"d", b"e", b"f")
FENCES = ("leader", "writer")
TAGS = ("red", "green", "blue")
_TOKEN_EVERY = 20
"""The highest token rises by one with this many messages of a stream."""


class ConditionalClient(SimClient):
    _workload: Conditions

    def make_pack(self, first_id: int, stream: str, signer: Identity | None = None) -> IngestEntry:
        count = self.rng.choice((1, 1, 2, 3))
        values = tuple(b"%s %d %s" % (self.name.encode(), first_id, self.rng.randbytes(4)) for _ in range(count))
        keys = tuple(self.rng.choice((*KEYS, None)) for _ in range(count))
        asked = self._conditions(stream, keys)
        tags = self.rng.sample(TAGS, self.rng.choice((0, 0, 1, 2)))
        headers = {HEADER: encode(asked)} | ({TAGS_HEADER: encode_tags(tags)} if tags else {})
        cell = encode_headers(headers) if asked or tags else None
        slot = bytes(SLOT_BYTES[SignatureType.ED25519])
        columns = (values, keys, (cell, *[None] * (count - 1)), (count,))
        kind = self.rng.choice((0, 7))
        made = Pack(self.lane, first_id, *columns, kind, SignatureType.ED25519, slot, conditional=cell is not None)
        raw = encode_pack(made)
        entry = IngestEntry(stream, sign_pack(raw, self._workload.founding.cluster, stream, signer or self.identity))
        self._workload.made.append(entry)
        return entry

    def _conditions(self, stream: str, keys: tuple[bytes | None, ...]) -> list[Condition]:
        written = self._workload.keys_of(stream)
        head = len(written)
        asked: list[Condition] = []
        if self.rng.random() < 0.4:
            asked.append(NextOffset(max(0, head + self.rng.choice((-1, 0, 0, 0, 1, 2)))))
        for key in sorted({key for key in keys if key is not None}):
            if self.rng.random() < 0.5:
                last = max((offset for offset, known in enumerate(written) if known == key), default=-1)
                asked.append(KeyUnchanged(key, max(0, last + self.rng.choice((-1, 0, 1, 1, 1, 2, 9)))))
        if self.rng.random() < 0.3:
            tag = self.rng.choice(TAGS)
            last = max((offset for offset, known in self._workload.tagged_of(stream) if known == tag), default=-1)
            asked.append(TagUnchanged(tag, max(0, last + self.rng.choice((-1, 0, 1, 1, 1, 2)))))
        if self.rng.random() < 0.2:
            token = head // _TOKEN_EVERY + self.rng.choice((0, 0, 1))
            asked.append(Fence(self.rng.choice(FENCES), token))
        self.rng.shuffle(asked)
        return asked
