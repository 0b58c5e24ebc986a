"""Ingest: takes clients' packs, checks them, and puts them into messages of its own journal, verbatim.

    PackWritten → taken (`intake`) → Drained: Verify → Verified → Drained: an ingest message → sent, and to be ordered
                                               for some: Rehearse → Rehearsed → likewise, or refused
    PayloadCame →                    Drained: Verify → Verified → to be ordered

Decides what goes into ingest messages and under which reference. Refuses to know what packs hold, who is master, and
whether anything is agreed. Signatures are checked by an effect with an answer.

Every run of a node, and every 2³² messages, has a journal id that is on disk before it is used, so that a reference is
never used twice.

Invariants: nothing is offered under a journal id that is not on disk; indexes of a journal have no gaps; a pack that
was taken stays on its way until its verdict is known or it failed its check.
"""

from __future__ import annotations

import random
from typing import TypeAlias, assert_never

from chaplain.core import Drained, Persist, Persisted, Replace, Report, Stopping, Woken
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ConsensusStarted, NeedPayload, PeerDown, PeerUp, SpaceTold
from chaplain.journal.events import (
    AckCame,
    IngestDropped,
    IngestEffect,
    IngestInput,
    Ordered,
    PacksPromoted,
    PackWritten,
    PayloadCame,
    PayloadWanted,
    Rehearsed,
    SessionClosed,
    SessionOpened,
    ToClient,
    ToPeer,
    Verified,
)
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.ingest.admission import Admission, invalid, not_ingest, refuse
from chaplain.journal.ingest.dry_runs import DryRunQueue
from chaplain.journal.ingest.replication import PayloadReplication
from chaplain.journal.ingest.signature_queue import SignatureQueue
from chaplain.journal.messages import ingest
from chaplain.journal.messages.client import Credit, GoBack
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.messages.ingest import AcceptedPack, Arrival, IngestEntry, IngestHeads
from chaplain.journal.messages.peer import AskPayload, Payload
from chaplain.journal.messages.signing import PackCheck
from chaplain.journal.messages.write_request import Heading, read_heading
from chaplain.journal.settings import JournalSettings
from chaplain.journal.storage.verdict import Reason

JOURNAL_MAX = 0xFFFF
INDEX_MAX = 0xFFFFFFFF
ENTRY_OVERHEAD_BYTES = 8
"""What a pack takes in an ingest message beside itself and its stream's name."""
WANTED_MAX = 4096
"""Ingest messages that somebody else than their ingest node may give us; the oldest wish is forgotten first."""


_Unchecked: TypeAlias = AcceptedPack | Arrival


class IngestCore:
    def __init__(
        self, settings: JournalSettings, chance: random.Random, execution: JournalExecution, stored: bytes | None
    ) -> None:
        """`stored` is the content of the ingest file; None on a new disk."""
        self._settings = settings
        self._execution = execution
        self._journal = _next_journal(stored, chance)
        self._index = 0
        self._ready = False
        """The journal's id is on disk."""
        self._ticket = 0
        self._intake = Admission(settings, execution)
        self._distribution = PayloadReplication(settings)
        self._checking: SignatureQueue[_Unchecked] = SignatureQueue()
        self._rehearsing = DryRunQueue()
        self._checked: list[AcceptedPack] = []
        """Packs for the next ingest message."""
        self._promoted: list[IngestEntry] = []
        """Committed packs for the next ingest message."""
        self._shipped: dict[Reference, list[AcceptedPack]] = {}
        self._arriving: set[bytes] = set()
        """Digests of messages of others that are being checked."""
        self._needed: dict[Reference, bytes] = {}
        """Digests of messages that a proposal waits for."""
        self._turn = 0
        self._effects: list[IngestEffect] = self._distribution.effects

    @property
    def journal(self) -> int:
        return self._journal

    @property
    def idle(self) -> bool:
        """Nothing that was taken here waits."""
        return self._intake.idle

    @property
    def restless(self) -> bool:
        """Whether the end of a round means anything to us."""
        return bool(
            self._checking.new
            or self._checked
            or self._promoted
            or self._intake.credit.owes
            or self._distribution.owes_ack
        )

    @property
    def waiting_bytes(self) -> int:
        return self._intake.credit.waiting_bytes

    def credit_of(self, instance: bytes) -> int:
        """How many octets a client may have written in all."""
        return self._intake.credit.open(instance)

    def deadline(self) -> int | None:
        return self._distribution.due_ns

    def step(self, now_ns: int, event: IngestInput) -> list[IngestEffect]:
        match event:
            case PackWritten():
                self._written(event)
            case PacksPromoted():
                self._promoted += event.entries
            case Drained():
                self._drained(now_ns)
            case Verified():
                self._verified(event)
            case Rehearsed():
                self._rehearsed(event)
            case PayloadCame():
                self._came(event)
            case Ordered():
                self._ordered(event)
            case IngestDropped():
                self._dismiss()
            case AckCame():
                self._distribution.acknowledged(event)
            case PayloadWanted():
                self._wanted(event)
            case NeedPayload():
                self._need(event)
            case Woken():
                self._distribution.woken(now_ns)
            case SessionOpened():
                credit = self._intake.credit.open(event.instance)
                self._effects.append(ToClient(event.instance, Credit(credit)))
            case SessionClosed():
                self._intake.credit.close(event.instance)
            case PeerUp():
                self._distribution.up(event.node)
            case PeerDown():
                self._distribution.down(event.node)
            case Persisted():
                self._ready = self._ready or event.ticket == self._ticket
            case ConsensusStarted():
                self._keep_journal()
            case SpaceTold():
                self._intake.full = event.free_bytes < self._settings.order.room_bytes_min
            case Stopping():
                self._intake.stopping = True
            case _:
                assert_never(event)
        effects = list(self._effects)
        self._effects.clear()
        return effects

    # Journal ids.

    def _keep_journal(self) -> None:
        """Write down the id we use, so that no later run uses it; nothing is offered before that is on disk."""
        self._ready = False
        self._distribution.begin(self._journal)
        self._ticket += 1
        data = self._journal.to_bytes(2, "big")
        self._effects.append(Persist(self._ticket, (Replace(self._settings.ingest_file, data),)))

    # Packs of clients.

    def _written(self, event: PackWritten) -> None:
        outcome = self._intake.offer(event)
        if isinstance(outcome, AcceptedPack):
            check = self._execution.check_of(event.stream, event.raw, outcome.heading)
            self._checking.add(outcome, (check,))
        elif outcome is not None:
            self._effects.append(ToClient(event.instance, outcome))

    def _verified(self, event: Verified) -> None:
        for thing, results in self._checking.answered(event):
            if isinstance(thing, Arrival):
                self._arriving.discard(thing.digest)
                self._execution.cache_checks(thing.digest, results, thing.opened)
                self._distribution.received(thing.node, thing.reference, thing.digest, thing.payload)
            elif results[0]:
                self._admit(thing)
            else:
                self._intake.finish(thing)
                lane = self._execution.state.lanes.get(thing.heading.client_id)
                answer = refuse(thing.heading, Reason.SIGNATURE, lane)
                self._effects.append(ToClient(thing.instance, answer))

    def _admit(self, taken: AcceptedPack) -> None:
        """Its signature holds."""
        if self._rehearsing.hold(taken):
            return
        if taken.check:
            self._effects.append(self._rehearsing.begin(taken))
        else:
            self._checked.append(taken)

    def _rehearsed(self, event: Rehearsed) -> None:
        group = self._rehearsing.end(event.ticket)
        if not event.kind:
            self._checked += group
            return
        for one in group:
            self._intake.finish(one)
            first = one is group[0]
            answer = invalid(one, event) if first else GoBack(one.heading.client_id, group[0].heading.first_id)
            self._effects.append(ToClient(one.instance, answer))

    def _drained(self, now_ns: int) -> None:
        if self._checking.new:
            self._effects.append(self._checking.ask())
        if self._checked and not self._intake.seat.may_propose:
            self._dismiss()
        while self._ready and self._checked:
            self._ship(now_ns)
        while self._ready and self._promoted:
            self._ship_promoted(now_ns)
        self._distribution.drained(now_ns)
        credit = self._intake.credit
        if credit.owes:
            self._effects += [ToClient(instance, Credit(total)) for instance, total in credit.news()]

    def _ship(self, now_ns: int) -> None:
        """Put what was checked into a message of our journal."""
        count = self._fitting([taken.entry for taken in self._checked])
        taken, self._checked = self._checked[:count], self._checked[count:]
        reference = self._send(now_ns, [one.entry for one in taken], [one.heading for one in taken])
        self._shipped[reference] = taken

    def _ship_promoted(self, now_ns: int) -> None:
        """The same for packs that were committed: nobody waits for them here."""
        count = self._fitting(self._promoted)
        entries, self._promoted = self._promoted[:count], self._promoted[count:]
        self._send(now_ns, entries, [])

    def _send(self, now_ns: int, entries: list[IngestEntry], headings: list[Heading]) -> Reference:
        """With the headings of packs that were checked."""
        self._index += 1
        reference = Reference(self._settings.order.node, self._journal, self._index)
        payload, message = ingest.compose(reference, entries)
        digest = ingest.digest_of(payload)
        if headings:
            self._execution.cache_checks(digest, [True] * len(entries), IngestHeads(message, tuple(headings)))
        self._distribution.send(now_ns, reference, digest, payload)
        if self._index == INDEX_MAX:
            self._journal, self._index = self._journal % JOURNAL_MAX + 1, 0
            self._keep_journal()
        return reference

    def _fitting(self, entries: list[IngestEntry]) -> int:
        """How many of these go into one message."""
        if len(entries) == 1:
            return 1
        size = heads = count = 0
        settings = self._settings
        for entry in entries:
            size += len(entry.raw)
            heads += ENTRY_OVERHEAD_BYTES + len(entry.stream)
            if count and (size > settings.batch_bytes_max or size + heads > settings.pack_bytes_max):
                break
            count += 1
        return count

    def _ordered(self, event: Ordered) -> None:
        self._distribution.ordered(event.references)
        for reference in event.references:
            self._needed.pop(reference, None)
            for taken in self._shipped.pop(reference, ()):
                self._intake.finish(taken)

    def _dismiss(self) -> None:
        """Give back what waits: its writers go elsewhere with it."""
        references = tuple(self._shipped)
        taken = [one for reference in references for one in self._shipped.pop(reference)]
        taken += self._checked + self._rehearsing.clear()
        self._checked = []
        self._distribution.ordered(references)
        for one in taken:
            self._intake.finish(one)
            self._effects.append(ToClient(one.instance, not_ingest(one.heading, 0)))

    # Messages of other ingest nodes.

    def _came(self, event: PayloadCame) -> None:
        try:
            reference = ingest.reference_of(event.payload)
        except Malformed as wrong:
            self._effects.append(Report("malformed ingest message", str(event.node), {"reason": str(wrong)}))
            return
        digest = ingest.digest_of(event.payload)
        if reference.node != event.node and self._needed.get(reference) != digest:
            # Nobody speaks for another ingest node, unless the digest is what a proposal pins.
            self._effects.append(Report("ingest message of another node refused", str(event.node)))
            return
        if self._distribution.cellar.get(reference, digest) is not None:
            self._distribution.received(event.node, reference, digest, event.payload)
        elif digest not in self._arriving:
            self._arriving.add(digest)
            opened = _open(event.payload)
            arrival = Arrival(event.node, reference, digest, event.payload, opened)
            self._checking.add(arrival, [] if opened is None else self._checks(opened))

    def _checks(self, opened: IngestHeads) -> list[PackCheck | None]:
        """What can be checked of a message before it is ordered."""
        check_of = self._execution.check_of
        pairs = zip(opened.message.entries, opened.headings, strict=True)
        return [check_of(entry.stream, entry.raw, heading) for entry, heading in pairs]

    def _need(self, event: NeedPayload) -> None:
        """Ask the ingest node, and the master if it is another: what is pinned by a digest may come from anybody."""
        if event.digest in self._arriving:
            return  # it came in the same frame as the proposal, and is being checked
        ask = AskPayload(event.reference, event.digest)
        if event.digest:
            self._needed[event.reference] = event.digest
            if len(self._needed) > WANTED_MAX:
                del self._needed[next(iter(self._needed))]
        asked = [event.reference.node, *([event.master, self._keeper()] if event.digest else [])]
        for node in dict.fromkeys(asked):
            if node not in (0, self._settings.node):
                self._effects.append(ToPeer(node, ask))

    def _keeper(self) -> int:
        """Where serializers are index-only: somebody else who may have what was ordered, each in turn."""
        assembly = self._execution.cluster_config
        if not self._execution.copies:
            return 0
        keepers = [node for node in assembly.members if node != self._settings.node and assembly.holds_data(node)]
        self._turn += 1
        return keepers[self._turn % len(keepers)] if keepers else 0

    def _wanted(self, event: PayloadWanted) -> None:
        payload = self._distribution.cellar.get(event.reference, event.digest)
        if payload is None:
            payload = self._execution.cached_payload(event.reference, event.digest)
        if payload is not None:
            self._effects.append(ToPeer(event.node, Payload(payload)))


def _open(payload: bytes) -> IngestHeads | None:
    try:
        message = ingest.decode(payload)
        return IngestHeads(message, tuple([read_heading(entry.raw) for entry in message.entries]))
    except Malformed:
        return None


def _next_journal(stored: bytes | None, chance: random.Random) -> int:
    """The id after the one that the last run used. A disk that remembers none may have been wiped: draw one."""
    if stored is None or len(stored) != 2:
        return chance.randrange(1, JOURNAL_MAX + 1)
    return int.from_bytes(stored, "big") % JOURNAL_MAX + 1
