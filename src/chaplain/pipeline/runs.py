"""Proof of a log by runs: a task checks messages that follow one another, the driver checks where runs meet.

Decides what a break is, and names it. Refuses to know where records come from and who runs the check.

    cluster chain   every message continues the one before, and its hash is that of its body
    stream chain    the verdict's hash follows from the one before and the digests of the packs
    offsets         every batch begins where the one before it in its stream ended
    digests         every pack is what its digest says
    lanes           every client's requests are numbered without a gap

Invariant: a run keeps what it saw first and last of everything, so that cutting a log anywhere hides no break.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal import verdict as verdicts
from chaplain.journal.log_records import body_of
from chaplain.journal.state import stream_genesis, stream_hash
from chaplain.journal.verdict import StreamVerdict
from chaplain.segment.layout import octets
from chaplain.segment.pack import digest_of, heads_of, stated_digest
from chaplain.segment.record import Kind, Record

_SIZE = struct.Struct("<I")


class Break(Frozen, frozen=True):
    """Something that does not hold. `offset` is that of a stream, or without a stream the index of a message."""

    stream: str
    offset: int
    kind: str
    expected: str
    found: str


class Link(Frozen, frozen=True):
    """What one message wrote to one stream, and the hash it claims for the stream."""

    first_offset: int
    count: int
    digests: list[bytes]
    chain: bytes


class Run(msgspec.Struct):
    """What a task found: where its messages begin and end, in every respect, and the breaks among them."""

    first_index: int = 0
    first_previous: bytes = b""
    last_index: int = 0
    last_hash: bytes = b""
    first_links: dict[str, Link] = {}
    last_links: dict[str, tuple[int, bytes]] = {}
    """Next offset and chain of each stream."""
    first_ids: dict[int, tuple[str, int, int]] = {}
    """Of each lane: the stream and offset where it was first seen, and the id."""
    next_ids: dict[int, int] = {}
    breaks: list[Break] = []
    rows: int = 0


class Checker:
    """Give it the messages of a run, in order, each as its records."""

    def __init__(self) -> None:
        self.run = Run()

    def message(self, records: list[Record]) -> None:
        first = records[0]
        self._chain(first)
        batches = [record for record in records if record.kind == Kind.BATCH]
        digests: dict[str, list[bytes]] = {}
        ids: list[tuple[int, int, int, str, int]] = []
        for batch in batches:
            try:
                self._batch(batch, digests.setdefault(batch.stream, []), ids)
            except Malformed as wrong:
                self._break(batch.stream, batch.first_offset, "malformed", "packs", str(wrong))
        self._streams(first, batches, digests)
        for client, first_id, requests, stream, offset in sorted(ids):
            self._lane(client, first_id, requests, stream, offset)

    def unreadable(self, stream: str, offset: int, reason: str) -> None:
        self._break(stream, offset, "damaged", "a readable record", reason)

    def _break(self, stream: str, offset: int, kind: str, expected: object, found: object) -> None:
        self.run.breaks.append(Break(stream, offset, kind, str(expected), str(found)))

    def _chain(self, first: Record) -> None:
        run = self.run
        try:
            body, _ = body_of(first)
            previous = body.previous
        except Malformed as wrong:
            self._break("", first.index, "cluster chain", first.chain_hash.hex(), wrong)
            previous = first.previous_hash
        if not run.first_index:
            run.first_index, run.first_previous = first.index, previous
        else:
            run.breaks += _continued(run.last_index, run.last_hash, first.index, previous)
        run.last_index, run.last_hash = first.index, first.chain_hash

    def _batch(self, batch: Record, digests: list[bytes], ids: list[tuple[int, int, int, str, int]]) -> None:
        view = octets(batch.body)
        offset = batch.first_offset
        for head in heads_of(view):
            raw = view[head.start : head.end]
            stated, real = stated_digest(raw), digest_of(raw)
            if stated != real:
                self._break(batch.stream, offset, "digest", stated.hex(), real.hex())
            digests.append(stated)
            ids.append((head.client_id, head.first_id, head.requests, batch.stream, offset))
            offset += head.count
        if offset - batch.first_offset != batch.count:
            self._break(batch.stream, batch.first_offset, "count", batch.count, offset - batch.first_offset)
        self.run.rows += batch.count

    def _streams(self, first: Record, batches: list[Record], digests: dict[str, list[bytes]]) -> None:
        try:
            stated = {one.stream: one for one in _verdict(first)}
        except Malformed as wrong:
            self._break("", first.index, "verdict", "a verdict", wrong)
            return
        for stream in sorted({*stated, *digests}):
            held = [batch for batch in batches if batch.stream == stream]
            one = stated.get(stream)
            if one is None or not held:
                self._break(stream, held[0].first_offset if held else -1, "verdict", one, f"{len(held)} batches")
                continue
            expected = one.first_offset
            for batch in held:
                if batch.first_offset != expected:
                    self._break(stream, batch.first_offset, "offset", expected, batch.first_offset)
                expected = batch.first_offset + batch.count
            self._link(stream, Link(one.first_offset, one.count, digests[stream], one.chain))

    def _link(self, stream: str, link: Link) -> None:
        run = self.run
        if stream in run.last_links:
            run.breaks += _linked(stream, *run.last_links[stream], link)
        else:
            run.first_links[stream] = link
        run.last_links[stream] = (link.first_offset + link.count, link.chain)

    def _lane(self, client: int, first_id: int, requests: int, stream: str, offset: int) -> None:
        run = self.run
        if client not in run.next_ids:
            run.first_ids[client] = (stream, offset, first_id)
        elif run.next_ids[client] != first_id:
            self._break(stream, offset, "lane", f"client {client} id {run.next_ids[client]}", first_id)
        run.next_ids[client] = first_id + requests


def _verdict(first: Record) -> tuple[StreamVerdict, ...]:
    data = bytes(first.body)
    if len(data) < _SIZE.size:
        raise Malformed("log: the first record of a message is too short")
    return verdicts.decode(data[_SIZE.size + _SIZE.unpack_from(data)[0] :]).streams


def _continued(last_index: int, last_hash: bytes, index: int, previous: bytes) -> list[Break]:
    if index != last_index + 1:
        return [Break("", index, "missing" if index > last_index else "repeated", str(last_index + 1), str(index))]
    if previous != last_hash:
        return [Break("", index, "cluster chain", last_hash.hex(), previous.hex())]
    return []


def _linked(stream: str, next_offset: int, chain: bytes, link: Link) -> list[Break]:
    if link.first_offset != next_offset:
        kind = "missing" if link.first_offset > next_offset else "repeated"
        return [Break(stream, link.first_offset, kind, str(next_offset), str(link.first_offset))]
    expected = stream_hash(chain, link.first_offset, link.count, link.digests)
    if expected != link.chain:
        return [Break(stream, link.first_offset, "stream chain", expected.hex(), link.chain.hex())]
    return []


def stitch(runs: Iterable[Run], cluster: str = "") -> list[Break]:
    """All breaks: those in runs, and those where runs, in the order of their messages, do not meet.

    A log that begins with message 1 must begin every stream at 0 and, if the cluster's name is given, from its genesis.
    One whose beginning was dropped is proven from where it begins.
    """
    breaks: list[Break] = []
    links: dict[str, tuple[int, bytes]] = {}
    ids: dict[int, int] = {}
    last: Run | None = None
    whole = False
    for run in sorted(runs, key=lambda run: run.first_index):
        breaks += run.breaks
        if not run.first_index:
            continue
        if last is None:
            whole = run.first_index == 1
        else:
            breaks += _continued(last.last_index, last.last_hash, run.first_index, run.first_previous)
        for stream, link in run.first_links.items():
            if stream in links:
                breaks += _linked(stream, *links[stream], link)
            elif whole and cluster:
                breaks += _linked(stream, 0, stream_genesis(cluster, stream), link)
            elif whole and link.first_offset:
                breaks.append(Break(stream, link.first_offset, "missing", "0", str(link.first_offset)))
        for client, (stream, offset, first_id) in run.first_ids.items():
            if ids.get(client, first_id) != first_id:
                breaks.append(Break(stream, offset, "lane", f"client {client} id {ids[client]}", str(first_id)))
        links |= run.last_links
        ids |= run.next_ids
        last = run
    return sorted(breaks, key=lambda one: (one.stream, one.offset, one.kind))
