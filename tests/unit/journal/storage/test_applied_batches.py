"""The batches of an executed ingest message, as readers see them."""

from __future__ import annotations

from chaplain.journal.messages import ingest
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.model.reason import Reason
from chaplain.journal.model.results import DataVerdict, ExecutedIngest, PackVerdict
from chaplain.journal.storage.record_layout import AppliedPacks, applied_batches

REFERENCE = Reference(2, 1, 7)
PACKS = (bytes(100) + b"a", bytes(120) + b"b")


def executed(*packs: tuple[str, bytes, Reason]) -> ExecutedIngest:
    payload, message = ingest.compose(REFERENCE, [IngestEntry(stream, raw) for stream, raw, _ in packs])
    verdicts: list[PackVerdict] = []
    offsets: dict[str, int] = {}
    for number, (stream, _, reason) in enumerate(packs):
        offset = offsets.setdefault(stream, 10)
        verdicts.append(PackVerdict(1, number + 1, 1, 1, stream, reason, offset))
        offsets[stream] += reason is Reason.APPLIED
    return ExecutedIngest(REFERENCE, payload, message, DataVerdict(tuple(verdicts)))


def bodies(packs: AppliedPacks) -> list[bytes]:
    return [bytes(record.body) for record in packs.records]


def test_applied_batch_of_one_stream_is_a_view_of_its_message() -> None:
    message = executed(("s", PACKS[0], Reason.APPLIED), ("s", PACKS[1], Reason.APPLIED))
    packs = applied_batches([message])
    assert bodies(packs) == [b"".join(PACKS)]
    [record] = packs.records
    assert isinstance(record.body, memoryview)
    assert record.body.obj is message.payload, "the octets were copied"
    assert (record.first_offset, record.count) == (10, 2)


def test_refused_pack_is_left_out_of_its_batch() -> None:
    packs = applied_batches([executed(("s", PACKS[0], Reason.GAP), ("s", PACKS[1], Reason.APPLIED))])
    assert bodies(packs) == [PACKS[1]]
    assert packs.batches[0].ranges == ((len(PACKS[0]), len(PACKS[0]) + len(PACKS[1])),)


def test_message_of_two_streams_has_a_batch_for_each() -> None:
    packs = applied_batches([executed(("s", PACKS[0], Reason.APPLIED), ("t", PACKS[1], Reason.APPLIED))])
    assert bodies(packs) == [*PACKS]


def test_loose_pack_is_in_no_batch() -> None:
    packs = applied_batches([executed(("s", b"short", Reason.MALFORMED), ("s", PACKS[1], Reason.APPLIED))])
    assert bodies(packs) == [PACKS[1]]
