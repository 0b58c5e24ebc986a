"""Damage to plant in a log, each with the breaks that name it: what a proof must say, no more and no less.

A case gets a scene and a chance, changes the log, and returns what must be found as (stream, offset, kind).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import msgspec
from pipeline_journal import NODE_TOML, Author, Groups, recorded, rich_journal
from pipeline_stage import put
from requests_stage import ADMIN_ACL, BOB, CLUSTER, Stage, petition

from chaplain.journal import config_message, lanes, verdict
from chaplain.journal.cluster_message import chain_hash, decode_body, encode_body
from chaplain.journal.config_message import LeaseLane
from chaplain.journal.lanes import Ruling, Standing
from chaplain.journal.log_records import Jot, encode_jot
from chaplain.pipeline.batches import split_first
from chaplain.pipeline.breaks import Break
from chaplain.pipeline.plan import Asked
from chaplain.pipeline.verify import prove, prove_here
from chaplain.segment.files import OpenSegment, list_segments, scan_file
from chaplain.segment.pack import decode_pack, encode_pack, heads_of
from chaplain.segment.record import Kind, Record

Named = set[tuple[str, int, str]]
SEGMENT_BYTES = 16 * 1024


class Scene:
    """A log in a folder like a node's, with a jot and a sibling if the case wants one."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.seed = seed
        self.chance = random.Random(f"damage {seed}")
        self.groups: Groups = rich_journal(seed)
        self.signatures = False
        self.manifest: Path | None = None

    @property
    def segments(self) -> Path:
        return self.directory / "node-1" / "segments"

    def write(self, groups: Groups | None = None, node: int = 1) -> Path:
        folder = self.directory / f"node-{node}"
        put(folder / "segments", self.groups if groups is None else groups, SEGMENT_BYTES)
        (folder / "node.toml").write_text(NODE_TOML)
        return folder / "segments"

    def rewrite(self, groups: Groups) -> None:
        for file in self.segments.iterdir():
            file.unlink()
        self.write(groups)

    def jot(self, index: int | None = None) -> None:
        """As the node wrote it with its last append: it knew less to be on disk than it had written."""
        end = scan_file(list_segments(self.segments)[-1].path).end
        known = len(self.groups) if index is None else index
        (self.segments / "journal.jot").write_bytes(encode_jot(Jot(b"b" * 16, end, known)))

    def breaks(self, tasks: int) -> list[Break]:
        if self.manifest is not None:
            return prove(None, path=str(self.segments), manifest=self.manifest).breaks
        return prove_here(Asked(str(self.segments), signatures=self.signatures), tasks)[0].breaks

    # Choosing.

    def index(self, batches: int = 1, *, within: tuple[int, int] = (6, -3)) -> int:
        """A message with data, of which there is something before and behind."""
        found = [
            group[0].index
            for group in self.groups[within[0] : within[1]]
            if sum(record.kind == Kind.BATCH for record in group) >= batches
        ]
        return self.chance.choice(found)

    def group(self, index: int) -> list[Record]:
        return self.groups[index - 1]

    def batch(self, index: int) -> tuple[int, Record]:
        """Part number and record of one of a message's batches."""
        found = [(part, record) for part, record in enumerate(self.group(index)) if record.kind == Kind.BATCH]
        return self.chance.choice(found)

    def replace(self, index: int, part: int, **fields: object) -> None:
        group = list(self.group(index))
        group[part] = msgspec.structs.replace(group[part], **fields)
        self.groups[index - 1] = group

    def has_later(self, stream: str, index: int) -> bool:
        return any(record.stream == stream for group in self.groups[index:] for record in group)


def streams_of(group: list[Record]) -> dict[str, int]:
    """The first offset that a message has of each stream."""
    batches = [record for record in group if record.kind == Kind.BATCH]
    return {record.stream: record.first_offset for record in reversed(batches)}


def split(record: Record) -> tuple[list[bytes], list[int]]:
    """The packs of a batch, and their offsets."""
    body = bytes(record.body)
    heads = heads_of(body)
    starts = accumulate((head.count for head in heads), initial=record.first_offset)
    return [body[head.start : head.end] for head in heads], list(starts)[:-1]


def changed(raw: bytes, **fields: object) -> bytes:
    return encode_pack(msgspec.structs.replace(decode_pack(raw), **fields))


def with_pack(scene: Scene, index: int, part: int, number: int, raw: bytes, **fields: object) -> None:
    packs, _ = split(scene.group(index)[part])
    packs[number] = raw
    scene.replace(index, part, body=b"".join(packs), **fields)


# Messages that are not there, there twice, or elsewhere.


def missing(scene: Scene) -> Named:
    index = scene.index()
    gone = streams_of(scene.group(index))
    scene.write(scene.groups[: index - 1] + scene.groups[index:])
    jumps = {(stream, first, "missing") for stream, first in gone.items() if scene.has_later(stream, index)}
    return {("", index, "missing"), *jumps}


def missing_row_of_messages(scene: Scene) -> Named:
    index = scene.index(within=(6, -8))
    gone = [streams_of(group) for group in scene.groups[index - 1 : index + 2]]
    scene.write(scene.groups[: index - 1] + scene.groups[index + 2 :])
    firsts = {stream: first for one in reversed(gone) for stream, first in one.items()}
    jumps = {(stream, first, "missing") for stream, first in firsts.items() if scene.has_later(stream, index + 2)}
    return {("", index, "missing"), *jumps}


def duplicated_pack(scene: Scene) -> Named:
    index = scene.index()
    part, record = scene.batch(index)
    packs, _ = split(record)
    twice = sum(decode_count(raw) for raw in [*packs, packs[-1]])
    scene.replace(index, part, body=b"".join([*packs, packs[-1]]), count=twice)
    scene.write()
    return {(record.stream, record.first_offset, "header")}


def decode_count(raw: bytes) -> int:
    return len(decode_pack(raw).values)


def duplicated_request(scene: Scene) -> Named:
    """A request that was applied twice by a cluster that does not look at ids."""
    with lawless():
        scene.groups, place = forged(scene.seed, lambda author, _: author.last)
    scene.write()
    return {(*place, "lane")}


def swapped_messages(scene: Scene) -> Named:
    index = scene.index()
    scene.write([*scene.groups[: index - 1], scene.groups[index], scene.groups[index - 1], *scene.groups[index + 1 :]])
    return {("", index + 1, "order")}


def batches_of_many(scene: Scene) -> list[tuple[int, int]]:
    """Message and part of batches with more than one pack."""
    return [
        (group[0].index, part)
        for group in scene.groups[6:-3]
        for part, record in enumerate(group)
        if record.kind == Kind.BATCH and len(split(record)[0]) > 1
    ]


def swapped_packs(scene: Scene) -> Named:
    index, part = scene.chance.choice(batches_of_many(scene))
    record = scene.group(index)[part]
    packs, _ = split(record)
    scene.replace(index, part, body=b"".join([*packs[2:], packs[1], packs[0]][-2:] + packs[2:]))
    scene.write()
    entry_first = first_batch_of_entry(scene, index, record)
    return {(entry_first.stream, entry_first.first_offset, "digest")}


def first_batch_of_entry(scene: Scene, index: int, record: Record) -> Record:
    """Which batch stands for an ingest message as a whole."""
    origin = (record.origin_node, record.origin_journal, record.origin_index)
    return next(
        one
        for one in scene.group(index)
        if one.kind == Kind.BATCH and (one.origin_node, one.origin_journal, one.origin_index) == origin
    )


def swapped_rows(scene: Scene) -> Named:
    index = scene.index()
    part, record = scene.batch(index)
    packs, offsets = split(record)
    number = scene.chance.randrange(len(packs))
    raw = packs[number]
    values = decode_pack(raw).values
    first, last = values[0], values[-1]
    at, behind = raw.index(first), raw.rindex(last)
    scene_raw = raw[:at] + last + raw[at + len(first) : behind] + first + raw[behind + len(last) :]
    with_pack(scene, index, part, number, scene_raw)
    scene.write()
    return {(record.stream, offsets[number], "digest")}


# Altered octets.


def altered_payload(scene: Scene) -> Named:
    """Of a pack that is not its batch's first: its place is known better than that of the ingest message."""
    index, part = scene.chance.choice(batches_of_many(scene))
    record = scene.group(index)[part]
    packs, offsets = split(record)
    number = scene.chance.randrange(1, len(packs))
    raw = bytearray(packs[number])
    raw[len(raw) - 16] ^= 1
    with_pack(scene, index, part, number, bytes(raw))
    scene.write()
    return {(record.stream, offsets[number], "digest")}


def flipped_payload(scene: Scene) -> Named:
    """As a disk would do it: checksums do not follow."""
    index = scene.index()
    part, record = scene.batch(index)
    packs, offsets = split(record)
    number = scene.chance.randrange(len(packs))
    value = scene.chance.choice(decode_pack(packs[number]).values)
    scene.write()
    flip(scene, index, part, value)
    return {(record.stream, offsets[number], "damaged")}


def flip(scene: Scene, index: int, part: int, octets: bytes) -> None:
    file, position = find(scene, index, part)
    with OpenSegment(file) as segment:
        at = position - segment.header.base
    data = file.read_bytes()
    file.write_bytes(data[:at] + data[at:].replace(octets, octets[:-1] + bytes([octets[-1] ^ 1]), 1))


def forged_pack(scene: Scene) -> Named:
    """Another value, and a digest that fits it."""
    index = scene.index()
    part, record = scene.batch(index)
    packs, _ = split(record)
    pack_ = decode_pack(packs[0])
    with_pack(scene, index, part, 0, changed(packs[0], values=(b"9" * len(pack_.values[0]), *pack_.values[1:])))
    scene.write()
    entry_first = first_batch_of_entry(scene, index, record)
    return {(entry_first.stream, entry_first.first_offset, "digest")}


def last_row_gone(scene: Scene) -> Named:
    index = scene.index()
    part, record = scene.batch(index)
    packs, _ = split(record)
    pack_ = decode_pack(packs[-1])
    raw = changed(packs[-1], values=pack_.values[:-1])
    consistent = {"count": record.count - 1} if scene.chance.random() < 0.5 else {}
    with_pack(scene, index, part, len(packs) - 1, raw, **consistent)
    scene.write()
    return {(record.stream, record.first_offset, "header" if consistent else "count")}


def altered_header(scene: Scene) -> Named:
    index = scene.index()
    part, record = scene.batch(index)
    field, value = scene.chance.choice(
        [
            ("first_offset", record.first_offset + 7),
            ("count", record.count + 1),
            ("timestamp_ns", record.timestamp_ns + 1),
            ("regime", record.regime + 1),
            ("origin_index", record.origin_index + 1),
            ("origin_node", record.origin_node % 3 + 1),
            ("stream", "orderz"),
            ("previous_hash", b"\1" * 32),
        ]
    )
    scene.replace(index, part, **{field: value})
    scene.write()
    return {(record.stream, record.first_offset, "header")}


def flipped_header(scene: Scene) -> Named:
    """The head of a batch: which record it was is known from the message alone."""
    index = scene.index()
    part, record = scene.batch(index)
    scene.write()
    file, head = find(scene, index, part)
    with file.open("r+b") as stream:
        with OpenSegment(file) as segment:
            stream.seek(head - segment.header.base + 40)
        stream.write(b"\xff")
    return {(record.stream, record.first_offset, "damaged")}


def find(scene: Scene, index: int, part: int) -> tuple[Path, int]:
    for file in list_segments(scene.segments):
        for head, record in scan_file(file.path).records:
            if (record.index, record.part) == (index, part) and record.kind in (Kind.META, Kind.BATCH):
                return file.path, head.position
    raise AssertionError("it is not there")


# Chains, regimes, signatures.


def broken_chain(scene: Scene) -> Named:
    index = scene.index()
    raw = bytearray(scene.group(index)[0].body)
    raw[4 + 1 + 4 + 8 + 1 + 1 + 7] ^= 1  # the lowest octet of the body's timestamp
    scene.replace(index, 0, body=bytes(raw))
    scene.write()
    return {("", index, "cluster chain")}


def broken_chain_in_heads(scene: Scene) -> Named:
    index = scene.index()
    for part in range(len(scene.group(index))):
        scene.replace(index, part, chain_hash=b"\7" * 32)
    scene.write()
    return {("", index, "cluster chain")}


def rewritten_message(scene: Scene) -> Named:
    """Its hash fits it; what follows continues another."""
    index = scene.index()
    first = scene.group(index)[0]
    raw, said = split_first(first)
    body = encode_body(msgspec.structs.replace(decode_body(raw), master=2))
    chain = chain_hash(first.previous_hash, body)
    for part in range(len(scene.group(index))):
        scene.replace(index, part, chain_hash=chain)
    scene.replace(index, 0, body=len(body).to_bytes(4, "little") + body + said)
    scene.write()
    return {("", index + 1, "cluster chain")}


def broken_stream_chain(scene: Scene) -> Named:
    index = scene.index()
    first = scene.group(index)[0]
    raw, said = split_first(first)
    decided = verdict.decode(said)
    number = scene.chance.randrange(len(decided.streams))
    wrong = msgspec.structs.replace(decided.streams[number], chain=b"\5" * 32)
    streams = (*decided.streams[:number], wrong, *decided.streams[number + 1 :])
    encoded = verdict.encode(msgspec.structs.replace(decided, streams=streams))
    scene.replace(index, 0, body=len(raw).to_bytes(4, "little") + raw + encoded)
    scene.write()
    return {(wrong.stream, wrong.first_offset, "stream chain")}


def altered_verdict(scene: Scene) -> Named:
    index = scene.index()
    first = scene.group(index)[0]
    raw, said = split_first(first)
    decided = verdict.decode(said)
    right = decided.streams[0]
    wrong = msgspec.structs.replace(right, first_offset=right.first_offset + 3)
    encoded = verdict.encode(msgspec.structs.replace(decided, streams=(wrong, *decided.streams[1:])))
    scene.replace(index, 0, body=len(raw).to_bytes(4, "little") + raw + encoded)
    scene.write()
    return {(right.stream, right.first_offset, "verdict")}


def wrong_signature(scene: Scene) -> Named:
    """Ordered and executed by a cluster that believed it; all hashes fit."""
    scene.groups, place = forged(scene.seed, lambda author, _: author.entry_by_another())
    scene.signatures = True
    scene.write()
    return {(*place, "signature")}


def forged_lease(scene: Scene) -> Named:
    """A lane of the admin's that Bob asked for, granted by a cluster that believed him."""
    kept = config_message.signature_holds
    config_message.signature_holds = lambda *_: True  # type: ignore[assignment]
    try:
        stage = Stage()
        author = Author(stage)
        stage.prefix.order([stage.prefix.ingest([author.entry(scene.chance)])])
        stage.config(petition(LeaseLane(ADMIN_ACL), signer=BOB, nonce=b"forged".ljust(16)))
        index = stage.prefix.messages[-1].body.index
        stage.prefix.order([stage.prefix.ingest([author.entry(scene.chance)])])
        scene.groups = recorded(stage)
    finally:
        config_message.signature_holds = kept
    scene.signatures = True
    scene.write()
    return {("", index, "signature")}


def altered_signature(scene: Scene) -> Named:
    index = scene.index()
    part, record = scene.batch(index)
    packs, offsets = split(record)
    number = scene.chance.randrange(len(packs))
    raw = bytearray(packs[number])
    raw[70] ^= 1
    with_pack(scene, index, part, number, bytes(raw))
    scene.signatures = scene.chance.random() < 0.5
    scene.write()
    if scene.signatures:
        return {(record.stream, offsets[number], "signature")}
    entry_first = first_batch_of_entry(scene, index, record)
    return {(entry_first.stream, entry_first.first_offset, "digest")}


def stale_regime(scene: Scene) -> Named:
    scene.groups, index = staled(scene.seed)
    scene.write()
    return {("", index, "regime")}


def another_cluster(scene: Scene) -> Named:
    scene.write()
    (scene.directory / "node-1" / "node.toml").write_text(NODE_TOML.replace(CLUSTER, "elsewhere"))
    return {("", 1, "genesis")}


# Tails.


def rewritten_tail(scene: Scene) -> Named:
    """Another story with right hashes, told by one node alone."""
    other = rich_journal(scene.seed, parts_at=20)
    first = next(i for i, (a, b) in enumerate(zip(scene.groups, other, strict=False)) if a[0].body != b[0].body)
    scene.write(other)
    scene.write(node=2)
    (scene.directory / "cluster.toml").touch()
    return {("", first + 1, "fork")}


def rewritten_behind_a_manifest(scene: Scene) -> Named:
    scene.write()
    scene.manifest = scene.directory / "manifest.json"
    assert prove(None, path=str(scene.segments), manifest=scene.manifest).breaks == []
    scene.rewrite(rich_journal(scene.seed, parts_at=20, messages=31))
    return {("", scene.groups[-1][0].index, "fork")}


def cut_behind_a_manifest(scene: Scene) -> Named:
    scene.write()
    scene.manifest = scene.directory / "manifest.json"
    assert prove(None, path=str(scene.segments), manifest=scene.manifest).breaks == []
    scene.rewrite(scene.groups[:-2])
    return {("", len(scene.groups) - 1, "missing")}


def cut_before_the_jot(scene: Scene) -> Named:
    scene.write()
    scene.jot(len(scene.groups) - scene.seed % 2)
    jot = (scene.segments / "journal.jot").read_bytes()
    scene.rewrite(scene.groups[:-1])
    (scene.segments / "journal.jot").write_bytes(jot)
    return {("", len(scene.groups), "missing")}


def last_segment_gone(scene: Scene) -> Named:
    scene.write()
    files = list_segments(scene.segments)
    last = [record.index for _, record in scan_file(files[-2].path).records if record.kind != Kind.MARK]
    # What is not wholly there is waited for, as at any end: only that the log goes on is known.
    files[-1].path.unlink()
    return {("", last[-1] + 1, "missing")}


def segment_gone(scene: Scene) -> Named:
    scene.write()
    files = list_segments(scene.segments)
    gone = scene.chance.choice(files[1:-1])
    lost = {(record.index, record.part) for _, record in scan_file(gone.path).records if record.kind != Kind.MARK}
    gone.path.unlink()
    return after_loss(scene, lost)


def first_segment_gone(scene: Scene) -> Named:
    scene.write()
    first = list_segments(scene.segments)[0]
    lost = {(record.index, record.part) for _, record in scan_file(first.path).records}
    first.path.unlink()
    return after_loss(scene, lost)


def after_loss(scene: Scene, lost: set[tuple[int, int]]) -> Named:
    """One name for the stretch, and one for each stream in which offsets are seen to be missing."""
    indexes = sorted({index for index, _ in lost})
    named: Named = {("", indexes[0], "missing")}
    tails: dict[str, int] = {}
    for group in scene.groups:
        there = [record for part, record in enumerate(group) if (group[0].index, part) not in lost]
        told = there if group[0] not in there else group
        for stream, first in streams_of(told).items():
            if tails.get(stream, 0) != first:
                named.add((stream, tails.get(stream, 0), "missing"))
            mine = [record for record in told if record.kind == Kind.BATCH and record.stream == stream]
            tails[stream] = mine[-1].first_offset + mine[-1].count
    return named


# Clusters that break their own rules, with everything else right.


@contextmanager
def lawless() -> Iterator[None]:
    """Executors to whom every id is the next one."""
    kept = lanes.rule, lanes.applied
    lanes.rule = lambda *_: Ruling(Standing.NEXT)  # type: ignore[assignment]
    lanes.applied = lambda lane, remembered, _: msgspec.structs.replace(  # type: ignore[assignment]
        lane, last_id=remembered.last_id, active_ns=remembered.moment.timestamp_ns
    )
    try:
        yield
    finally:
        lanes.rule, lanes.applied = kept


def forged(seed: int, wrong: Callable[[Author, Stage], object]) -> tuple[Groups, tuple[str, int]]:
    """A journal with one request in it that should not have been applied, and the request's place."""
    stage = Stage()
    author = Author(stage)
    chance = random.Random(f"forged {seed}")
    at = chance.randint(3, 15)
    for number in range(20):
        entry = wrong(author, stage) if number == at else author.entry(chance)
        ordered = stage.prefix.ingest([entry])
        stage.execution.learn(ordered[0].digest, [True])
        stage.prefix.order([ordered])
        if number == at:
            (pack_,) = stage.executed[-1].verdict.entries[0].packs
            place = (pack_.stream, pack_.base_offset)
    return recorded(stage, believe=True), place


def staled(seed: int) -> tuple[Groups, int]:
    stage = Stage()
    author = Author(stage)
    chance = random.Random(f"staled {seed}")
    at = chance.randint(3, 15)
    for number in range(20):
        regime = 1 if number == at else 3
        stage.prefix.order([stage.prefix.ingest([author.entry(chance)])], regime=regime)
        if number == at:
            index = stage.prefix.messages[-1].body.index
    return recorded(stage), index


CASES: tuple[Callable[[Scene], Named], ...] = (
    missing,
    missing_row_of_messages,
    duplicated_pack,
    duplicated_request,
    swapped_messages,
    swapped_packs,
    swapped_rows,
    altered_payload,
    flipped_payload,
    forged_pack,
    last_row_gone,
    altered_header,
    flipped_header,
    broken_chain,
    broken_chain_in_heads,
    rewritten_message,
    broken_stream_chain,
    altered_verdict,
    wrong_signature,
    forged_lease,
    altered_signature,
    stale_regime,
    another_cluster,
    rewritten_tail,
    rewritten_behind_a_manifest,
    cut_behind_a_manifest,
    cut_before_the_jot,
    last_segment_gone,
    segment_gone,
    first_segment_gone,
)
