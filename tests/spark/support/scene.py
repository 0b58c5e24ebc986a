"""A log in a folder like a node's, and what is needed to damage it."""

from __future__ import annotations

import random
from itertools import accumulate
from pathlib import Path

import msgspec

from chaplain.journal.storage.records import SyncHint, encode_sync_hint
from chaplain.segment.files import OpenSegment, list_segments, scan_file
from chaplain.segment.pack import decode_pack, encode_pack, heads_of
from chaplain.segment.record import Kind, Record
from chaplain.verification import manifest
from chaplain.verification.plan import VerifyRequest
from chaplain.verification.verify import verify_here, verify_log
from chaplain.verification.violations import Break
from tests.spark.support.journal import NODE_TOML, Groups, rich_journal
from tests.spark.support.stage import put

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
        (self.segments / "journal.jot").write_bytes(encode_sync_hint(SyncHint(b"b" * 16, end, known)))

    def request(self) -> VerifyRequest:
        proven = None
        if self.manifest is not None:
            proven = manifest.read(self.manifest, manifest.signer_for(self.manifest, ""))
        return VerifyRequest(str(self.segments), signatures=self.signatures, proven=proven)

    def breaks(self, tasks: int) -> list[Break]:
        if self.manifest is not None:
            return verify_log(path=str(self.segments), manifest=self.manifest).breaks
        return verify_here(VerifyRequest(str(self.segments), signatures=self.signatures), tasks)[0].breaks

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


def decode_count(raw: bytes) -> int:
    return len(decode_pack(raw).values)


def batches_of_many(scene: Scene) -> list[tuple[int, int]]:
    """Message and part of batches with more than one pack."""
    return [
        (group[0].index, part)
        for group in scene.groups[6:-3]
        for part, record in enumerate(group)
        if record.kind == Kind.BATCH and len(split(record)[0]) > 1
    ]


def first_batch_of_entry(scene: Scene, index: int, record: Record) -> Record:
    """Which batch stands for an ingest message as a whole."""
    origin = (record.origin_node, record.origin_journal, record.origin_index)
    return next(
        one
        for one in scene.group(index)
        if one.kind == Kind.BATCH and (one.origin_node, one.origin_journal, one.origin_index) == origin
    )


def flip(scene: Scene, index: int, part: int, octets: bytes) -> None:
    file, position = find(scene, index, part)
    with OpenSegment(file) as segment:
        at = position - segment.header.base
    data = file.read_bytes()
    file.write_bytes(data[:at] + data[at:].replace(octets, octets[:-1] + bytes([octets[-1] ^ 1]), 1))


def find(scene: Scene, index: int, part: int) -> tuple[Path, int]:
    for file in list_segments(scene.segments):
        for head, record in scan_file(file.path).records:
            if (record.index, record.part) == (index, part) and record.kind in (Kind.META, Kind.BATCH):
                return file.path, head.position
    raise AssertionError("it is not there")
