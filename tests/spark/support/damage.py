"""Damage to plant in a log, each with the breaks that name it: what a proof must say, no more and no less.

A case gets a scene and a chance, changes the log, and returns what must be found as (stream, offset, kind).
"""

from __future__ import annotations

from collections.abc import Callable

from chaplain.segment.files import OpenSegment
from chaplain.segment.pack import decode_pack
from tests.spark.support.forgery import (
    altered_signature,
    altered_verdict,
    another_cluster,
    broken_chain,
    broken_chain_in_heads,
    broken_stream_chain,
    cut_before_the_jot,
    cut_behind_a_manifest,
    first_segment_gone,
    forged,
    forged_lease,
    last_segment_gone,
    lawless,
    rewritten_behind_a_manifest,
    rewritten_message,
    rewritten_tail,
    segment_gone,
    stale_regime,
    wrong_signature,
)
from tests.spark.support.scene import (
    Named,
    Scene,
    batches_of_many,
    changed,
    decode_count,
    find,
    first_batch_of_entry,
    flip,
    split,
    streams_of,
    with_pack,
)

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


def swapped_packs(scene: Scene) -> Named:
    index, part = scene.chance.choice(batches_of_many(scene))
    record = scene.shown(index, part)
    packs, _ = split(record)
    scene.replace(index, part, body=b"".join([*packs[2:], packs[1], packs[0]][-2:] + packs[2:]))
    scene.write()
    entry_first = first_batch_of_entry(scene, index, record)
    return {(entry_first.stream, entry_first.first_offset, "digest")}


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
    record = scene.shown(index, part)
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
