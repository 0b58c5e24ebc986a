"""The state of the journal after the agreed prefix, a draft of the changes of one message, and the state's serialized
form.

    clients         identities, by ACL id
    lanes           by client id
    streams         the next offset and the chain hash of each stream
    proofs          evidence against identities that signed two requests for one id
    cluster_config  the nodes, their roles, and the serializers
    staged_packs    staged and committed packs, see `staged_packs`
    epochs          which configuration requests are valid, and the decisions on them
    tree            the Merkle tree over the log, see `log_tree`
    consumers       named consumers: positions, workers and leases, see `consumers`
    released, databases, verdict …   facts about messages that may no longer be in the log

Decides nothing: the rules are in `dedup`, `config`, `two_phase` and `state_machine`. A `StateDraft` overlays the state,
so that a message can be executed before it is agreed; `commit` writes the draft to the state. Nodes compare what
`export` contains. Indexes that follow from it, such as `leases`, are not exported.

`fingerprint` is a hash of the same contents. The time to compute it does not grow with the number of streams and lanes.

Invariants: client ids increase and are never reused. One state has exactly one serialized form, and `load` restores the
state from it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import sha256

import msgspec

from chaplain.errors import Malformed
from chaplain.journal.execution.consumers import ConsumersDraft, ConsumerStates
from chaplain.journal.execution.staged_packs import StagedPacks, StagedPacksDraft
from chaplain.journal.messages.config import acl_id
from chaplain.journal.model.bootstrap import ClusterBootstrap
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.consumers import ConsumersRecord
from chaplain.journal.model.epochs import Epochs, EpochsDraft, EpochsRecord
from chaplain.journal.model.log_tree import LogTree, LogTreeRecord, load_tree
from chaplain.journal.model.records import (
    ClientIdentity,
    EquivocationEvidence,
    LaneState,
    LogPosition,
    RetainedFacts,
    StagedPacksRecord,
    StateRecord,
    StreamHead,
)
from chaplain.journal.model.results import StreamVerdict
from chaplain.journal.model.set_hash import MappingHash, SetHash
from chaplain.journal.model.verdict_chain import NO_VERDICT
from chaplain.wire.packed import unpack

_STREAM_CHAIN = b"chaplain stream chain\0"
_SPAN = struct.Struct(">QQ")
STATE_VERSION = 6
_exports = msgspec.msgpack.Decoder(StateRecord)


def stream_genesis(cluster: str, stream: str) -> bytes:
    return sha256(b"%bgenesis\0%b\0%b" % (_STREAM_CHAIN, cluster.encode(), stream.encode())).digest()


def stream_hash(previous: bytes, first_offset: int, count: int, digests: list[bytes]) -> bytes:
    """The stream's chain hash after one cluster message that wrote to it."""
    span = _SPAN.pack(first_offset, count)
    return sha256(b"".join((_STREAM_CHAIN, previous, span, *digests))).digest()


class ExecutionState:
    """The complete state. Only `StateDraft.commit` changes it."""

    def __init__(self, bootstrap: ClusterBootstrap, genesis: bytes) -> None:
        self.bootstrap = bootstrap
        self._bootstrap_digest = bootstrap.digest()
        self.position = LogPosition(0, 0, 0, genesis)
        self.next_client = 1
        self.clients: dict[bytes, ClientIdentity] = {}
        self.lanes: dict[int, LaneState] = {}
        """In the order of their last use."""
        self.streams: dict[str, StreamHead] = {}
        self.proofs: dict[bytes, EquivocationEvidence] = {}
        self.journals: dict[int, tuple[int, int]] = {}
        """For each ingest node, journal and index of its message that was ordered last."""
        self.cluster_config = bootstrap.cluster_config()
        self.staged_packs = StagedPacks()
        self.weight_bytes = 0
        """Octets of ingest messages since the last checkpoint."""
        self.released = 0
        self.databases: dict[str, int] = {}
        self.verdict = NO_VERDICT
        """Hash of the verdict on the last message."""
        self.epochs = Epochs(bootstrap.policy.epochs, genesis)
        self.tree = LogTree()
        self.consumers = ConsumerStates()
        self.leases: dict[tuple[bytes, bytes], int] = {}
        """The lane that each pair of ACL id and nonce leased."""
        self.lane_counts: dict[bytes, int] = {}
        self._clients_hash = MappingHash(lambda: self.clients)
        self._lanes_hash = MappingHash(lambda: self.lanes)
        self._streams_hash = MappingHash(lambda: self.streams)
        for number, seed in enumerate(bootstrap.clients):
            acl = acl_id(0, 0, number + 1)
            rights = (seed.writes, seed.reads, seed.admin)
            client = ClientIdentity(acl, seed.name, seed.key, seed.signature_type, b"", *rights, nonce=b"")
            self.put_clients({acl: client})

    def put_clients(self, clients: Mapping[bytes, ClientIdentity]) -> None:
        for acl, client in clients.items():
            self._clients_hash.note(acl)
            self.clients[acl] = client

    def put_lane(self, lane: LaneState) -> None:
        before = self.lanes.get(lane.client_id)
        self._lanes_hash.note(lane.client_id)
        if before is not None and before.active_ns != lane.active_ns:
            del self.lanes[lane.client_id]  # a used lane moves to the end of the dictionary
        self.lanes[lane.client_id] = lane
        if before is None and lane.nonce:
            self.leases[lane.acl, lane.nonce] = lane.client_id
            self.lane_counts[lane.acl] = self.lane_counts.get(lane.acl, 0) + 1
        elif before is not None and before.nonce != lane.nonce:
            self._end_lease(before)

    def drop_lane(self, client_id: int) -> None:
        self._lanes_hash.note(client_id)
        self._end_lease(self.lanes.pop(client_id))

    def put_streams(self, tails: Mapping[str, StreamHead]) -> None:
        for name, tail in tails.items():
            self._streams_hash.note(name)
            self.streams[name] = tail

    def _end_lease(self, lane: LaneState) -> None:
        if not lane.nonce:
            return  # the lane was retired: its lease has ended already
        if self.leases[lane.acl, lane.nonce] == lane.client_id:
            del self.leases[lane.acl, lane.nonce]
        self.lane_counts[lane.acl] -= 1
        if not self.lane_counts[lane.acl]:
            del self.lane_counts[lane.acl]

    def export(self) -> bytes:
        """The serialized form of this state. Equal states have equal octets."""
        return msgspec.msgpack.encode(
            self._export(
                tuple(self.clients[acl] for acl in sorted(self.clients)),
                tuple(self.lanes[client_id] for client_id in sorted(self.lanes)),
                tuple((name, self.streams[name]) for name in sorted(self.streams)),
                staged_packs=self.staged_packs.export(),
                epochs=self.epochs.export(),
                tree=self.tree.export(),
                consumers=self.consumers.export(),
            )
        )

    def fingerprint(self) -> bytes:
        """A hash that identifies this state, as the digest of `export` would.

        Collections that may have many thousands of items are hashed incrementally: an item is hashed again only if it
        changed since the last fingerprint.
        """
        counters = StagedPacksRecord(replayed=self.staged_packs.replayed)
        epochs, tree = self.epochs.export_without_decisions(), self.tree.summary()
        consumers = ConsumersRecord(next_token=self.consumers.next_token)
        fields = self._export((), (), (), staged_packs=counters, epochs=epochs, tree=tree, consumers=consumers)
        rest = msgspec.msgpack.encode(fields)
        hashes = (self._clients_hash, self._lanes_hash, self._streams_hash)
        parts = (*hashes, self.epochs.decisions_hash, self.consumers.hash)
        sets: tuple[SetHash, ...] = (*parts, *self.staged_packs.hashes)
        return sha256(b"".join((rest, *(one.digest() for one in sets)))).digest()

    def _export(
        self,
        clients: tuple[ClientIdentity, ...],
        lanes: tuple[LaneState, ...],
        streams: tuple[tuple[str, StreamHead], ...],
        *,
        staged_packs: StagedPacksRecord,
        epochs: EpochsRecord,
        tree: LogTreeRecord,
        consumers: ConsumersRecord,
    ) -> StateRecord:
        return StateRecord(
            STATE_VERSION,
            self._bootstrap_digest,
            self.position,
            self.next_client,
            clients,
            lanes,
            streams,
            tuple(self.proofs[acl] for acl in sorted(self.proofs)),
            tuple((node, *self.journals[node]) for node in sorted(self.journals)),
            self.cluster_config,
            staged_packs,
            RetainedFacts(self.weight_bytes, self.released, tuple(self.databases.items()), self.verdict),
            epochs,
            tree,
            consumers,
        )


def _decode(data: bytes) -> StateRecord:
    return unpack(_exports, data, "state")


def read_export(
    data: bytes,
) -> tuple[LogPosition, tuple[tuple[str, StreamHead], ...], tuple[LaneState, ...], tuple[ClientIdentity, ...]]:
    """The parts of a serialized state that a verification of the log needs: position, streams, lanes and identities."""
    exported = _decode(data)
    return exported.position, exported.streams, exported.lanes, exported.clients


def load(bootstrap: ClusterBootstrap, data: bytes) -> ExecutionState:
    """Restore a state. Raises `Malformed` unless `export` wrote the data, in this version and for the same initial
    configuration.
    """
    exported = _decode(data)
    if exported.version != STATE_VERSION or exported.bootstrap != bootstrap.digest():
        raise Malformed("state: another version, or a cluster with another initial configuration")
    state = ExecutionState(bootstrap, exported.position.hash)
    state.position, state.next_client = exported.position, exported.next_client
    state.put_clients({client.acl: client for client in exported.clients})
    for lane in sorted(exported.lanes, key=lambda lane: lane.active_ns):
        state.put_lane(lane)
    state.put_streams(dict(exported.streams))
    state.proofs = {proof.acl: proof for proof in exported.proofs}
    state.journals = {node: (journal, index) for node, journal, index in exported.journals}
    state.cluster_config = exported.cluster_config
    state.staged_packs = StagedPacks(exported.staged_packs)
    state.weight_bytes, state.released = exported.past.weight_bytes, exported.past.released
    state.databases, state.verdict = dict(exported.past.databases), exported.past.verdict
    state.tree = load_tree(exported.tree)
    state.consumers = ConsumerStates(exported.consumers)
    state.epochs.load(exported.epochs)
    if state.export() != data:
        raise Malformed("state: not in its canonical form")
    return state


class StreamWrite:
    """The records that one message has written to one stream so far."""

    __slots__ = ("chain", "digests", "first_offset", "next_offset")

    def __init__(self, tail: StreamHead) -> None:
        self.first_offset = self.next_offset = tail.next_offset
        self.chain = tail.chain
        self.digests: list[bytes] = []

    def verdict(self, stream: str) -> StreamVerdict:
        count = self.next_offset - self.first_offset
        chain = stream_hash(self.chain, self.first_offset, count, self.digests)
        return StreamVerdict(stream, self.first_offset, count, chain)


class StateDraft:
    """The changes that one message would make."""

    def __init__(self, state: ExecutionState, position: LogPosition) -> None:
        self.state = state
        self.position = position
        self.next_client = state.next_client
        self.cluster_config = state.cluster_config
        self._clients: dict[bytes, ClientIdentity] = {}
        self._lanes: dict[int, LaneState | None] = {}
        self._leases: dict[tuple[bytes, bytes], int] = {}
        self._proofs: dict[bytes, EquivocationEvidence] = {}
        self._journals: dict[int, tuple[int, int]] = {}
        self.stream_writes: dict[str, StreamWrite] = {}
        self._stream_heads: dict[str, StreamHead] = {}
        """The new heads of the streams that were written to, once the message was executed."""
        self.staged_packs = StagedPacksDraft(state.staged_packs)
        self.epochs = EpochsDraft(state.epochs)
        self.consumers = ConsumersDraft(state.consumers)
        self.weight_bytes = state.weight_bytes
        self.released = state.released
        self.checkpoint = False
        """True if every node makes a checkpoint after this message."""
        self._databases: dict[str, int] = {}
        self.leaves: list[bytes] = []
        """Leaves that the message adds to the tree."""
        self._client_changes = 0
        self.verdict = b""
        """Hash of the verdict on this message, set after every entry is decided."""

    def lane(self, client_id: int) -> LaneState | None:
        if client_id in self._lanes:
            return self._lanes[client_id]
        return self.state.lanes.get(client_id)

    def put_lane(self, lane: LaneState) -> None:
        assert lane.active_ns == self.position.timestamp_ns, (
            "a changed lane counts as used: the dictionary is ordered by use"
        )
        self._lanes.pop(lane.client_id, None)
        self._lanes[lane.client_id] = lane
        self._leases[lane.acl, lane.nonce] = lane.client_id

    def amend_lane(self, lane: LaneState) -> None:
        """Change a lane without marking it as used."""
        before = self.lane(lane.client_id)
        assert before is not None, "a lane was changed after its end"
        assert before.active_ns == lane.active_ns, "`amend_lane` must not change when the lane was used"
        self._lanes[lane.client_id] = lane

    def drop_lane(self, client_id: int) -> None:
        self._lanes[client_id] = None

    def leased(self, acl: bytes, nonce: bytes) -> LaneState | None:
        """The lane that the same request leased before."""
        client_id = self._leases.get((acl, nonce)) or self.state.leases.get((acl, nonce))
        lane = self.lane(client_id) if client_id else None
        return lane if lane is not None and lane.nonce == nonce else None

    def lanes_by_use(self) -> list[LaneState]:
        """All lanes, the least recently used first."""
        old = [lane for client_id, lane in self.state.lanes.items() if client_id not in self._lanes]
        return old + [lane for lane in self._lanes.values() if lane is not None]

    def client(self, acl: bytes) -> ClientIdentity | None:
        return self._clients[acl] if acl in self._clients else self.state.clients.get(acl)

    def clients(self) -> list[ClientIdentity]:
        return [*({**self.state.clients, **self._clients}).values()]

    def put_client(self, client: ClientIdentity) -> None:
        self._clients[client.acl] = client
        self._client_changes += 1

    def put_proof(self, proof: EquivocationEvidence) -> None:
        self._proofs.setdefault(proof.acl, proof)

    def put_payload(self, node: int, journal: int, index: int, size_bytes: int) -> None:
        """Record an ordered ingest message."""
        self._journals[node] = (journal, index)
        self.weight_bytes += size_bytes

    def put_statements(self, stream: str) -> None:
        """Record statements for the stream's database, if the stream has a database or can still get one."""
        known = self.state.databases
        new = [one for one in self._databases if one not in known]
        if stream in known or stream in new or len(known) + len(new) < self.state.bootstrap.policy.databases_max:
            self._databases[stream] = self.position.index

    def knows_stream(self, stream: str) -> bool:
        return stream in self.stream_writes or stream in self.state.streams

    def streams_count(self) -> int:
        return len(self.state.streams) + sum(stream not in self.state.streams for stream in self.stream_writes)

    def write(self, stream: str, count: int, digest: bytes) -> int:
        """Append this many messages to the stream. Returns the offset of the first."""
        writing = self.stream_writes.get(stream)
        if writing is None:
            tail = self.state.streams.get(stream)
            writing = StreamWrite(tail or StreamHead(0, stream_genesis(self.state.bootstrap.cluster, stream)))
            self.stream_writes[stream] = writing
        base = writing.next_offset
        writing.next_offset += count
        writing.digests.append(digest)
        return base

    def next_offset(self, stream: str) -> int:
        """The offset that the next message of the stream gets."""
        writing, head = self.stream_writes.get(stream), self.state.streams.get(stream)
        return writing.next_offset if writing is not None else head.next_offset if head is not None else 0

    def end_streams(self) -> tuple[StreamVerdict, ...]:
        """Compute the new heads of the streams that were written to. Called once, after every entry was executed."""
        verdicts = tuple([self.stream_writes[stream].verdict(stream) for stream in self.stream_writes])
        for one in verdicts:
            self._stream_heads[one.stream] = StreamHead(one.first_offset + one.count, one.chain)
        return verdicts

    @property
    def clients_changed(self) -> bool:
        return bool(self._clients)

    @property
    def rights_changes(self) -> tuple[int, ClusterConfig]:
        """Changes with every change of an identity or of the nodes."""
        return self._client_changes, self.cluster_config

    @property
    def nodes_changed(self) -> bool:
        return self.cluster_config is not self.state.cluster_config

    def commit(self) -> None:
        state = self.state
        assert self.position.index == state.position.index + 1, "a message was applied out of order"
        assert self.verdict, "a message was applied without its verdict"
        for client_id, lane in self._lanes.items():
            if lane is not None:
                state.put_lane(lane)
            elif client_id in state.lanes:
                state.drop_lane(client_id)
        if self._clients:
            state.put_clients(self._clients)
        state.put_streams(self._stream_heads)
        if self._proofs:
            state.proofs = {**self._proofs, **state.proofs}
        state.journals.update(self._journals)
        self.staged_packs.commit()
        self.epochs.commit(self.position.index, self.position.hash)
        self.consumers.commit()
        state.weight_bytes = 0 if self.checkpoint else self.weight_bytes
        state.released = self.released
        state.databases.update(self._databases)
        state.verdict = self.verdict
        state.tree.append(self.leaves)
        state.position, state.next_client, state.cluster_config = self.position, self.next_client, self.cluster_config
