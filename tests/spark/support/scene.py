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
from chaplain.segment.verdicts import decode_verdict, encode_verdict, join_parts, only_batch
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
            if sum(record.kind == Kind.BATCH for record in join_parts(group)) >= batches and whole_batches(group)
        ]
        return self.chance.choice(found)

    def group(self, index: int) -> list[Record]:
        return self.groups[index - 1]

    def batch(self, index: int) -> tuple[int, Record]:
        """Part number and record of one of a message's batches, with its offsets. All of its packs were applied."""
        return self.chance.choice([(record.part, record) for record in whole_batches(self.group(index))])

    def shown(self, index: int, part: int) -> Record:
        """A batch with its offsets."""
        return next(record for record in join_parts(self.group(index)) if record.part == part)

    def replace(self, index: int, part: int, **fields: object) -> None:
        """Change a record. The offset and the count of a batch are in the verdict."""
        group = list(self.group(index))
        if group[part].kind == Kind.BATCH:
            stated = {name: fields.pop(name) for name in ("first_offset", "count") if name in fields}
            group[-1] = with_applied(group[-1], part, stated)
        group[part] = msgspec.structs.replace(group[part], **fields)
        self.groups[index - 1] = group

    def has_later(self, stream: str, index: int) -> bool:
        return any(stream in streams_of(group) for group in self.groups[index:])


def whole_batches(group: list[Record]) -> list[Record]:
    """The batches of a message of which all packs were applied, with their offsets."""
    return [
        record
        for record in join_parts(group)
        if record.kind == Kind.BATCH and len(record.body) == len(group[record.part].body)
    ]


def with_applied(verdict: Record, part: int, stated: dict[str, object]) -> Record:
    """The VERDICT record with another offset or count of a batch."""
    batches, said = decode_verdict(verdict.body)
    changed = [msgspec.structs.replace(one, **stated) if one.part == part else one for one in batches]
    head = stated if only_batch(verdict) is not None else {}
    return msgspec.structs.replace(verdict, body=encode_verdict(changed, said), **head)


def streams_of(group: list[Record]) -> dict[str, int]:
    """The first offset that a message has of each stream."""
    batches = [record for record in join_parts(group) if record.kind == Kind.BATCH]
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
        (group[0].index, record.part)
        for group in scene.groups[6:-3]
        for record in whole_batches(group)
        if len(split(record)[0]) > 1
    ]


def first_batch_of_entry(scene: Scene, index: int, record: Record) -> Record:
    """Which batch stands for an ingest message as a whole."""
    origin = (record.origin_node, record.origin_journal, record.origin_index)
    return next(
        one
        for one in join_parts(scene.group(index))
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
            if (record.index, record.part) == (index, part) and record.kind in (Kind.META, Kind.BATCH, Kind.VERDICT):
                return file.path, head.position
    raise AssertionError("it is not there")
