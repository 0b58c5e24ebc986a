"""Measures how fast Spark reads a journal from segments, compared with Parquet, and how fast a log is verified.

    read     4 million 100-byte messages, eight columns, into Spark's noop sink: `format("chaplain")` against
             `spark.read.parquet` of the same rows, alternating; the ratio of the best runs counts
    prove    10 million messages without signatures; their cost per row compared with a tenth of them; the share of
             rows that is read again after the log has grown by 1 %; and a verification with signatures. The same
             without Spark, as `chaplain verify` does it, in turns; and with a signed checkpoint and without, in turns

The log is valid by construction: real packs, chains, verdicts and cluster messages, written by the real writer.
Prints a table and a line of JSON. Other processes may use the machine, so only the ratios count.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from beside_parquet import COLUMNS, read_beside_parquet, timed
from chaplain.core import Rename, WriteAt
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages import config, ingest
from chaplain.journal.messages.cluster import Body, ConfigEntry, DataEntry, Reference, chain_hash, encode_body, genesis
from chaplain.journal.messages.config import LeaseLane, acl_id
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import SLOT_BYTES, SignatureType, sign_pack
from chaplain.journal.model.bootstrap import BootstrapClient, BootstrapMember, ClusterBootstrap
from chaplain.journal.model.epochs import token_of
from chaplain.journal.model.log_entry import AgreedEntry, LogEntry
from chaplain.journal.model.log_tree import BUNDLES
from chaplain.journal.storage.records import mark_record, message_records, verdict_record
from chaplain.link.auth.identity import Identity, to_text
from chaplain.pipeline import local_session, prove
from chaplain.proofs.checkpoint import Checkpoint, origin_of
from chaplain.proofs.tiles import bundle_path
from chaplain.segment.pack import Pack, encode_pack
from chaplain.segment.settings import LogSettings
from chaplain.segment.write import SegmentWriter
from chaplain.verification.process_pool import verify_in_processes
from chaplain.verification.tree_check import TreeSource
from chaplain.verification.verify import verify_log

CLUSTER = "bench"
STREAM = "orders"
MESSAGE_BYTES = 100
ROWS_A_PACK = 250
PACKS_A_MESSAGE = 16
LANES = 4
SEGMENT_BYTES = 64 << 20


class Author:
    """Writes a valid log, message by message."""

    def __init__(self, folder: Path, signed: bool) -> None:
        self._identity = Identity(b"b" * 32)
        member = BootstrapMember(1, self._identity.key, "tcp://127.0.0.1:1", bytes(16))
        self._founding = ClusterBootstrap(CLUSTER, (member,), (BootstrapClient("default", self._identity.key),))
        self._execution = JournalExecution(self._founding)
        self._folder = folder / "segments"
        self._folder.mkdir(parents=True)
        (folder / "node.toml").write_text(
            f'cluster = "{CLUSTER}"\nid = 1\n[clients]\ndefault = "{to_text(self._identity.key)}"\n'
        )
        self._writer = SegmentWriter(LogSettings("journal", 5, segment_bytes=SEGMENT_BYTES), random.Random(1))
        self._previous, self._index, self._ingested = genesis(CLUSTER), 0, 0
        self._signed = signed
        self._chance = np.random.default_rng(1)
        self._next_ids = dict.fromkeys(self._lease(), 1)
        self.rows = 0

    def _lease(self) -> list[int]:
        acl = acl_id(0, 0, 1)
        epoch = token_of(self._previous)
        nonces = [b"%16d" % lane for lane in range(LANES)]
        data = [config.sign(LeaseLane(acl), CLUSTER, acl, nonce, self._identity, epoch=epoch) for nonce in nonces]
        self._order(tuple(ConfigEntry(config.EntryType.ADD_CLIENT, 0, one) for one in data), ())
        return sorted(self._execution.state.lanes)

    def grow(self, rows: int) -> int:
        """Write at least `rows` messages. Return the number written."""
        goal = self.rows + rows
        while self.rows < goal:
            entries = [self._pack(lane) for lane in list(self._next_ids) * (PACKS_A_MESSAGE // LANES)]
            self._ingested += 1
            reference = Reference(1, 1, self._ingested)
            payload = ingest.encode(reference, entries)
            digest = ingest.digest_of(payload)
            self._execution.cache_checks(digest, [True] * len(entries))
            self._order((DataEntry(reference, digest),), (payload,))
            self.rows += len(entries) * ROWS_A_PACK
        self._perform(self._writer.append([mark_record(self._index, self._previous, 1)]))
        return self.rows

    def _pack(self, lane: int) -> IngestEntry:
        first_id = self._next_ids[lane]
        self._next_ids[lane] += ROWS_A_PACK
        octets = self._chance.bytes(ROWS_A_PACK * MESSAGE_BYTES)
        cells = [octets[at : at + MESSAGE_BYTES] for at in range(0, len(octets), MESSAGE_BYTES)]
        values, keys = tuple(cell[8:] for cell in cells), tuple(cell[:8] for cell in cells)
        slot = bytes(SLOT_BYTES[SignatureType.ED25519])
        raw = encode_pack(Pack(lane, first_id, values, keys, signature_type=SignatureType.ED25519, signature=slot))
        return IngestEntry(STREAM, sign_pack(raw, CLUSTER, STREAM, self._identity) if self._signed else raw)

    def _order(self, entries: tuple[Any, ...], payloads: tuple[bytes, ...]) -> None:
        self._index += 1
        body = Body(1, self._index, 1, 1_700_000_000 * 10**9 + self._index * 10**6, self._previous, entries)
        raw = encode_body(body)
        self._previous = chain_hash(body.previous, raw)
        decision = self._execution.apply(AgreedEntry(body, self._previous, payloads))
        message = LogEntry(body, raw, self._previous, 1, payloads)
        records = message_records(message)
        self._perform(self._writer.append([*records, verdict_record(message, records[0].parts, decision)]))
        self._writer.synced(self._writer.written)
        for one in self._execution.state.tree.take_finished():
            path = bundle_path(one.tile.index) if one.tile.level == BUNDLES else one.tile.path
            file = self._folder.parent / "tree" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(one.data)

    def tree(self) -> TreeSource:
        """A checkpoint of the whole log, as if its signatures were checked."""
        tree = self._execution.state.tree
        checkpoint = Checkpoint(origin_of(CLUSTER), tree.size, tree.root())
        return TreeSource(checkpoint.text, "", tree.open_tile(BUNDLES))

    def _perform(self, operations: Any) -> None:
        for operation in operations:
            assert isinstance(operation, WriteAt | Rename)
            path = self._folder / operation.file
            if isinstance(operation, Rename):
                path.rename(self._folder / operation.to)
                continue
            path.touch()
            with path.open("r+b") as stream:
                stream.seek(operation.position)
                stream.write(operation.data)


def read_ratio(spark: Any, segments: Path, scratch: Path, rows: int, runs: int) -> dict[str, Any]:
    def journal() -> Any:
        reader = spark.read.format("chaplain").schema(COLUMNS).option("path", str(segments))
        return reader.option("subscribe", STREAM).load()

    return read_beside_parquet(spark, "segments", journal, scratch, rows=rows, runs=runs)


def proofs(spark: Any, scratch: Path, rows: int, runs: int) -> dict[str, Any]:
    small, large = Author(scratch / "small", signed=False), Author(scratch / "large", signed=False)
    small.grow(rows // 10)
    large.grow(rows)
    found: dict[str, Any] = {}
    rates: dict[str, float] = {}
    for name, author in (("small", small), ("large", large)):
        path = str(scratch / name / "segments")
        prove(spark, path=path)  # a first run also starts the workers
        seconds = min(timed(lambda path=path: _whole(prove(spark, path=path))) for _ in range(runs))
        rates[name] = author.rows / seconds
    found["rows"] = large.rows
    found["rows_per_second"] = round(rates["large"])
    found["cost_a_row_against_a_tenth"] = round(rates["small"] / rates["large"], 2)
    found["processes"] = beside_spark(spark, path, large.rows, runs)
    found["with_checkpoint"] = with_checkpoint(spark, path, large, runs)
    manifest = scratch / "manifest.json"
    path = str(scratch / "large" / "segments")
    _whole(prove(spark, path=path, manifest=manifest))
    large.grow(rows // 100)
    again: list[Any] = []
    found["seconds_after_growth"] = round(timed(lambda: again.append(prove(spark, path=path, manifest=manifest))), 2)
    _whole(again[0])
    found["share_read_after_growth"] = round(again[0].rows / large.rows, 4)
    return found


def beside_spark(spark: Any, path: str, rows: int, runs: int) -> dict[str, Any]:
    """Compare `chaplain verify`, which starts its workers anew, with the Spark job of a running session, in turns."""
    seconds: dict[str, list[float]] = {"spark": [], "processes": []}
    for _ in range(runs):
        seconds["spark"].append(timed(lambda: _whole(prove(spark, path=path))))
        seconds["processes"].append(timed(lambda: _whole(verify_log(verify_in_processes, path=path))))
    best = {name: min(found) for name, found in seconds.items()}
    return {"rows_per_second": round(rows / best["processes"]), "ratio": round(best["spark"] / best["processes"], 2)}


def with_checkpoint(spark: Any, path: str, author: Author, runs: int) -> dict[str, Any]:
    """Compare a verification against a signed checkpoint with one without, in turns, in Spark and without it."""
    tree = author.tree()
    ways: dict[str, Any] = {
        "spark": lambda tree: _whole(prove(spark, path=path, tree=tree)),
        "processes": lambda tree: _whole(verify_log(verify_in_processes, path=path, tree=tree)),
    }
    found: dict[str, Any] = {"leaves": tree.tree.size}
    for name, run in ways.items():
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * runs):
            signed = number % 2 == 0
            times[signed].append(timed(lambda run=run, signed=signed: run(tree if signed else None)))
        found[f"{name}_cost_a_row"] = round(min(times[True]) / min(times[False]), 3)
    return found


def signed_proof(spark: Any, scratch: Path, rows: int) -> dict[str, Any]:
    author = Author(scratch / "signed", signed=True)
    author.grow(rows)
    path = str(scratch / "signed" / "segments")
    seconds = timed(lambda: _whole(prove(spark, path=path, signatures=True)))
    return {"rows": author.rows, "rows_a_pack": ROWS_A_PACK, "rows_per_second": round(author.rows / seconds)}


def _whole(proof: Any) -> None:
    assert proof.breaks == [], proof.breaks[:3]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=4_000_000)
    arguments.add_argument("--prove", type=int, default=10_000_000)
    arguments.add_argument("--signed", type=int, default=1_000_000)
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--scratch", help="folder for some GB of files; the system's own for such, unless given")
    given = arguments.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="pipeline-bench-", dir=given.scratch))
    spark = local_session("local[2]", memory="2g")
    result: dict[str, Any] = {}
    try:
        author = Author(scratch / "read", signed=False)
        rows = author.grow(given.messages)
        _note(result, "read", read_ratio(spark, scratch / "read" / "segments", scratch, rows, given.runs))
        shutil.rmtree(scratch / "read")
        _note(result, "prove", proofs(spark, scratch, given.prove, given.runs))
        _note(result, "prove_signatures", signed_proof(spark, scratch, given.signed))
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    show(result)


def _note(result: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    """Store a result and print it at once, because the other measurements take a while."""
    result[name] = found
    print(f"{name}: {found}", file=sys.stderr, flush=True)


def show(result: dict[str, Any]) -> None:
    read, proof, signed = result["read"], result["prove"], result["prove_signatures"]
    print(f"{read['rows']:,} messages of {MESSAGE_BYTES} bytes, eight columns, noop sink, two cores")
    print(f"  {'segments':28}{read['segments_per_second'] / 1e6:8.2f} M/s")
    print(f"  {'parquet':28}{read['parquet_per_second'] / 1e6:8.2f} M/s   {read['ratio']:.2f} of it")
    print(f"proof of {proof['rows']:,} messages")
    print(f"  {'without signatures':28}{proof['rows_per_second'] / 1e6:8.2f} M/s")
    processes = proof["processes"]
    rate = processes["rows_per_second"] / 1e6
    print(f"  {'the same without Spark':28}{rate:8.2f} M/s   {processes['ratio']:.2f} of it")
    print(f"  {'cost a row, to a tenth':28}{proof['cost_a_row_against_a_tenth']:8.2f}")
    print(f"  {'read again after 1 % more':28}{proof['share_read_after_growth']:8.2%}")
    print(f"  {'with signatures':28}{signed['rows_per_second'] / 1e6:8.2f} M/s   {signed['rows_a_pack']} rows a pack")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
