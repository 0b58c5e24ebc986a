"""A disk of byte arrays, and records to put on it."""

from __future__ import annotations

import hashlib
import random

from chaplain.core import Operation, Remove, Rename, Replace, WriteAt
from chaplain.segment.header import SegmentHeader, read_headers
from chaplain.segment.layout import NO_HASH, parse_name
from chaplain.segment.pack import Pack, encode_pack
from chaplain.segment.record import Kind, Record
from chaplain.segment.scan import Scan, scan
from chaplain.segment.settings import LogSettings
from chaplain.segment.survey import Survey, Surveyor
from chaplain.segment.write import SegmentWriter

SMALL = LogSettings("log", 5, segment_bytes=16 * 1024)


class Disk:
    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}

    def perform(self, operations: tuple[Operation, ...]) -> None:
        for operation in operations:
            match operation:
                case WriteAt(file, position, data):
                    content = self.files.setdefault(file, bytearray())
                    content.extend(bytes(max(0, position + len(data) - len(content))))
                    content[position : position + len(data)] = data
                case Rename(file, to):
                    self.files[to] = self.files.pop(file)
                case Remove(file):
                    del self.files[file]
                case Replace(file, data):
                    self.files[file] = bytearray(data)

    def copy(self) -> Disk:
        copied = Disk()
        copied.files = {name: bytearray(content) for name, content in self.files.items()}
        return copied

    def survey(self, log: str = "log") -> tuple[Survey, list[Record]]:
        surveyor = Surveyor(log)
        records = []
        for name in sorted(name for name in self.files if not name.endswith(".heads")):
            found_log, sequence, free = parse_name(name)
            if found_log == log and not free:
                found = surveyor.add(sequence, bytes(self.files[name]))
                records += [record for _, record in found.records] if found else []
        return surveyor.finish(), records

    def scan(self, name: str) -> Scan:
        data = bytes(self.files[name])
        return scan(data, header_of(data))


def header_of(data: bytes) -> SegmentHeader:
    header = read_headers(data).header
    assert header is not None
    return header


def chained(count: int, size_bytes: int = 200, first: int = 0, seed: int = 1) -> list[Record]:
    """META records of a chained log."""
    chance = random.Random(f"bodies {seed}")  # not the chance identities come from: a payload never knows one
    records = []
    previous = NO_HASH if not first else hashlib.sha256(f"{first - 1}".encode()).digest()
    for index in range(first, first + count):
        chain = hashlib.sha256(f"{index}".encode()).digest()
        body = chance.randbytes(size_bytes)
        records.append(Record(Kind.META, body, index=index, previous_hash=previous, chain_hash=chain))
        previous = chain
    return records


def batch(index: int, packs: list[Pack], first_offset: int = 0, stream: str = "orders", **fields: object) -> Record:
    count = sum(len(pack.values) for pack in packs)
    body = b"".join(encode_pack(pack) for pack in packs)
    return Record(Kind.BATCH, body, index, first_offset, 1_000_000 * index, count, 1, stream, **fields)  # type: ignore[arg-type]


def written(records: list[Record], settings: LogSettings = SMALL, sync: bool = True, seed: int = 1) -> Disk:
    """A disk on which each record was appended, and synced, by itself."""
    disk = Disk()
    writer = SegmentWriter(settings, random.Random(seed))
    for record in records:
        disk.perform(writer.append([record]))
        if sync:
            writer.synced(writer.written)
    return disk
