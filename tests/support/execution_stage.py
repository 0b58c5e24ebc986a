"""What tests of the journal's requests share: people with keys, packs they sign, and a prefix that grows."""

from __future__ import annotations

import random
from collections.abc import Sequence

from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages import config, ingest
from chaplain.journal.messages.client import Run
from chaplain.journal.messages.cluster import (
    Body,
    ConfigEntry,
    DataEntry,
    Entry,
    Reference,
    chain_hash,
    encode_body,
    genesis,
)
from chaplain.journal.messages.config import ConfigMessage, LeaseLane, acl_id, entry_type_of, stage_of
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import SLOT_BYTES, SignatureType, Wrapping, seal_pack, sign_pack
from chaplain.journal.model.bootstrap import BootstrapClient, BootstrapMember, ClusterBootstrap, ExecutionPolicy
from chaplain.journal.model.epochs import token_of
from chaplain.journal.model.log_entry import AgreedEntry, Decision, LogEntry
from chaplain.journal.model.results import AppliedMessage, ConfigVerdict, PackVerdict
from chaplain.journal.storage.records import group_messages, message_of, message_records, verdict_record
from chaplain.link.auth.identity import Identity
from chaplain.segment.pack import Pack, encode_pack
from chaplain.segment.record import Record
from simulator.actors import journal_clients

CLUSTER = "stage"
ADMIN = Identity(b"a" * 32)
ADMIN_ACL = acl_id(0, 0, 1)
BOB = Identity(b"b" * 32)
NODES = {node: Identity(bytes((node,)) * 32) for node in (1, 2, 3, 4, 5, 6)}
WRAPPING = Wrapping(b"w" * 32, CLUSTER)
SECOND = 10**9


def founding(
    policy: ExecutionPolicy | None = None,
    wrapping_id: bytes = b"",
    serializers: tuple[int, ...] = (),
    *,
    count: int = 3,
    copies: int = 0,
) -> ClusterBootstrap:
    members = tuple(
        BootstrapMember(node, identity.key, f"tcp://127.0.0.1:{7000 + node}", bytes((node,)) * 16)
        for node, identity in list(NODES.items())[:count]
    )
    client = BootstrapClient("default", ADMIN.key)
    return ClusterBootstrap(CLUSTER, members, (client,), policy or ExecutionPolicy(), wrapping_id, serializers, copies)


def pack(
    lane: int,
    first_id: int,
    values: Sequence[bytes] = (b"value",),
    *,
    stream: str = "orders",
    signer: Identity = ADMIN,
    counts: tuple[int, ...] | None = None,
    cluster: str = CLUSTER,
    message_type: int = 0,
    headers: tuple[bytes | None, ...] | None = None,
    keys: tuple[bytes | None, ...] | None = None,
    conditional: bool = False,
) -> IngestEntry:
    raw = encode_pack(
        Pack(
            lane,
            first_id,
            tuple(values),
            keys=keys,
            headers=headers,
            request_counts=counts,
            message_type=message_type,
            signature_type=SignatureType.ED25519,
            signature=bytes(SLOT_BYTES[SignatureType.ED25519]),
            conditional=conditional,
        )
    )
    return IngestEntry(stream, sign_pack(raw, cluster, stream, signer))


def resigned(entry: IngestEntry) -> IngestEntry:
    """The admin's request under another valid signature of the admin."""
    return journal_clients.resigned(entry, CLUSTER, b"a" * 32)


def sealed_pack(lane: int, first_id: int, secret: bytes, stream: str = "orders") -> IngestEntry:
    raw = encode_pack(Pack(lane, first_id, (b"value",), signature_type=SignatureType.HMAC_SHA256, signature=bytes(32)))
    return IngestEntry(stream, seal_pack(raw, CLUSTER, stream, secret))


FIRST_EPOCH = token_of(genesis(CLUSTER))


def petition(
    message: ConfigMessage,
    signer: Identity = ADMIN,
    acl: bytes = ADMIN_ACL,
    nonce: bytes = b"n" * 16,
    epoch: bytes = FIRST_EPOCH,
) -> ConfigEntry:
    data = config.sign(message, CLUSTER, acl, nonce, signer, epoch=epoch)
    return ConfigEntry(entry_type_of(message), stage_of(message), data)


def lease(signer: Identity = ADMIN, acl: bytes = ADMIN_ACL, nonce: bytes = b"n" * 16) -> ConfigEntry:
    return petition(LeaseLane(acl), signer, acl, nonce)


class Prefix:
    """An agreed prefix that grows, and executors that are given it."""

    def __init__(self, *executors: JournalExecution) -> None:
        self.executors = list(executors)
        self.messages: list[AgreedEntry] = []
        self.executed: list[AppliedMessage] = []
        self._indexes: dict[int, int] = {}

    def ingest(self, entries: Sequence[IngestEntry], node: int = 1) -> tuple[DataEntry, bytes]:
        index = self._indexes[node] = self._indexes.get(node, 0) + 1
        reference = Reference(node, 1, index)
        payload = ingest.encode(reference, entries)
        return DataEntry(reference, ingest.digest_of(payload)), payload

    def order(
        self,
        entries: Sequence[Entry | tuple[DataEntry, bytes]],
        *,
        time_ns: int | None = None,
        regime: int = 1,
    ) -> AgreedEntry:
        """Agree on one message and give it to everybody."""
        message = self.propose(entries, time_ns=time_ns, regime=regime)
        self.messages.append(message)
        for executor in self.executors:
            give(executor, message)
        return message

    def propose(
        self,
        entries: Sequence[Entry | tuple[DataEntry, bytes]],
        *,
        time_ns: int | None = None,
        regime: int = 1,
    ) -> AgreedEntry:
        last = self.messages[-1] if self.messages else None
        previous = last.hash if last else genesis(CLUSTER)
        index = len(self.messages) + 1
        time_ns = time_ns if time_ns is not None else (last.body.timestamp_ns if last else 0) + SECOND
        listed = tuple(entry[0] if isinstance(entry, tuple) else entry for entry in entries)
        body = Body(regime, index, 1, time_ns, previous, listed)
        payloads = tuple(entry[1] for entry in entries if isinstance(entry, tuple))
        return AgreedEntry(body, chain_hash(previous, encode_body(body)), payloads)

    def write(self, *entries: IngestEntry, node: int = 1, time_ns: int | None = None) -> AgreedEntry:
        return self.order([self.ingest(entries, node)], time_ns=time_ns)


def give(executor: JournalExecution, message: AgreedEntry) -> None:
    """As the serializer does."""
    executor.cache_stored(message.body, message.payloads)
    executor.prepare(message)
    executor.apply(message)


def decided(executor: JournalExecution, message: AgreedEntry) -> Decision:
    """What the executor will decide about the next message. The executor stays as it is."""
    state = executor.state
    return JournalExecution(state.bootstrap, snapshot=state.export()).apply(message)


def log_entry(message: AgreedEntry, ballot: int = 0) -> LogEntry:
    body = message.body
    return LogEntry(body, encode_body(body), message.hash, ballot or body.regime, message.payloads)


def stored(message: AgreedEntry, decision: Decision, ballot: int = 0) -> list[Record]:
    """The records of the message, with its verdict, as a node stores them."""
    entry = log_entry(message, ballot)
    records = message_records(entry)
    return [*records, verdict_record(entry, records[0].parts, decision)]


def read_back(records: Sequence[Record]) -> tuple[bytes, ...]:
    """The payloads of a message that was stored so."""
    (group,) = group_messages(records).values()
    return message_of(group).payloads


class Stage:
    """One executor, a prefix, and what came out of it."""

    def __init__(self, policy: ExecutionPolicy | None = None, *, wrapping: Wrapping | None = None) -> None:
        self.founding = founding(policy, wrapping.id if wrapping else b"")
        self.executed: list[AppliedMessage] = []
        self.execution = JournalExecution(self.founding, wrapping=wrapping, on_applied=self.executed.append)
        self.prefix = Prefix(self.execution)

    def config(self, *entries: ConfigEntry, time_ns: int | None = None) -> tuple[ConfigVerdict, ...]:
        self.prefix.order(entries, time_ns=time_ns)
        return tuple(one for one in self.executed[-1].verdict.entries if isinstance(one, ConfigVerdict))

    def lane(self, nonce: int = 0, signer: Identity = ADMIN, acl: bytes = ADMIN_ACL) -> int:
        (verdict,) = self.config(lease(signer, acl, b"%16d" % nonce))
        assert verdict.client_id
        return verdict.client_id

    def write(self, *entries: IngestEntry, node: int = 1, time_ns: int | None = None) -> tuple[PackVerdict, ...]:
        self.prefix.write(*entries, node=node, time_ns=time_ns)
        return packs_of(self.executed[-1])


def packs_of(executed: AppliedMessage) -> tuple[PackVerdict, ...]:
    return tuple(pack for entry in executed.verdict.entries for pack in getattr(entry, "packs", ()))


def fresh_nonce(rng: random.Random) -> bytes:
    return rng.randbytes(16)


def ids_of(run: Run) -> range:
    return range(run.first_id, run.first_id + run.requests)
