"""A journal on disk, made by the real executor and the real writer, for Spark to read."""

from __future__ import annotations

import random
from pathlib import Path

from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.storage.records import mark_record
from chaplain.segment.record import Record
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter
from tests.support.execution_stage import CLUSTER, Stage, pack, stored
from tests.support.segment_stage import Disk

assert CLUSTER
MESSAGES = 40
ROWS = 25


def journal(messages: int = MESSAGES, rows: int = ROWS, ballot: int = 1) -> list[list[Record]]:
    """The records of each cluster message: a lease, then packs for two streams, ten to one; stored under a ballot."""
    stage = Stage()
    lane = stage.lane()
    first_id = 1
    for number in range(messages):
        stream = "audit" if number % 10 == 9 else "orders"
        values = [b"%d/%d" % (number, row) for row in range(rows)]
        stage.write(pack(lane, first_id, values, stream=stream))
        first_id += rows
    execution = JournalExecution(stage.founding)
    groups = []
    for settled in stage.prefix.messages:
        groups.append(stored(settled, execution.apply(settled), ballot))
    return groups


def put(folder: Path, groups: list[list[Record]], segment_bytes: int = 16 * 1024) -> Path:
    """Write the records of messages, and a mark that makes the last one agreed."""
    disk = Disk()
    writer = SegmentWriter(LogSettings("journal", 5, segment_bytes=segment_bytes), random.Random(7))
    for group in groups:
        disk.perform(writer.append(group))
        writer.synced(writer.written)
    last = groups[-1][0]
    disk.perform(writer.append([mark_record(last.index, last.chain_hash, 1)]))
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in disk.files.items():
        (folder / name).write_bytes(content)
    return folder
