"""Ingest: admits clients' packs, has their signatures checked, and puts them verbatim into ingest messages of this
node.

    PackWritten ─▶ admitted ─▶ Drained: Verify ─▶ Verified ─▶ Drained: an ingest message, replicated and to be ordered
                               for some packs also: DryRun ─▶ DryRunDone ─▶ the same, or refused
    Payload of a peer ─▶ Drained: Verify ─▶ Verified ─▶ to be ordered

The first few signatures of a round are checked when they arrive, without a `Verify`. A single payload is therefore
available when the proposal that refers to it arrives directly after it.

Decides the contents of ingest messages and their references. Does not know the contents of packs, the master, or which
messages are agreed.

Each run of a node has its own journal id, and takes a new one after 2³² messages. The id is on disk before it is used,
so no reference is used twice.

Invariants: no message leaves under a journal id that is not on disk. The indexes of a journal have no gaps. An admitted
pack stays here until its verdict is known, or its signature check or dry run failed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias, assert_never

from chaplain.core import Drained, Persist, Persisted, Replace, Report, Stopping, Woken
from chaplain.costs import STATEMENT, size_cost
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ConsensusStarted, DiskSpace, NeedPayload, PeerDown, PeerUp
from chaplain.journal.events import (
    DryRunDone,
    FromPeer,
    IngestEffect,
    IngestInput,
    IngestRoleDropped,
    Ordered,
    PacksReplayed,
    PackWritten,
    SessionClosed,
    SessionOpened,
    ToClient,
    ToPeer,
    Verified,
)
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.admission import Admission, invalid, not_ingest, refuse
from chaplain.journal.ingest.dry_runs import DryRunQueue
from chaplain.journal.ingest.flow_control import CreditBook
from chaplain.journal.ingest.replication import PayloadReplication
from chaplain.journal.ingest.signature_queue import SignatureQueue
from chaplain.journal.messages import ingest
from chaplain.journal.messages.client import Credit, GoBack
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.ingest import AcceptedPack, Arrival, IngestEntry, IngestHeads
from chaplain.journal.messages.peer import Ack, AskPayload, Payload
from chaplain.journal.messages.signing import PackCheck
from chaplain.journal.messages.write_request import EXECUTED, Heading, read_heading
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.verdict import Reason

JOURNAL_MAX = 0xFFFF
INDEX_MAX = 0xFFFFFFFF
ENTRY_OVERHEAD_BYTES = 8
"""Size of a pack's entry in an ingest message, besides the pack and the name of its stream."""
WANTED_MAX = 4096
"""Requested ingest messages that any node may supply, by digest. The oldest request is forgotten first."""


_Unchecked: TypeAlias = AcceptedPack | Arrival


class IngestCore:
    """The ingest state machine of one node."""

    def __init__(
        self,
        settings: JournalSettings,
        chance: random.Random,
        execution: JournalExecution,
        stored: bytes | None,
        *,
        tokens: Iterator[int] | None = None,
    ) -> None:
        """`stored` is the content of the ingest file; None on a new disk. `tokens` numbers signature checks."""
        self._settings = settings
        self._pack_bytes_max = settings.pack_bytes_max
        self._execution = execution
        self._journal = _next_journal(stored, chance)
        self._index = 0
        self._journal_id_durable = False
        """The journal id is on disk."""
        self._ticket = 0
        """The write of the current journal id."""
        self._credit = CreditBook(settings.window_bytes, settings.ingest_bytes_max)
        self._admission = Admission(settings, execution, self._credit)
        self._replication = PayloadReplication(settings, lambda: execution.cluster_config.serializers)
        self._signatures: SignatureQueue[_Unchecked] = SignatureQueue(settings.checks_inline_max, tokens)
        self._dry_runs = DryRunQueue()
        self._verified_packs: list[AcceptedPack] = []
        """Packs with valid signatures, for the next ingest message."""
        self._replayed: list[IngestEntry] = []
        """Packs of committed two-phase writes, for the next ingest message."""
        self._awaiting_order: dict[Reference, list[AcceptedPack]] = {}
        """Packs of each ingest message that is not yet ordered."""
        self._checking_digests: set[bytes] = set()
        """Digests of other nodes' messages whose signatures are being checked."""
        self._needed: dict[Reference, bytes] = {}
        """Digests of messages that a proposal waits for."""
        self._holder_turn = 0
        """Counts requests to data holders, to ask each in turn."""
        self.forwarded_cost: Counter[int] = Counter()
        """By lane: the cost of intact packs that arrived from other nodes since this was read last."""
        self._effects: list[IngestEffect] = []

    def take_forwarded_cost(self) -> Counter[int]:
        """The cost of the packs that other nodes forwarded since the last call, by lane."""
        costs, self.forwarded_cost = self.forwarded_cost, Counter()
        return costs

    @property
    def journal(self) -> int:
        return self._journal

    @property
    def received_by_node(self) -> dict[int, tuple[Reference, ...]]:
        """The ingest messages that this node has received, and those that it knows others to have."""
        return self._replication.received_by_node()

    @property
    def idle(self) -> bool:
        """True if no admitted pack waits here."""
        return self._admission.idle

    @property
    def has_work(self) -> bool:
        """True if work waits for the end of a round."""
        return bool(self._signatures.pending or self._verified_packs or self._replayed or self._credit.released)

    @property
    def waiting_bytes(self) -> int:
        return self._credit.waiting_bytes

    @property
    def waiting(self) -> int:
        """Number of packs that wait for an answer."""
        return self._credit.waiting

    def credit_of(self, instance: bytes) -> int:
        """The total number of bytes that a client may have written in its session."""
        return self._credit.open(instance)

    @property
    def due_ns(self) -> int | None:
        return self._replication.due_ns

    def step(self, now_ns: int, event: IngestInput) -> list[IngestEffect]:
        match event:
            case PackWritten():
                self._on_pack(now_ns, event)
            case PacksReplayed():
                self._replayed += event.entries
            case Drained():
                self._drained(now_ns)
            case Verified():
                for item, results in self._signatures.on_verified(event):
                    self._on_checked(now_ns, item, results)
            case DryRunDone():
                self._on_dry_run(event)
            case FromPeer():
                self._on_peer_message(now_ns, event.node, event.message)
            case Ordered():
                self._ordered(event)
            case IngestRoleDropped():
                self._return_packs()
            case NeedPayload():
                self._request_payload(event)
            case Woken():
                self._effects += self._replication.woken(now_ns)
            case SessionOpened():
                credit = self._credit.open(event.instance)
                self._effects.append(ToClient(event.instance, Credit(credit)))
            case SessionClosed():
                self._credit.close(event.instance)
            case PeerUp():
                self._replication.peer_up(event.node)
            case PeerDown():
                self._replication.peer_down(event.node)
            case Persisted():
                self._journal_id_durable = self._journal_id_durable or event.ticket == self._ticket
            case ConsensusStarted():
                self._persist_journal_id()
            case DiskSpace():
                self._admission.disk_full = event.free_bytes < self._settings.order.room_bytes_min
            case Stopping():
                self._admission.stopping = True
            case _:
                assert_never(event)
        effects, self._effects = self._effects, []
        return effects

    # Journal ids.

    def _persist_journal_id(self) -> None:
        """Write the journal id to disk, so that no later run uses it. No message leaves before that."""
        self._journal_id_durable = False
        self._replication.begin(self._journal)
        self._ticket += 1
        data = self._journal.to_bytes(2, "big")
        self._effects.append(Persist(self._ticket, (Replace(self._settings.ingest_file, data),)))

    # Packs of clients.

    def _on_pack(self, now_ns: int, event: PackWritten) -> None:
        outcome = self._admission.offer(event)
        if isinstance(outcome, AcceptedPack):
            check = self._execution.check_of(event.stream, event.raw, outcome.heading)
            for item, results in self._signatures.add(now_ns, outcome, (check,)):
                self._on_checked(now_ns, item, results)
        elif outcome is not None:
            self._effects.append(ToClient(event.instance, outcome))

    def _on_checked(self, now_ns: int, item: _Unchecked, results: Sequence[bool | None]) -> None:
        """The signatures of an item were checked."""
        if isinstance(item, Arrival):
            self._checking_digests.discard(item.digest)
            self._execution.cache_checks(item.digest, results, item.opened)
            if item.opened is not None:
                for heading, valid in zip(item.opened.headings, results, strict=True):
                    if valid:
                        self.forwarded_cost[heading.client_id] += forwarded_cost(heading)
            arrived = self._replication.received(now_ns, item.node, item.reference, item.digest, item.payload)
            self._effects.append(arrived)
        elif results[0]:
            self._on_signature_valid(item)
        else:
            self._admission.release(item)
            lane = self._execution.state.lanes.get(item.heading.client_id)
            answer = refuse(item.heading, Reason.SIGNATURE, lane)
            self._effects.append(ToClient(item.instance, answer))

    def _on_signature_valid(self, taken: AcceptedPack) -> None:
        """The pack's signature is valid: queue it for the next ingest message, or for a dry run."""
        if self._dry_runs.lanes and self._dry_runs.queue_behind(taken):
            return
        if taken.check:
            self._effects.append(self._dry_runs.begin(taken))
        else:
            self._verified_packs.append(taken)

    def _on_dry_run(self, event: DryRunDone) -> None:
        group = self._dry_runs.end(event.ticket)
        if not event.kind:
            self._verified_packs += group
            return
        for one in group:
            self._admission.release(one)
            first = one is group[0]
            answer = invalid(one, event) if first else GoBack(one.heading.client_id, group[0].heading.first_id)
            self._effects.append(ToClient(one.instance, answer))

    def _drained(self, now_ns: int) -> None:
        if self._signatures.pending:
            self._effects.append(self._signatures.request_checks())
        if self._verified_packs and not self._admission.roles.may_propose:
            self._return_packs()
        while self._journal_id_durable and self._verified_packs:
            self._send_packs(now_ns)
        while self._journal_id_durable and self._replayed:
            self._send_replayed(now_ns)
        if self._credit.released:
            announced = self._credit.take_announcements()
            self._effects += [ToClient(instance, Credit(total)) for instance, total in announced]

    def _send_packs(self, now_ns: int) -> None:
        """Put verified packs into an ingest message of this node."""
        count = self._fitting([taken.entry for taken in self._verified_packs])
        taken, self._verified_packs = self._verified_packs[:count], self._verified_packs[count:]
        reference = self._send(now_ns, [one.entry for one in taken], [one.heading for one in taken])
        self._awaiting_order[reference] = taken

    def _send_replayed(self, now_ns: int) -> None:
        """As `_send_packs`, for packs of committed two-phase writes, for which no client waits here."""
        count = self._fitting(self._replayed)
        entries, self._replayed = self._replayed[:count], self._replayed[count:]
        self._send(now_ns, entries, [])

    def _send(self, now_ns: int, entries: list[IngestEntry], headings: list[Heading]) -> Reference:
        """Send an ingest message. `headings` are those of packs whose signatures were checked here."""
        self._index += 1
        reference = Reference(self._settings.order.node, self._journal, self._index)
        payload, message = ingest.compose(reference, entries)
        digest = ingest.digest_of(payload)
        if headings:
            # Execution remembers the results, and does not check the signatures again when the message is ordered.
            self._execution.cache_checks(digest, [True] * len(entries), IngestHeads(message, tuple(headings)))
        self._effects += self._replication.send(now_ns, reference, digest, payload)
        if self._index == INDEX_MAX:
            self._journal, self._index = self._journal % JOURNAL_MAX + 1, 0
            self._persist_journal_id()
        return reference

    def _fitting(self, entries: list[IngestEntry]) -> int:
        """Number of these entries that fit into one message."""
        if len(entries) == 1:
            return 1
        size = heads = count = 0
        settings = self._settings
        for entry in entries:
            size += len(entry.raw)
            heads += ENTRY_OVERHEAD_BYTES + len(entry.stream)
            if count and (size > settings.batch_bytes_max or size + heads > self._pack_bytes_max):
                break
            count += 1
        return count

    def _ordered(self, event: Ordered) -> None:
        self._replication.mark_ordered(event.references)
        for reference in event.references:
            self._needed.pop(reference, None)
            for taken in self._awaiting_order.pop(reference, ()):
                self._admission.release(taken)

    def _return_packs(self) -> None:
        """The node may no longer order packs: refuse the waiting ones, so that clients write them through other
        nodes.
        """
        references = tuple(self._awaiting_order)
        taken = [one for reference in references for one in self._awaiting_order.pop(reference)]
        taken += self._verified_packs + self._dry_runs.clear()
        self._verified_packs = []
        self._replication.mark_ordered(references)  # ends the resending
        for one in taken:
            self._admission.release(one)
            self._effects.append(ToClient(one.instance, not_ingest(one.heading, 0)))

    # Messages of other ingest nodes.

    def _on_peer_message(self, now_ns: int, node: int, message: Payload | AskPayload | Ack) -> None:
        match message:
            case Payload():
                self._on_payload(now_ns, node, message.message)
            case Ack():
                self._replication.on_ack(node, message)
            case AskPayload():
                self._on_payload_request(node, message)
            case _:
                assert_never(message)

    def _on_payload(self, now_ns: int, node: int, payload: bytes) -> None:
        opened = _open(payload)
        try:
            reference = ingest.reference_of(payload) if opened is None else opened.message.reference
        except Malformed as wrong:
            self._effects.append(Report("malformed ingest message", str(node), {"reason": str(wrong)}))
            return
        digest = ingest.digest_of(payload)
        if reference.node != node and self._needed.get(reference) != digest:
            # Only the ingest node itself may send its messages, unless a proposal has fixed the digest.
            self._effects.append(Report("ingest message of another node refused", str(node)))
            return
        if self._replication.cache.get(reference, digest) is not None:
            self._effects.append(self._replication.received(now_ns, node, reference, digest, payload))
        elif digest not in self._checking_digests:
            self._checking_digests.add(digest)
            arrival = Arrival(node, reference, digest, payload, opened)
            for item, results in self._signatures.add(now_ns, arrival, [] if opened is None else self._checks(opened)):
                self._on_checked(now_ns, item, results)

    def _checks(self, opened: IngestHeads) -> list[PackCheck | None]:
        """The signature checks that are possible before the message is ordered."""
        check_of = self._execution.check_of
        pairs = zip(opened.message.entries, opened.headings, strict=True)
        return [check_of(entry.stream, entry.raw, heading) for entry, heading in pairs]

    def _request_payload(self, event: NeedPayload) -> None:
        """Request a payload from its ingest node. If its digest is known, request it also from the master, because then
        any node may supply it.
        """
        if event.digest in self._checking_digests:
            return  # it arrived with the proposal, and its signatures are being checked
        ask = AskPayload(event.reference, event.digest)
        if event.digest:
            self._needed[event.reference] = event.digest
            if len(self._needed) > WANTED_MAX:
                del self._needed[next(iter(self._needed))]
        asked = [event.reference.node]
        if event.digest:
            asked += [event.master, self._next_data_holder(event.reference)]
        for node in dict.fromkeys(asked):
            if node not in (0, self._settings.node):
                self._effects.append(ToPeer(node, ask))

    def _next_data_holder(self, reference: Reference) -> int:
        """With index-only serializers: a data holder that may have an ordered payload, each in turn; else 0. Those that
        are known to have received it come first.
        """
        config = self._execution.cluster_config
        if not self._execution.copies:
            return 0
        holders = [node for node in config.members if node != self._settings.node and config.holds_data(node)]
        holders = [node for node in holders if self._replication.view.has(node, reference)] or holders
        self._holder_turn += 1
        return holders[self._holder_turn % len(holders)] if holders else 0

    def _on_payload_request(self, node: int, ask: AskPayload) -> None:
        payload = self._replication.cache.get(ask.reference, ask.digest)
        if payload is None:
            payload = self._execution.cached_payload(ask.reference, ask.digest)
        if payload is not None:
            self._effects.append(ToPeer(node, Payload(payload)))


def forwarded_cost(heading: Heading) -> int:
    """The cost of a pack at a node that gets it from another one, in units (`costs`)."""
    statements = heading.messages if heading.message_type in EXECUTED else 0
    return size_cost(heading.size_bytes) + STATEMENT * statements


def _open(payload: bytes) -> IngestHeads | None:
    try:
        message = ingest.decode(payload)
        return IngestHeads(message, tuple([read_heading(entry.raw) for entry in message.entries]))
    except Malformed:
        return None


def _next_journal(stored: bytes | None, chance: random.Random) -> int:
    """The id after that of the last run. A disk without a stored id may have been wiped, so draw a random one."""
    if stored is None or len(stored) != 2:
        return chance.randrange(1, JOURNAL_MAX + 1)
    return int.from_bytes(stored, "big") % JOURNAL_MAX + 1
