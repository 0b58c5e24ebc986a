"""Answers queries of clients: the state of a lane, lists of streams, nodes and clients, and proof of a compromise.

Decides by the executed state and the identity of the client. Writes, reads and configuration requests are elsewhere.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeAlias

import msgspec

from chaplain.errors import Malformed
from chaplain.journal.clients.describe import describe_config
from chaplain.journal.clients.describe_consumers import describe_consumers
from chaplain.journal.consensus.events import ReadLog, RecordDamaged
from chaplain.journal.events import Locate, ToClient
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.client import (
    AskConsumers,
    AskLane,
    AskProof,
    AskTree,
    Failed,
    LaneIs,
    Listed,
    ListStreams,
    PaidAre,
    ProofIs,
    Run,
    TreePart,
    Wrapped,
    WrapSecret,
)
from chaplain.journal.messages.signing import SECRET_BYTES, WRAP_NONCE_BYTES, SignatureType, Wrapping
from chaplain.journal.model.receipts import run_of
from chaplain.journal.model.records import ClientIdentity, IdentityStatus, LaneState, RequestPosition
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.pack_lookup import PackLookup
from chaplain.journal.tree.service import TreeService
from chaplain.link.auth.identity import KEY_BYTES
from chaplain.rights import may_read
from chaplain.segment.record import Record

QueryEffect: TypeAlias = ToClient | ReadLog | RecordDamaged
PAGE_STREAMS_MAX = 256
"""Streams that are examined for one page of the list."""
PROOFS_MAX = 64
"""Proofs that are being read from the log at a time."""


class _ProofRead(msgspec.Struct):
    """A proof whose two requests are being read from the log."""

    instance: bytes
    call: int
    client: ClientIdentity
    positions: tuple[RequestPosition, ...]
    packs: list[bytes]


class ClientQueries:
    """Answers from the executed state."""

    def __init__(
        self,
        execution: JournalExecution,
        chance: random.Random,
        wrapping: Wrapping | None,
        locate: Locate,
        streams: StreamIndex,
        *,
        tree: TreeService,
        tokens: Iterator[int] | None = None,
    ) -> None:
        """`tokens` numbers reads of the log."""
        self._execution = execution
        self._chance = chance
        self._wrapping = wrapping
        self._locate = locate
        self._streams = streams
        self._tree = tree
        self._proof_reads: dict[int, _ProofRead] = {}
        self._unwritten: list[_ProofRead] = []
        """Proofs whose next request is in the last message: its verdict is on disk with the next write."""
        self._tokens = tokens or count(1)
        self.effects: list[QueryEffect] = []

    def lane(self, instance: bytes, client: ClientIdentity, ask: AskLane) -> None:
        """The last id of a lane, and the receipt of a request if the lane still remembers it."""
        lane = self._execution.state.lanes.get(ask.client_id)
        index = self._execution.applied_index
        if lane is None:
            answer = LaneIs(ask.call, ask.client_id, False, 0, False, index)
        else:
            run = _receipt_in(lane, ask.request) if lane.acl == client.acl else None
            answer = LaneIs(ask.call, ask.client_id, True, lane.last_id, lane.fenced, index, run)
        self.effects.append(ToClient(instance, answer))

    def tree(self, instance: bytes, ask: AskTree) -> None:
        """A tile, or the newest signed checkpoint once it covers the message that the client names. Any client may ask:
        the tree contains no values, and a proof is meant to be shown.
        """

        def answer(data: bytes | None) -> None:
            if data is None:
                why = "this node does not have that part of the tree, not yet or not any more: ask another node"
                self._fail(instance, ask.call, "missing", why)
            else:
                self.effects.append(ToClient(instance, TreePart(ask.call), data))

        try:
            if not self._tree.ask(ask.name, answer, ask.index):
                self._fail(instance, ask.call, "busy", "too many tiles are being read: ask again later")
        except Malformed as wrong:
            self._fail(instance, ask.call, "malformed", str(wrong))

    def replay_progress(self, instance: bytes, call: int) -> None:
        """The number of all committed packs, and the number of those that have been replayed, in commit order."""
        holding = self._execution.state.staged_packs
        answer = PaidAre(call, self._execution.applied_index, holding.committed_total, holding.replayed)
        self.effects.append(ToClient(instance, answer))

    def consumers(self, instance: bytes, ask: AskConsumers, client: ClientIdentity) -> None:
        """One page of named consumers, or one consumer with all its details."""
        described = describe_consumers(self._execution.state, self._streams, client, ask)
        self.effects.append(ToClient(instance, Listed(ask.call), msgspec.json.encode(described)))

    def streams(self, instance: bytes, ask: ListStreams, client: ClientIdentity) -> None:
        """One page of the list. At most `PAGE_STREAMS_MAX` streams are examined, including those that the client may
        not read.
        """
        names, tails = self._streams.names, self._execution.state.streams
        first = bisect_right(names, ask.after)
        page = names[first : first + PAGE_STREAMS_MAX]
        listed = [
            {
                "stream": name,
                "next_offset": tails[name].next_offset,
                "chain": tails[name].chain.hex(),
                "first_offset": self._streams.first_offset(name),
            }
            for name in page
            if may_read(client, name)
        ]
        after = page[-1] if first + len(page) < len(names) else ""
        answer = msgspec.json.encode({"streams": listed, "after": after})
        self.effects.append(ToClient(instance, Listed(ask.call), answer))

    def nodes(self, instance: bytes, call: int) -> None:
        described = describe_config(self._execution.cluster_config)
        self.effects.append(ToClient(instance, Listed(call), msgspec.json.encode(described)))

    def clients(self, instance: bytes, call: int, client: ClientIdentity) -> None:
        if not client.admin:
            self._fail(instance, call, "not_allowed", "only an admin may list the clients")
            return
        listed = [
            {
                "name": one.name,
                "acl": one.acl.hex(),
                "key": one.key.hex(),
                "status": IdentityStatus(one.status).name.lower(),
                "admin": one.admin,
                "writes": one.writes,
                "reads": one.reads,
                "signature": SignatureType(one.signature_type).name.lower(),
                "lanes": self._execution.state.lane_counts.get(one.acl, 0),
            }
            for one in self._execution.state.clients.values()
        ]
        self.effects.append(ToClient(instance, Listed(call), msgspec.json.encode(listed)))

    def wrap(self, instance: bytes, ask: WrapSecret, secret: bytes, client: ClientIdentity) -> None:
        """Encrypt a shared secret of a client for the log, with the cluster's wrapping key."""
        if not client.admin or self._wrapping is None:
            why = "only an admin may wrap secrets, and the cluster must have been founded with a wrapping key"
            self._fail(instance, ask.call, "not_allowed", why)
        elif len(secret) != SECRET_BYTES or len(ask.key) != KEY_BYTES:
            why = f"a secret has {SECRET_BYTES} octets and a key {KEY_BYTES}"
            self._fail(instance, ask.call, "malformed", why)
        else:
            wrapped = self._wrapping.wrap(secret, ask.key, self._chance.randbytes(WRAP_NONCE_BYTES))
            self.effects.append(ToClient(instance, Wrapped(ask.call), wrapped))

    # Proof.

    def proof(self, instance: bytes, ask: AskProof) -> None:
        """Find the two conflicting requests in the log. Any client may ask: a proof is meant to be public."""
        proof = self._execution.state.proofs.get(ask.acl)
        client = self._execution.state.clients.get(ask.acl)
        if proof is None or client is None:
            self._fail(instance, ask.call, "unknown", "nothing is proven against this identity")
        elif len(self._proof_reads) + len(self._unwritten) >= PROOFS_MAX:
            self._fail(instance, ask.call, "busy", "too many proofs are being read: ask again later")
        else:
            self._read_next(_ProofRead(instance, ask.call, client, (proof.first, proof.second), []))

    def _read_next(self, proof_read: _ProofRead) -> None:
        """Read the next request of the proof from the log."""
        position = proof_read.positions[len(proof_read.packs)]
        span = self._locate(position.index, 1)
        if span is None and position.index == self._execution.applied_index:
            self._unwritten.append(proof_read)  # `on_log_synced` continues
            return
        if span is None:
            why = "the log of this node does not contain the request, not yet or no more: ask later, or another node"
            self._fail(proof_read.instance, proof_read.call, "busy", why)
            return
        token = next(self._tokens)
        self._proof_reads[token] = proof_read
        self.effects.append(ReadLog(token, *span))

    def on_log_synced(self) -> None:
        """More of the log may be on disk now: try the proofs that wait for it."""
        unwritten, self._unwritten = self._unwritten, []
        for proof_read in unwritten:
            self._read_next(proof_read)

    def on_log_read(self, token: int, records: Sequence[Record]) -> None:
        proof_read = self._proof_reads.pop(token, None)
        if proof_read is None:
            return
        try:
            position = proof_read.positions[len(proof_read.packs)]
            proof_read.packs.append(PackLookup(records).pack(position.index, position.entry, position.pack))
        except Malformed as wrong:
            self.effects.append(RecordDamaged(proof_read.positions[len(proof_read.packs)].index))
            self._fail(proof_read.instance, proof_read.call, "damaged", f"{wrong}: ask another node, or later")
            return
        if len(proof_read.packs) < len(proof_read.positions):
            self._read_next(proof_read)
        else:
            self._prove(proof_read)

    def _prove(self, proof_read: _ProofRead) -> None:
        first, second = proof_read.positions
        streams = (first.stream, len(proof_read.packs[0]), second.stream)
        answer = ProofIs(proof_read.call, self._execution.cluster, proof_read.client.key, *streams)
        self.effects.append(ToClient(proof_read.instance, answer, b"".join(proof_read.packs)))

    def _fail(self, instance: bytes, call: int, kind: str, reason: str) -> None:
        self.effects.append(ToClient(instance, Failed(call, kind, reason)))


def _receipt_in(lane: LaneState, request: int) -> Run | None:
    """The receipt of this request, if the lane still remembers it."""
    found = (run_of(lane.client_id, one) for one in lane.recent if one.first_id <= request <= one.last_id)
    return next(found, None)
