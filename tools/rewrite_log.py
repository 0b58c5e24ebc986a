"""Shows what an attacker can do who has root on nodes: rewrites a value in a copy of a node's log and hides it.

    python tools/rewrite_log.py shop/node-1 forged "2 apples" "9 apples"

writes `forged/segments`. The value differs, and everything that a node stores about it is right again: the checksums of
records, the digests of packs and payloads, the hash of every later message, and the hash of every later batch of the
stream. With `--sign shop/node-1 --sign shop/node-2` the attacker has the keys of these nodes, too. The program then
writes `forged/checkpoint` and `forged/tree`: a checkpoint of the rewritten log with valid signatures of these nodes.

It changes no file outside of the output directory. The old and the new value have the same length, and the log must not
have dropped messages, or granted changes of clients and nodes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from chaplain.config import NODE_FILE, load_node
from chaplain.core import Rename, WriteAt
from chaplain.journal.execution.state import stream_genesis, stream_hash
from chaplain.journal.messages import ingest
from chaplain.journal.messages.cluster import Body, DataEntry, chain_hash, encode_body, genesis
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.model.log_entry import Decision, LogEntry
from chaplain.journal.model.results import NO_VERDICT, DataVerdict, ExecutionVerdict
from chaplain.journal.model.verdict_chain import verdict_hash
from chaplain.journal.storage import verdict as verdicts
from chaplain.journal.storage.records import (
    RecordGroup,
    group_messages,
    mark_record,
    message_of,
    message_records,
    verdict_of,
    verdict_record,
)
from chaplain.journal.storage.verdict import Reason
from chaplain.link.auth.identity import from_text
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import leaf as leaves
from chaplain.proofs.checkpoint import Checkpoint
from chaplain.proofs.leaf import PackLeaf
from chaplain.proofs.merkle import leaf_hash
from chaplain.proofs.tiles import TileEdge, bundle_path, encode_bundle, widths
from chaplain.runtime.secret_files import read_identity
from chaplain.segment.files import read_log
from chaplain.segment.pack import digest_of, heads_of, stated_digest
from chaplain.segment.settings import LogSettings
from chaplain.segment.verdicts import batches_of
from chaplain.segment.write import SegmentWriter
from chaplain.verification.keys import FoundingInfo, Registry

LOG = "journal"
_DIGEST_AT = 32
PATIENCE_S = 30.0
"""The time for which to wait for the verdict on the last message."""


class Rewriter:
    """Rewrites messages in their order."""

    def __init__(self, cluster: str, clients: tuple[bytes, ...], old: bytes, new: bytes) -> None:
        self._cluster, self._old, self._new = cluster, old, new
        self._previous = genesis(cluster)
        self._verdict = NO_VERDICT
        self._streams: dict[str, bytes] = {}
        self._registry = Registry(FoundingInfo(cluster, clients))
        self.leaves: list[bytes] = []
        self.changed = 0

    def message(self, old: LogEntry, decided: ExecutionVerdict) -> tuple[LogEntry, bytes]:
        """The message with the changed value, and its verdict."""
        payloads = tuple(self._payload(one) for one in old.payloads)
        digests = iter([ingest.digest_of(one) for one in payloads])
        entries = tuple(
            msgspec.structs.replace(one, digest=next(digests)) if isinstance(one, DataEntry) else one
            for one in old.body.entries
        )
        body = msgspec.structs.replace(old.body, previous=self._previous, entries=entries)
        raw = encode_body(body)
        self._previous = chain_hash(body.previous, raw)
        new = LogEntry(body, raw, self._previous, old.ballot, payloads)
        self._registry.take(body, decided)
        applied = list(self._applied(new, decided))
        streams = tuple(
            msgspec.structs.replace(one, chain=self._chain(one, [d for s, d in applied if s == one.stream]))
            for one in decided.streams
        )
        encoded = verdicts.encode(msgspec.structs.replace(decided, streams=streams, previous=self._verdict))
        self._verdict = verdict_hash(encoded)
        return new, encoded

    def _payload(self, payload: bytes) -> bytes:
        message = ingest.decode(payload)
        entries = [IngestEntry(one.stream, self._pack(bytes(one.raw))) for one in message.entries]
        return ingest.encode(message.reference, entries)

    def _pack(self, raw: bytes) -> bytes:
        if self._old not in raw:
            return raw
        self.changed += 1
        changed = bytearray(raw.replace(self._old, self._new))
        changed[_DIGEST_AT : _DIGEST_AT + 32] = digest_of(bytes(changed))
        return bytes(changed)

    def _applied(self, message: LogEntry, decided: ExecutionVerdict) -> Iterator[tuple[str, bytes]]:
        """The stream and the digest of each applied pack. Also appends its leaf."""
        body: Body = message.body
        keys = {lane: key for lane, (_, key) in self._registry.lanes().items()}
        data = [one for one in decided.entries if isinstance(one, DataVerdict)]
        for payload, of_payload in zip(message.payloads, data, strict=True):
            packs = [(one.stream, bytes(one.raw)) for one in ingest.decode(payload).entries]
            for (stream, raw), pack in zip(packs, of_payload.packs, strict=True):
                if pack.reason is not Reason.APPLIED:
                    continue
                [head] = heads_of(raw)
                place = (body.regime, body.index, body.timestamp_ns, stream, pack.base_offset, head.count)
                ids = (head.client_id, head.first_id, keys[head.client_id])
                self.leaves.append(leaves.encode(PackLeaf(*place, *ids, stated_digest(raw))))
                yield stream, stated_digest(raw)

    def _chain(self, stated: Any, digests: list[bytes]) -> bytes:
        before = self._streams.get(stated.stream, stream_genesis(self._cluster, stated.stream))
        self._streams[stated.stream] = stream_hash(before, stated.first_offset, stated.count, digests)
        return self._streams[stated.stream]


class Output:
    """Writes segments."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._writer = SegmentWriter(LogSettings(LOG, 5, folder=""), random.Random(1))

    def append(self, records: list[Any]) -> None:
        for operation in self._writer.append(records):
            assert isinstance(operation, WriteAt | Rename)
            path = self._folder / operation.file
            if isinstance(operation, Rename):
                path.rename(self._folder / operation.to)
                continue
            path.touch()
            with path.open("r+b") as file:
                file.seek(operation.position)
                file.write(operation.data)
        self._writer.synced(self._writer.written)


def executed_messages(segments: Path) -> list[RecordGroup]:
    """The messages of the log, each with its verdict. A running node writes the last verdict soon after the message."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        groups = [group for _, group in sorted(group_messages(read_log(segments, LOG)).items())]
        executed = list(takewhile(lambda group: group.verdict is not None, groups))
        if executed == groups or time.monotonic() > end_s:
            return executed
        time.sleep(0.1)


def rewrite(node: Path, out: Path, old: bytes, new: bytes) -> tuple[str, list[bytes]]:
    """Write the rewritten log. Return the cluster's name and the leaves of the rewritten log's tree."""
    config = load_node(node / NODE_FILE, environment={})
    clients = tuple(from_text(key, 32, name) for name, key in sorted(config.clients.items()))
    rewriter = Rewriter(config.text("cluster"), clients, old, new)
    output = Output(out / "segments")
    message = None
    for group in executed_messages(node / "segments"):
        decided = verdicts.decode(verdict_of(group.verdict))
        message, encoded = rewriter.message(message_of(group), decided)
        records = message_records(message)
        decision = Decision(encoded, batches_of(group.verdict))
        output.append([*records, verdict_record(message, records[0].parts, decision)])
    if message is None or not rewriter.changed:
        raise SystemExit(f"{old!r} is not in the log of {node}")
    output.append([mark_record(message.index, message.hash, message.body.regime)])
    shutil.copy(node / NODE_FILE, out / NODE_FILE)
    return config.text("cluster"), rewriter.leaves


def sign(cluster: str, entries: list[bytes], out: Path, nodes: list[Path]) -> None:
    """Write the tree of the rewritten log, and a checkpoint that these nodes' keys signed."""
    edge = TileEdge()
    parts = [(one.path, octets) for one, octets in edge.extend(map(leaf_hash, entries))]
    parts += [(one.path, edge.partial(one.level)) for one in widths(edge.size)]
    for at in range(0, len(entries), 256):
        some = entries[at : at + 256]
        parts.append((bundle_path(at // 256, len(some)), encode_bundle(some)))
    for name, octets in parts:
        (out / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (out / "tree" / name).write_bytes(octets)
    tree = Checkpoint(checkpoints.origin_of(cluster), edge.size, edge.root())
    by_node = {}
    for node in nodes:
        config = load_node(node / NODE_FILE, environment={})
        identity = read_identity(config.path("identity"))
        number, time_s = config.number("id"), max(1, leaves.decode(entries[-1]).timestamp_ns // 10**9)
        by_node[number] = checkpoints.sign(tree, number, identity.key, identity.sign_note, time_s)
    (out / "checkpoint").write_text(checkpoints.assemble(tree, by_node).text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("node", type=Path, help="a node's directory")
    parser.add_argument("out", type=Path, help="a new directory")
    parser.add_argument("old", help="the value to change")
    parser.add_argument("new", help="the value to write instead, of the same length")
    parser.add_argument("--sign", type=Path, action="append", default=[], metavar="DIR", help="a node with its key")
    given = parser.parse_args()
    old, new = given.old.encode(), given.new.encode()
    if len(old) != len(new):
        parser.error("both values need the same length")
    cluster, entries = rewrite(given.node, given.out, old, new)
    if given.sign:
        sign(cluster, entries, given.out, given.sign)


if __name__ == "__main__":
    main()
