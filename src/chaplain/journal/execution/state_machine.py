"""The state machine of the journal: applies agreed messages. Only this module decides the outcome of a request.

It is a pure function of the initial configuration and the agreed messages: two executors with the same prefix have the
same state. The checks of an ingest node only save work; they decide nothing.

For each pack, in order, execution checks that the lane exists, that its identity is active, that the pack is intact and
signed by that identity, and that the identity may write to the stream. The results for the same octets never change, so
a client may send another request under the id of a refused one. Only after these checks does execution compare the
request ids (`dedup`). Only the next pack of a lane gets offsets.

Results of signature checks are cached per ingest message: an ingest node has checked its own packs, and a host may
check those of other nodes in threads while they wait to be ordered (`cache_checks`). Execution checks what is not in
the cache.

Invariants: only `apply` changes the state. Messages are applied in order, each once. The offsets of a stream have no
gaps. A request is applied once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from chaplain.errors import Malformed
from chaplain.journal.execution import consumer_packs, dedup, leaves, two_phase
from chaplain.journal.execution.config import Configuration
from chaplain.journal.execution.dedup import PackStatus
from chaplain.journal.execution.state import ExecutionState, StateDraft, load
from chaplain.journal.messages import consumer, ingest
from chaplain.journal.messages.cluster import Body, DataEntry, Reference, genesis
from chaplain.journal.messages.ingest import IngestEntry, IngestHeads
from chaplain.journal.messages.signing import PackCheck, SignatureType, Wrapping, holds
from chaplain.journal.messages.write_request import STATEMENTS, Heading, check_stream, read_heading, request_digest
from chaplain.journal.model import verdict_chain
from chaplain.journal.model.bootstrap import ClusterBootstrap
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.log_entry import AgreedEntry, Decision
from chaplain.journal.model.records import (
    AppliedRequest,
    ClientIdentity,
    EquivocationEvidence,
    IdentityStatus,
    LaneState,
    LogPosition,
    RequestPosition,
    Staged,
)
from chaplain.journal.model.results import (
    AppliedMessage,
    DataVerdict,
    EntryVerdict,
    ExecutedIngest,
    ExecutionVerdict,
    PackVerdict,
)
from chaplain.journal.model.verdict_chain import verdict_hash
from chaplain.journal.storage import verdict
from chaplain.journal.storage.record_layout import applied_batches, pair_with_verdicts
from chaplain.journal.storage.verdict import INVALID, UNCHECKED, Reason, accepted_pack, read_applied, refused_pack
from chaplain.rights import may_read, may_write
from chaplain.segment.layout import NO_OFFSET
from chaplain.segment.record import Record

_WITHOUT_MESSAGES = (*two_phase.TO_TRANSACTIONS, consumer.CONSUMER)
"""Types of packs that add no messages to a stream."""
_ACCEPTED = (Reason.APPLIED, Reason.STAGED, Reason.COMMITTED)
CHECKED_MAX = 4096
"""Bound of ingest messages whose check results are cached; at the bound the oldest one is deleted."""
DECODED_MAX = 16
"""Bound of decoded ingest messages that are cached until they are applied. A decoded message keeps its payload in
memory.
"""


class _Plan:
    """A message that was executed on a draft, and is applied with it if it is agreed."""

    def __init__(self, digest: bytes, draft: StateDraft, executed: AppliedMessage, decision: Decision) -> None:
        self.hash = digest
        self.draft = draft
        self.executed = executed
        self.decision = decision


class JournalExecution:
    """The `Execution` that consensus uses, and the state that the rest of the journal reads."""

    def __init__(
        self,
        bootstrap: ClusterBootstrap,
        *,
        wrapping: Wrapping | None = None,
        snapshot: bytes | None = None,
        on_applied: Callable[[AppliedMessage], None] | None = None,
    ) -> None:
        assert (wrapping.id if wrapping else b"") == bootstrap.wrapping_id, "the cluster has another wrapping key"
        self.state = load(bootstrap, snapshot) if snapshot else ExecutionState(bootstrap, genesis(bootstrap.cluster))
        self.cluster = bootstrap.cluster
        self.copies = bootstrap.copies
        self._policy = bootstrap.policy
        self._wrapping = wrapping
        self._configuration = Configuration(bootstrap.cluster, wrapping)
        self._secrets: dict[bytes, bytes] = {}
        self._checked: dict[bytes, tuple[bool | None, ...]] = {}
        self._decoded: dict[bytes, IngestHeads] = {}
        self._payload_cache: dict[tuple[Reference, bytes], bytes] = {}
        """Payloads of the last applied message, and of every message that was stored or read back after it."""
        self._plan: _Plan | None = None
        """The message that was prepared last."""
        self._on_applied = on_applied
        self._clients_by_key = self._index_clients()

    # The interface of the serializer.

    @property
    def cluster_config(self) -> ClusterConfig:
        return self.state.cluster_config

    @property
    def applied_index(self) -> int:
        return self.state.position.index

    def prepare(self, message: AgreedEntry, /) -> None:
        self._plan_for(message)

    def apply(self, message: AgreedEntry, /) -> Decision:
        plan = self._plan_for(message)
        assert plan.executed.position.hash == message.hash, "a message was applied under another hash than its own"
        self._plan = None
        plan.draft.commit()
        executed = plan.executed
        self._payload_cache.clear()
        if executed.clients_changed:
            self._clients_by_key = self._index_clients()
        for entry, payload in zip(message.body.data_entries, message.payloads, strict=True):
            self._payload_cache[entry.reference, entry.digest] = payload
            self._checked.pop(entry.digest, None)
            self._decoded.pop(entry.digest, None)
        if self._on_applied is not None:
            self._on_applied(executed)
        return plan.decision

    def observe_stored(self, records: Sequence[Record], /) -> None:
        """Report a message that the snapshot covers and the log still contains, so that readers can find it."""
        if self._on_applied is not None:
            self._on_applied(read_applied(records))

    @property
    def verdict_hash(self) -> bytes:
        return self.state.verdict

    def decision_of(self, body: Body, payloads: Sequence[bytes], given: bytes, expected: bytes, /) -> Decision:
        verdict_chain.check(given, expected)
        decided = [one for one in verdict.decode(given).entries if isinstance(one, DataVerdict)]
        return Decision(given, applied_batches(pair_with_verdicts(body.data_entries, payloads, decided)).batches)

    def cache_stored(self, body: Body, payloads: Sequence[bytes], given: bytes = b"", /) -> None:
        self._cache_payloads(body, payloads)
        if given:
            with suppress(Malformed):  # execution computes it again
                decided = [one for one in verdict.decode(given).entries if isinstance(one, DataVerdict)]
                for entry, one in zip(body.data_entries, decided, strict=False):
                    # This node checked the signatures before it wrote the verdict.
                    self.cache_checks(entry.digest, [_check_result(pack.reason) for pack in one.packs])

    # The interface of the rest of the journal.

    def fingerprint(self) -> bytes:
        return self.state.fingerprint()

    def cached_payload(self, reference: Reference, digest: bytes, /) -> bytes | None:
        """An ingest message of a cluster message that waits to be agreed. A master that proposes the cluster message
        again needs it.
        """
        return self._payload_cache.get((reference, digest))

    def _cache_payloads(self, body: Body, payloads: Sequence[bytes]) -> None:
        for entry, payload in zip(body.data_entries, payloads, strict=True):
            self._payload_cache[entry.reference, entry.digest] = payload

    def client_of_key(self, key: bytes) -> ClientIdentity | None:
        """The active identity with this key; if there is none, a former one."""
        return self._clients_by_key.get(key)

    def _index_clients(self) -> dict[bytes, ClientIdentity]:
        return {client.key: client for client in sorted(self.state.clients.values(), key=lambda one: -one.status)}

    def precheck(self, lane: LaneState, stream: str, heading: Heading) -> Reason:
        """The reason for which execution would refuse the pack now, without a look at its ids and its signature."""
        client = self.state.clients[lane.acl]
        if client.status != IdentityStatus.ACTIVE:
            return _inactive_reason(client)
        return self._rights_refusal(client, stream, heading)

    def may_have_database(self, stream: str) -> bool:
        """True if the stream has a database, or would get one with its first statement."""
        return stream in self.state.databases or len(self.state.databases) < self._policy.databases_max

    def check_of(self, stream: str, raw: bytes | memoryview, heading: Heading) -> PackCheck | None:
        """The signature check that execution would make; None if execution will refuse the pack without it."""
        lane = self.state.lanes.get(heading.client_id)
        client = self.state.clients.get(lane.acl) if lane is not None else None
        return None if client is None else self._check(client, stream, raw)

    def cache_checks(self, digest: bytes, results: Iterable[bool | None], opened: IngestHeads | None = None) -> None:
        """Store the check results for the packs of the ingest message with this digest. A caller that has decoded the
        message passes it, so that execution does not decode it again.
        """
        self._checked[digest] = tuple(results)
        if len(self._checked) > CHECKED_MAX:
            del self._checked[next(iter(self._checked))]
        if opened is not None:
            self._decoded[digest] = opened
            if len(self._decoded) > DECODED_MAX:
                del self._decoded[next(iter(self._decoded))]

    # Execution.

    def _plan_for(self, message: AgreedEntry) -> _Plan:
        """The plan of this message. Its hash covers the digests of its payloads, so it names the payloads, too."""
        plan = self._plan
        if plan is None or plan.hash != message.hash:
            plan = self._plan = self._execute(message)
        return plan

    def _execute(self, message: AgreedEntry) -> _Plan:
        """Execute the next message on a draft of the state."""
        body, before = message.body, self.state.position
        assert body.index == before.index + 1, "a message was executed before its predecessor was applied"
        assert body.previous == before.hash, "a message does not continue the chain"
        assert body.timestamp_ns > before.timestamp_ns, "cluster time did not advance"
        draft = StateDraft(self.state, LogPosition(body.index, body.regime, body.timestamp_ns, message.hash))
        # Expiry follows cluster time, which is part of the message, so it is the same on every node.
        dedup.drop_idle_lanes(draft)
        if self.state.staged_packs.staged:
            two_phase.expire(draft.staged_packs, body.timestamp_ns)
        entries: list[EntryVerdict] = []
        ingests: list[ExecutedIngest] = []
        remaining = iter(message.payloads)
        for number, entry in enumerate(body.entries):
            if isinstance(entry, DataEntry):
                ingests.append(self._execute_data(draft, number, entry, next(remaining)))
                entries.append(ingests[-1].verdict)
            else:
                changes = draft.rights_changes
                entries.append(self._configuration.execute(draft, number, entry))
                if draft.rights_changes != changes:
                    leaves.add_configuration(draft, number, entry)
        assert next(remaining, None) is None, "more payloads than references"
        draft.checkpoint = draft.checkpoint or draft.weight_bytes >= self._policy.checkpoint_bytes
        packs = applied_batches(ingests)
        decided = ExecutionVerdict(tuple(entries), draft.end_streams(), self.state.verdict)
        encoded = verdict.encode(decided)
        draft.verdict = verdict_hash(encoded)
        executed = AppliedMessage(
            draft.position, decided, packs.records, draft.clients_changed, draft.nodes_changed, draft.checkpoint
        )
        return _Plan(message.hash, draft, executed, Decision(encoded, packs.batches))

    def _execute_data(self, draft: StateDraft, number: int, entry: DataEntry, payload: bytes) -> ExecutedIngest:
        reference = entry.reference
        draft.put_payload(reference.node, reference.journal, reference.index, len(payload))
        opened = self._decoded.get(entry.digest)
        try:
            message = ingest.decode(payload) if opened is None else opened.message
        except Malformed:
            return ExecutedIngest(reference, payload, None, DataVerdict((), malformed=True))
        if message.reference != reference or not draft.cluster_config.takes_writes(reference.node):
            return ExecutedIngest(reference, payload, message, DataVerdict((), malformed=True))
        headings = () if opened is None else opened.headings
        packs = self._execute_packs(draft, number, message.entries, self._checked.get(entry.digest, ()), headings)
        return ExecutedIngest(reference, payload, message, DataVerdict(tuple(packs)))

    def _execute_packs(
        self,
        draft: StateDraft,
        number: int,
        entries: tuple[IngestEntry, ...],
        known: tuple[bool | None, ...],
        headings: tuple[Heading, ...],
    ) -> list[PackVerdict]:
        """Execute the packs of one ingest message. `known` are cached check results, `headings` decoded headings; both
        may be empty.
        """
        packs: list[PackVerdict] = []
        if len(known) != len(entries):
            known = (None,) * len(entries)
        for pack, entry in enumerate(entries):
            valid = known[pack]
            try:
                heading = headings[pack] if headings else read_heading(entry.raw)
            except Malformed:
                packs.append(PackVerdict(0, 0, 0, 0, entry.stream, Reason.MALFORMED))
                continue
            packs.append(self._execute_pack(draft, (number, pack), entry, heading, valid))
        return packs

    def _execute_pack(
        self, draft: StateDraft, at: tuple[int, int], entry: IngestEntry, heading: Heading, valid: bool | None
    ) -> PackVerdict:
        """Execute one pack. `at` is the number of its entry, and its number in the entry."""
        writer = (
            self._writer_of_replay(draft, entry, heading, valid) if heading.message_type == two_phase.STAGED else None
        )
        if writer is not None:
            draft.staged_packs.mark_replayed()
            base = leaves.write_pack(draft, entry, heading, writer.key)
            return accepted_pack(heading, entry.stream, Reason.APPLIED, base)
        lane = draft.lane(heading.client_id)
        client = draft.client(lane.acl) if lane is not None else None
        if lane is None or client is None:
            return refused_pack(heading, entry.stream, Reason.UNKNOWN_LANE)
        reason = self._refusal(draft, client, entry, heading, valid)
        if reason is not Reason.APPLIED:
            return refused_pack(heading, entry.stream, reason, lane)
        return self._apply(draft, (lane, client), at, entry, heading)

    def _writer_of_replay(
        self, draft: StateDraft, entry: IngestEntry, heading: Heading, valid: bool | None
    ) -> ClientIdentity | None:
        """The writer of this pack, if it is the committed pack that gets its offsets next. Its rights were checked when
        it was staged.
        """
        committed = draft.staged_packs.next_to_replay()
        if committed is None or (committed.client_id, committed.first_id) != (heading.client_id, heading.first_id):
            return None
        client = draft.client(committed.acl)
        same = (committed.stream, committed.digest) == (entry.stream, heading.digest)
        return client if client is not None and same and self._signature_holds(client, entry, valid) else None

    def _refusal(
        self, draft: StateDraft, client: ClientIdentity, entry: IngestEntry, heading: Heading, valid: bool | None
    ) -> Reason:
        """The reason to refuse a pack, apart from its ids. The order of checks is fixed, so each result is final."""
        if client.status != IdentityStatus.ACTIVE:
            return _inactive_reason(client)
        if not self._signature_holds(client, entry, valid):
            return Reason.SIGNATURE
        reason = self._rights_refusal(client, entry.stream, heading)
        if (
            reason is Reason.APPLIED
            and heading.message_type not in _WITHOUT_MESSAGES
            and not draft.knows_stream(entry.stream)
        ):
            full = draft.streams_count() >= self._policy.streams_max
            reason = Reason.STREAMS_FULL if full else Reason.APPLIED
        return reason

    def _signature_holds(self, client: ClientIdentity, entry: IngestEntry, valid: bool | None) -> bool:
        if valid is None:
            check = self._check(client, entry.stream, entry.raw)
            valid = check is not None and holds(check)
        return valid

    def _rights_refusal(self, client: ClientIdentity, stream: str, heading: Heading) -> Reason:
        if heading.size_bytes > self._policy.pack_bytes_max:
            return Reason.TOO_LARGE
        if heading.message_type in two_phase.TO_TRANSACTIONS:
            return Reason.APPLIED if stream == two_phase.TRANSACTIONS else Reason.NO_RIGHT
        if heading.message_type == consumer.CONSUMER:
            return Reason.APPLIED if _is_valid_stream(stream) and may_read(client, stream) else Reason.NO_RIGHT
        if not _is_valid_stream(stream) or not may_write(client, stream):
            return Reason.NO_RIGHT
        return Reason.APPLIED

    def _apply(
        self,
        draft: StateDraft,
        writer: tuple[LaneState, ClientIdentity],
        at: tuple[int, int],
        entry: IngestEntry,
        heading: Heading,
    ) -> PackVerdict:
        """Decide the outcome of a pack by its ids. It has passed all other checks."""
        lane, client = writer
        stream = entry.stream
        digest = request_digest(self.cluster, stream, heading.digest)
        ruling = dedup.classify(lane, heading, digest)
        match ruling.status:
            case PackStatus.SEEN:
                return refused_pack(heading, stream, Reason.DUPLICATE, lane, ruling.applied)
            case PackStatus.OLD:
                return refused_pack(heading, stream, Reason.OLD, lane)
            case PackStatus.CONFLICT:
                assert ruling.applied is not None
                second = RequestPosition(draft.position.index, *at, stream, digest)
                _compromise(draft, lane, ruling.applied, second)
                return refused_pack(heading, stream, Reason.COMPROMISED, lane)
        # A fence comes after the checks for copies and conflicts: a copy still gets its receipt, and a conflict is
        # evidence on a fenced lane, too.
        if lane.fenced:
            return refused_pack(heading, stream, Reason.FENCED, lane)
        if ruling.status is PackStatus.GAP:
            return refused_pack(heading, stream, Reason.GAP, lane)
        reason, base = _accept(draft, client, at, entry, heading)
        if reason not in _ACCEPTED:
            return refused_pack(heading, stream, reason, lane)
        applied = AppliedRequest(
            heading.first_id, heading.requests, digest, stream, base, heading.messages, draft.position, *at
        )
        after = dedup.record_applied(lane, applied, self._policy)
        draft.put_lane(after)
        return accepted_pack(heading, stream, reason, base, after.last_id + 1)

    # Signatures.

    def _check(self, client: ClientIdentity, stream: str, raw: bytes | memoryview) -> PackCheck | None:
        key = self._secret(client) if client.signature_type == SignatureType.HMAC_SHA256 else client.key
        return None if key is None else PackCheck(client.signature_type, key, self.cluster, stream, raw)

    def _secret(self, client: ClientIdentity) -> bytes | None:
        secret = self._secrets.get(client.acl)
        if secret is None and self._wrapping is not None:
            secret = self._wrapping.unwrap(client.secret, client.key)
            if secret is not None:
                self._secrets[client.acl] = secret
        return secret


def _accept(
    draft: StateDraft, client: ClientIdentity, at: tuple[int, int], entry: IngestEntry, heading: Heading
) -> tuple[Reason, int]:
    """Execute the next pack of a lane of this client by its type. Returns the reason, and its offset or ticket."""
    match heading.message_type:
        case two_phase.STAGED:
            reason = two_phase.stage_decision(draft.staged_packs, client.acl)
            if reason is Reason.STAGED:
                size = (heading.client_id, heading.first_id, heading.requests, heading.messages)
                when = (draft.position.timestamp_ns, draft.position.index)
                draft.staged_packs.put_staged(Staged(*size, entry.stream, heading.digest, client.acl, *when, *at))
            return reason, NO_OFFSET
        case two_phase.COMMIT | two_phase.DISCARD:
            try:
                wanted = two_phase.commit_of(entry.raw)
            except Malformed:
                return Reason.NOT_STAGED, 0
            if heading.message_type == two_phase.DISCARD:
                two_phase.discard(draft.staged_packs, client.acl, wanted.spans)
                return Reason.COMMITTED, draft.staged_packs.committed_total
            return two_phase.commit(draft.staged_packs, client.acl, wanted, draft.position.timestamp_ns)
        case consumer.CONSUMER:
            return consumer_packs.execute(draft, client, entry)
        case _:
            if heading.message_type == STATEMENTS:
                if (reason := consumer_packs.acknowledge(draft, client, entry)) is not Reason.APPLIED:
                    return reason, 0
                draft.put_statements(entry.stream)
            return Reason.APPLIED, leaves.write_pack(draft, entry, heading, client.key)


def _check_result(reason: Reason) -> bool | None:
    """Whether the signature of a pack is valid, derived from its stored reason; None if the reason does not show it."""
    if reason in UNCHECKED:
        return None
    return reason not in INVALID


def _inactive_reason(client: ClientIdentity) -> Reason:
    return Reason.REMOVED if client.status == IdentityStatus.REMOVED else Reason.COMPROMISED


def _is_valid_stream(stream: str) -> bool:
    try:
        check_stream(stream)
    except Malformed:
        return False
    return True


def _compromise(draft: StateDraft, lane: LaneState, first: AppliedRequest, second: RequestPosition) -> None:
    """End an identity that signed two different requests for one id, and store both as evidence. Either its key was
    stolen or its owner lies.
    """
    client = draft.client(lane.acl)
    assert client is not None
    draft.put_client(msgspec.structs.replace(client, status=IdentityStatus.COMPROMISED))
    applied = RequestPosition(first.position.index, first.entry, first.pack, first.stream, first.digest)
    draft.put_proof(EquivocationEvidence(lane.client_id, lane.acl, applied, second))
