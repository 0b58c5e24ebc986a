"""Damage to chains, signatures and tails: logs that are wrong though every checksum is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from chaplain.journal.execution import dedup
from chaplain.journal.execution.dedup import PackStatus, Ruling
from chaplain.journal.messages import config
from chaplain.journal.messages.cluster import chain_hash, decode_body, encode_body
from chaplain.journal.messages.config import LeaseLane
from chaplain.journal.storage import verdict
from chaplain.segment.files import list_segments, scan_file
from chaplain.segment.record import Kind
from chaplain.verification.batches import split_first
from chaplain.verification.verify import verify_log
from tests.spark.support.journal import NODE_TOML, Author, Groups, recorded, rich_journal
from tests.spark.support.scene import Named, Scene, first_batch_of_entry, split, streams_of, with_pack
from tests.support.execution_stage import ADMIN_ACL, BOB, CLUSTER, Stage, petition

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
    kept = config.signature_holds
    config.signature_holds = lambda *_: True  # type: ignore[assignment]
    try:
        stage = Stage()
        author = Author(stage)
        stage.prefix.order([stage.prefix.ingest([author.entry(scene.chance)])])
        stage.config(petition(LeaseLane(ADMIN_ACL), signer=BOB, nonce=b"forged".ljust(16)))
        index = stage.prefix.messages[-1].body.index
        stage.prefix.order([stage.prefix.ingest([author.entry(scene.chance)])])
        scene.groups = recorded(stage)
    finally:
        config.signature_holds = kept
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
    assert verify_log(path=str(scene.segments), manifest=scene.manifest).breaks == []
    scene.rewrite(rich_journal(scene.seed, parts_at=20, messages=31))
    return {("", scene.groups[-1][0].index, "fork")}


def cut_behind_a_manifest(scene: Scene) -> Named:
    scene.write()
    scene.manifest = scene.directory / "manifest.json"
    assert verify_log(path=str(scene.segments), manifest=scene.manifest).breaks == []
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
    kept = dedup.classify, dedup.record_applied
    dedup.classify = lambda *_: Ruling(PackStatus.NEXT)  # type: ignore[assignment]
    dedup.record_applied = lambda lane, remembered, _: msgspec.structs.replace(  # type: ignore[assignment]
        lane, last_id=remembered.last_id, active_ns=remembered.position.timestamp_ns
    )
    try:
        yield
    finally:
        dedup.classify, dedup.record_applied = kept


def forged(seed: int, wrong: Callable[[Author, Stage], object]) -> tuple[Groups, tuple[str, int]]:
    """A journal with one request in it that should not have been applied, and the request's place."""
    stage = Stage()
    author = Author(stage)
    chance = random.Random(f"forged {seed}")
    at = chance.randint(3, 15)
    for number in range(20):
        entry = wrong(author, stage) if number == at else author.entry(chance)
        ordered = stage.prefix.ingest([entry])
        stage.execution.cache_checks(ordered[0].digest, [True])
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
