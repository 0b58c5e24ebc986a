"""Bytes that a proven client, a node, or a disk may give to the journal's requests."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from itertools import count

from msgspec.structs import replace

from chaplain.core import Drained, Halt, Woken
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ConsensusStarted
from chaplain.journal.core import JournalCore
from chaplain.journal.events import JournalParcel
from chaplain.journal.execution import two_phase
from chaplain.journal.execution.state import load
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.execution.two_phase import Commit, RequestRange
from chaplain.journal.messages import client, conditions, config, consensus, consumer, ingest, membership
from chaplain.journal.messages import peer as peer_messages
from chaplain.journal.messages.client import AskLane, Open, Read, SubmitPetition, Write
from chaplain.journal.messages.cluster import Body, ConfigEntry, DataEntry, Reference, chain_hash, encode_body, genesis
from chaplain.journal.messages.config import (
    AddIdentity,
    EntryType,
    FenceLane,
    LeaseLane,
    ReleaseLane,
    RetireLane,
    acl_id,
)
from chaplain.journal.messages.consensus import AgreedMark, MarkHeard, Propose
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.membership import AddNode, NewSet, SetRefusal, Stage, StageStep
from chaplain.journal.messages.peer import (
    Ack,
    AskPayload,
    AskState,
    ConsensusFrame,
    ForwardConfigRequest,
    Payload,
    StatePiece,
)
from chaplain.journal.messages.signing import sign_pack
from chaplain.journal.messages.write_request import STATEMENTS, check_pack, read_heading
from chaplain.journal.model.bootstrap import BootstrapClient, BootstrapMember, ClusterBootstrap
from chaplain.journal.model.log_entry import AgreedEntry
from chaplain.journal.settings import ConsensusSettings, JournalSettings
from chaplain.journal.storage import verdict
from chaplain.journal.storage.record_layout import batch_layout, decode_payloads
from chaplain.journal.storage.records import skeleton_of
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.pack import Pack, decode_pack, digest_of, encode_pack
from chaplain.segment.record import Kind
from chaplain.segment.verdicts import decode_verdict, encode_verdict, join_parts
from chaplain.wire.parcel import Layer, Parcel
from tests.support.execution_stage import read_back, stored

NOW_NS = 10**12
CLUSTER = "fuzz"
USER, NODE, OTHER = Identity(b"u" * 32), Identity(b"n" * 32), Identity(b"o" * 32)
ACL = acl_id(0, 0, 1)
FOUNDING = ClusterBootstrap(
    CLUSTER,
    (
        BootstrapMember(1, NODE.key, "tcp://127.0.0.1:1", b"d" * 16),
        BootstrapMember(2, OTHER.key, "tcp://127.0.0.1:2", b"e" * 16),
    ),
    (BootstrapClient("user", USER.key),),
)
_CLIENT = Peer(b"c" * 16, USER.identifier, USER.key, client="user")
_PEER = Peer(b"p" * 16, OTHER.identifier, OTHER.key, "tcp://127.0.0.1:2")


def _pack(first_id: int = 1, message_type: int = 0) -> bytes:
    raw = encode_pack(Pack(1, first_id, (b"one", b"two"), (None, b"k"), None, (1, 1), message_type, 1, bytes(64)))
    return sign_pack(raw, CLUSTER, "orders", USER)


_COMMIT = encode_pack(
    Pack(1, 3, (two_phase.encode(Commit("app", 1, (RequestRange(1, 1, 2),))),), None, None, None, two_phase.COMMIT)
)


def _petition(message: config.ConfigMessage) -> bytes:
    return config.sign(message, CLUSTER, ACL, b"n" * 16, USER, epoch=genesis(CLUSTER)[:16])


_PETITIONS = [
    _petition(message)
    for message in (
        LeaseLane(ACL),
        AddIdentity("x", 1, OTHER.key, ("*",), ()),
        ReleaseLane(1),
        RetireLane(1, ACL),
        FenceLane(1),
    )
]
_INGEST = ingest.encode(Reference(2, 1, 1), [IngestEntry("orders", _pack()), IngestEntry("b", _pack(9))])


def _prepared() -> JournalExecution:
    """An execution in which the user has lane 1."""
    execution = JournalExecution(FOUNDING)
    entry = ConfigEntry(EntryType.ADD_CLIENT, 0, _PETITIONS[0])
    _settle(execution, (entry,), ())
    assert 1 in execution.state.lanes
    return execution


def _settle(execution: JournalExecution, entries: tuple, payloads: tuple[bytes, ...]) -> tuple[Body, tuple]:
    before = execution.state.position
    body = Body(1, before.index + 1, 1, before.timestamp_ns + 1, before.hash, entries)
    message = AgreedEntry(body, chain_hash(before.hash, encode_body(body)), payloads)
    decision = execution.apply(message)
    assert verdict.encode(verdict.decode(decision.verdict)) == decision.verdict
    records = stored(message, decision)
    assert read_back(records) == payloads
    assert [one.first_offset for one in join_parts(records) if one.kind == Kind.BATCH] == [
        one.first_offset for one in decision.batches
    ]
    return body, records


_EXECUTION = _prepared()
_STATE = _EXECUTION.state.export()
_FILED = _settle(
    JournalExecution(FOUNDING, snapshot=_STATE), (DataEntry(Reference(2, 1, 1), sha256(_INGEST).digest()),), (_INGEST,)
)
_SAID = [
    client.encode(message)
    for message in (
        Open(1),
        Write("orders", True),
        SubmitPetition(2, EntryType.ADD_CLIENT, 0),
        AskLane(3, 1),
        Read(4, "orders", 0, 1000),
    )
]
_PEERS = (
    ConsensusFrame(b"x"),
    Payload(_INGEST),
    AskPayload(Reference(1, 1, 1), b""),
    Ack((Reference(1, 1, 1),)),
    ForwardConfigRequest(EntryType.ADD_CLIENT, 0, _PETITIONS[0]),
    AskState(1, 0),
    StatePiece(1, 0, _STATE),
    *(
        ConsensusFrame(consensus.encode(message, 2))
        for message in (Propose(1, 1, b"body"), AgreedMark(1, 1, b"h" * 32), MarkHeard(1, 1, 0))
    ),
    peer_messages.IngestDrainedNotice(),
    peer_messages.Removed(9),
)
_NODES = (AddNode(EntryType.ADD_INGEST_NODE, 9, "tcp://x:7", b"k" * 32, b"d" * 16), NewSet((1, 2)))
_STEP = StageStep(EntryType.NEW_SERIALIZER_SET, Stage.REFUSE, (1, 2), acl_id(1, 2, 3), SetRefusal.SAME_SET)

SEEDS = {
    "target_pack": [_pack()],
    "target_ingest": [_INGEST],
    "target_execute": [_INGEST],
    "target_execute_pack": [
        _pack(),
        _pack(2),
        _pack(1, STATEMENTS),
        _pack(1, two_phase.STAGED),
        _COMMIT,
        _pack(1, two_phase.DISCARD),
        _pack(1, consumer.CONSUMER),
    ],
    "target_petition": [bytes((EntryType.ADD_CLIENT,)) + data for data in _PETITIONS[:2]]
    + [bytes((EntryType.REMOVE_CLIENT,)) + data for data in _PETITIONS[2:4]]
    + [bytes((EntryType.FENCE_CLIENT,)) + _PETITIONS[4]],
    "target_skeleton": [skeleton_of(_FILED[1][0])],
    "target_applied_batches": [bytes(_FILED[1][-1].body)],
    "target_state": [_STATE],
    "target_client": [bytes((len(body),)) + body + payload for body in _SAID for payload in (_pack(), _PETITIONS[0])],
    "target_peer": [bytes((len(body),)) + body + payload for body, payload in map(peer_messages.encode, _PEERS)],
    "target_node_stage": [
        *(bytes((membership.type_of(one) - 2, config.stage_of(one))) + _petition(one) for one in _NODES),
        bytes((_STEP.entry_type - 2, _STEP.stage)) + membership.encode_step(_STEP),
    ],
    "target_conditions": [
        conditions.encode([conditions.NextOffset(7)]),
        conditions.encode(
            [conditions.KeyUnchanged(b"key", 3), conditions.Fence("leader", 2), conditions.TagUnchanged("red", 1)]
        ),
    ],
    "target_consumer": [
        consumer.encode(consumer.Join("c", bytes(16), consumer.Mode.KEYED, 4, 1000)),
        consumer.encode(consumer.Acknowledge("c", 1, 2, 3, ((0, 4), (2, 9)))),
        consumer.encode(consumer.Return("c", 1, 5, 1, ((2, 3), (5, 5)))),
    ],
    "target_commit": [two_phase.encode(Commit("app", 1, (RequestRange(1, 1, 2), RequestRange(2, 1, 1))))],
    "target_verdict": [verdict.encode(verdict.ExecutionVerdict((), ()))],
}


def _repaired(raw: bytes) -> bytes:
    try:
        return raw[:32] + digest_of(raw) + raw[64:]
    except Malformed:
        return raw


def target_pack(data: bytes) -> None:
    """What is found whole can be taken apart."""
    raw = _repaired(data)
    try:
        read_heading(raw)
        check_pack(raw)
    except Malformed:
        return
    decode_pack(raw)


def _execution() -> JournalExecution:
    return JournalExecution(FOUNDING, snapshot=_STATE)


def make_target_node_stage() -> Callable[[bytes], None]:
    """Whatever is ordered about nodes, there is a verdict, and the state has one form."""
    order = _ordering()

    def target(data: bytes) -> None:
        if len(data) >= 2:
            order(ConfigEntry(data[0] % 6 + 2, data[1] % 9, data[2:]))

    return target


def _ordering() -> Callable[[ConfigEntry], None]:
    """What is wrong with a state stays in it: it is looked at after every fifth message."""
    execution = _execution()

    def order(entry: ConfigEntry) -> None:
        _settle(execution, (entry,), ())
        if execution.applied_index % 5 == 0:
            load(FOUNDING, execution.state.export())

    return order


def target_ingest(data: bytes) -> None:
    try:
        message = ingest.decode(data)
    except Malformed:
        return
    assert ingest.encode(message.reference, message.entries) == data


def make_target_execute() -> Callable[[bytes], None]:
    """Any ingest message is executed, filed and found again, and to another node it means the same."""
    one, other = _execution(), _execution()

    def target(data: bytes) -> None:
        nonlocal one, other
        fifth = one.applied_index % 5 == 0
        times = 2 if fifth else 1
        entry = DataEntry(Reference(2, 1, 1), sha256(data).digest())
        body, _ = _settle(one, (entry,) * times, (data,) * times)
        other.apply(AgreedEntry(body, one.state.position.hash, (data,) * times))
        if fifth or one.state.proofs:  # states that have parted do not meet again
            assert one.fingerprint() == other.fingerprint()
        if one.state.proofs:  # the user signed two things for one id, and may write no more
            one, other = _execution(), _execution()

    return target


def make_target_execute_pack() -> Callable[[bytes], None]:
    """Any pack of ours, validly signed as far as it can be."""
    execute = make_target_execute()

    def target(data: bytes) -> None:
        raw = _repaired(data)
        with suppress(Malformed, ValueError):
            read_heading(raw)
            raw = sign_pack(raw, CLUSTER, "orders", USER)
        execute(ingest.encode(Reference(2, 1, 1), [IngestEntry("orders", raw)]))

    return target


def make_target_petition() -> Callable[[bytes], None]:
    order = _ordering()

    def target(data: bytes) -> None:
        if data and data[0] >= 2:
            order(ConfigEntry(data[0], 0, data[1:]))

    return target


def target_skeleton(data: bytes) -> None:
    batches = [record for record in _FILED[1] if record.kind == Kind.BATCH]
    try:
        batch_layout(data)
        decode_payloads(data, batches)
    except Malformed:
        return


def target_applied_batches(data: bytes) -> None:
    """Batches that a VERDICT record lists, and octets of records that they name."""
    first, *others = _FILED[1]
    with suppress(Malformed):
        join_parts([first, *others[:-1], replace(others[-1], body=data, first_offset=NO_OFFSET)])
    try:
        batches, rest = decode_verdict(data)
    except Malformed:
        return
    assert encode_verdict(batches, rest) == data


def target_state(data: bytes) -> None:
    try:
        state = load(FOUNDING, data)
    except Malformed:
        return
    assert state.export() == data


def target_commit(data: bytes) -> None:
    try:
        decoded = two_phase.decode(data)
    except Malformed:
        return
    assert two_phase.encode(decoded) == data


def target_conditions(data: bytes) -> None:
    try:
        decoded = conditions.decode(data)
    except Malformed:
        return
    assert conditions.encode(decoded) == data


def target_consumer(data: bytes) -> None:
    try:
        decoded = consumer.decode(data)
    except Malformed:
        return
    assert consumer.encode(decoded) == data


def target_verdict(data: bytes) -> None:
    try:
        decoded = verdict.decode(data)
    except Malformed:
        return
    assert verdict.encode(decoded) == data


def _core() -> JournalCore:
    disk = b"d" * 16
    order = ConsensusSettings(1, genesis(CLUSTER), disk, disk, b"b" * 16, segment_bytes=16384)
    core = JournalCore(JournalSettings(order), FOUNDING, random.Random(1), identity=Identity(b"1" * 32), identifier=1)
    for event in (ConsensusStarted(), Entered(_CLIENT, {}), Entered(_PEER, {})):
        core.step(NOW_NS, event)
    core.execution.state = load(FOUNDING, _STATE)
    return core


def _split(data: bytes) -> tuple[bytes, bytes]:
    size = data[0] if data else 0
    return data[1 : 1 + size], data[1 + size :]


def _told_by(peer: Peer) -> Callable[[bytes], None]:
    core = _core()
    clock = count(1)

    def target(data: bytes) -> None:
        nonlocal core
        number = next(clock)
        now_ns = NOW_NS + number * 10**8
        parcel = Parcel(peer.identifier, Layer.JOURNAL, *_split(data))
        effects = [*core.step(now_ns, JournalParcel(peer, parcel)), *core.step(now_ns, Drained())]
        if number % 5 == 0:
            effects += core.step(now_ns, Woken())
        if any(isinstance(effect, Halt) for effect in effects):
            core = _core()

    return target


def make_target_client() -> Callable[[bytes], None]:
    """First octet: the size of the body; then body and payload of a parcel."""
    return _told_by(_CLIENT)


def make_target_peer() -> Callable[[bytes], None]:
    return _told_by(_PEER)
