"""Checks a journal's requests from outside: what was agreed, what was decided about it, and what clients were told.

An `Oracle` judges every agreed message again; every node must have decided the same. Receipts must stay true for ever.
A reference never stands for two messages. At the end the files of every node are read as a reader of files reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chaplain.core import Frozen, Send
from chaplain.errors import Malformed
from chaplain.journal.consensus.hard_state import VotingState
from chaplain.journal.execution.two_phase import TRANSACTIONS
from chaplain.journal.ingest.admission import BUSY
from chaplain.journal.messages import client as client_messages
from chaplain.journal.messages import ingest, peer
from chaplain.journal.messages.client import Listed, NotWritten, Receipts, Run
from chaplain.journal.messages.cluster import Reference
from chaplain.journal.model.consumers import ConsumersRecord
from chaplain.journal.model.log_entry import AgreedEntry
from chaplain.journal.model.results import AppliedMessage, DataVerdict
from chaplain.journal.snapshots.checkpoint import checkpoint_name, first_of
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.pack import decode_pack, heads_of
from chaplain.segment.read import agreed
from chaplain.segment.record import Kind, Record
from chaplain.segment.scan import Found
from chaplain.segment.survey import Surveyor
from chaplain.units import SECOND_NS
from chaplain.wire import parcel
from simulator.actors.journal_clients import SimClient
from simulator.actors.two_phase_client import SimSink
from simulator.checkers.base import Watcher
from simulator.checkers.execution_oracle import Oracle
from simulator.world.disk import segments_of
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.requests import Requests
    from simulator.world.world import World

_REFUSED = "refused"
_PROGRESS_NS = 15 * SECOND_NS
_LATELY_NS = 4 * SECOND_NS
_BROKEN = ("malformed", "signature")
_PAYLOAD_BODY, _ = peer.encode(peer.Payload(b""))
"""The body of a parcel with an ingest message; this checker ignores all other parcels."""


class Settling(Frozen, frozen=True):
    """An effect for this checker alone: a node settled an agreed message, with this result."""

    message: AgreedEntry
    executed: AppliedMessage
    fingerprint: bytes
    tree_size: int
    tree_root: bytes
    consumers: ConsumersRecord
    """All named consumers after the message."""


class MessageSent(Frozen, frozen=True):
    """An effect for this checker alone: a node sent a message to a client or to the rogue."""

    instance: bytes
    content: bytes


class RequestChecker(Watcher):
    name = "requests"

    def __init__(self, workload: Requests) -> None:
        self._workload = workload
        self.world: World | None = None
        self._oracle = Oracle(workload.founding)
        self._decided: dict[int, list[Any]] = {}
        self._fingerprints: dict[int, bytes] = {}
        self._hashes: dict[int, bytes] = {}
        self._references: dict[Reference, bytes] = {}
        self._receipts: dict[tuple[int, int], Run] = {}
        self._power_cuts = 0
        self._decided_ns = 0
        """When something was last decided."""

    def process_ended(self, time_ns: int, host: Host, reason: str, /) -> None:
        assert self.world is not None
        if self.world.counts["power cut"] > self._power_cuts:
            self._power_cuts = self.world.counts["power cut"]
            self._workload.power_lost(host.name)

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        for effect in effects:
            match effect:
                case Settling():
                    self._settled(time_ns, host, effect)
                case MessageSent():
                    self._spoke(host, effect)
                case Send():
                    self._sent(host, effect.frame)
                case _:
                    pass

    # Decisions.

    def _settled(self, time_ns: int, host: Host, effect: Settling) -> None:
        body = effect.message.body
        if body.index not in self._decided:
            if body.index != len(self._decided) + 1:
                self.complain(f"{host.name} settled {body.index} before anybody settled its predecessor")
            self._decided[body.index] = self._oracle.judge(body, effect.message.payloads)
            self._hashes[body.index] = effect.message.hash
            self._decided_ns = time_ns
            for written in effect.executed.verdict.streams:
                if self._oracle.chains.get(written.stream) != written.chain:
                    self.complain(f"{host.name} has another chain of {written.stream} after message {body.index}")
        for number, entry in enumerate(effect.executed.verdict.entries):
            self._compare(host, body.index, entry, self._decided[body.index][number])
        if self._fingerprints.setdefault(body.index, effect.fingerprint) != effect.fingerprint:
            self.complain(f"{host.name} has another state than others after message {body.index}")

    def _compare(self, host: Host, index: int, entry: Any, expected: Any) -> None:
        if not isinstance(entry, DataVerdict):
            kind, client_id = expected
            same = entry.reason.name.lower() == kind or (kind == _REFUSED and entry.reason is not Reason.APPLIED)
            if not same or (client_id and entry.client_id != client_id):
                self.complain(f"{host.name} decided {entry} in message {index}, and ought to have decided {expected}")
            return
        if len(entry.packs) != len(expected):
            self.complain(f"{host.name} decided about {len(entry.packs)} packs in message {index} of {len(expected)}")
        for pack, (kind, base) in zip(entry.packs, expected, strict=True):
            found = pack.reason.name.lower()
            same = found == kind or (kind == "broken" and found in (*_BROKEN, "unknown_lane", "compromised"))
            if not same or (base >= 0 and pack.base_offset != base):
                self.complain(f"{host.name} decided {pack} in message {index}, and ought to have: {kind} at {base}")

    # Answers to clients.

    def _spoke(self, host: Host, effect: MessageSent) -> None:
        assert self.world is not None
        said = parcel.decode(effect.content)
        if effect.instance == self._workload.rogue.peer.instance:
            self.world.after(0, self._workload.rogue.hear, self.world, host.name, peer.decode(said.body, said.payload))
            return
        message = client_messages.decode_node(said.body)
        if isinstance(message, Receipts):
            for run in message.runs:
                self._receipt(host, run)
        elif isinstance(message, NotWritten) and message.kind == BUSY:
            self._kept_waiting(host, effect.instance)
        for client in self._workload.clients:
            if client.instance == effect.instance:
                self.world.after(client.rng.randrange(10**7), client.hear, self.world, message)
                if isinstance(message, Listed):
                    self.world.after(client.rng.randrange(10**7), client.listed, self.world, said.payload)

    def _kept_waiting(self, host: Host, instance: bytes) -> None:
        """Used credit is returned: once a healed node has caught up, its clients have enough credit.

        The window bounds the unanswered bytes of a session, so a node rightly refuses a client that writes more than
        that. The workloads with large packs have such clients, which ignore their credit. A pack that arrives twice
        counts twice until the end of the round.
        """
        assert self.world is not None
        plan = self._workload.plan
        if host.name not in plan.healed or self.world.now_ns <= plan.heal_ns + _PROGRESS_NS:
            return
        window_bytes = self._workload.settings(host.name).window_bytes
        for client in self._workload.clients:
            unanswered = sum(len(entry.raw) for _, entry, _ in client.outbox.values())
            if client.instance == instance and 2 * unanswered <= window_bytes:
                self.complain(f"{host.name} has no credit left for a client long after the heal")

    def _receipt(self, host: Host, run: Run) -> None:
        if self._hashes.get(run.index) != run.hash:
            self.complain(f"{host.name} gives a receipt of message {run.index}, which was not agreed so: {run}")
        if run.stream == TRANSACTIONS or (run.client_id, run.first_id) in self._oracle.commands:
            return  # a ticket or a number of refused commands, not a log position
        refused = self._oracle.refused.get((run.client_id, run.first_id))
        if refused or run.refusal:
            found = (Reason(run.refusal).name.lower(), run.base_offset)
            if found != refused or run.messages or run.requests != 1:
                self.complain(f"{host.name} says {run}, and the conditions were decided so: {refused}")
            return
        rows = self._oracle.rows.get(run.stream, [])
        written = rows[run.base_offset : run.base_offset + run.messages]
        ids = sorted({row[1] for row in written})
        if {row[0] for row in written} != {run.client_id} or ids != list(
            range(run.first_id, run.first_id + run.requests)
        ):
            self.complain(f"{host.name} gives a receipt for what is not there: {run}")

    def _sent(self, host: Host, frame: bytes) -> None:
        said = parcel.decode(frame[1:])
        if said.body != _PAYLOAD_BODY:
            return
        reference = ingest.reference_of(said.payload)
        if reference.node != self._workload.number(host.name):
            return
        digest = ingest.digest_of(said.payload)
        if self._references.setdefault(reference, digest) != digest:
            self.complain(f"{host.name} uses the reference {reference} for two messages")

    def rows_of(self, stream: str) -> list[tuple[int, int, bytes]]:
        """Lane, request id and value of every message that was written to the stream."""
        return self._oracle.rows.get(stream, [])

    def keys_of(self, stream: str) -> list[bytes | None]:
        """The key of every message that was written to the stream."""
        return self._oracle.keys.get(stream, [])

    def tagged_of(self, stream: str) -> list[tuple[int, str]]:
        """The last offset and the tag of every tagged request that was written to the stream."""
        return self._oracle.tagged.get(stream, [])

    # The end of the run.

    def finish(self, healed: Sequence[Host], /) -> None:
        assert self.world is not None
        counts = self.world.counts
        counts["agreed"] += len(self._decided)
        counts["rows"] += sum(map(len, self._oracle.rows.values()))
        for decided in self._decided.values():
            for entry in decided:
                for kind, _ in entry if isinstance(entry, list) else [entry]:
                    counts[f"decided {kind}"] += 1
        for host in self.world.hosts.values():
            self._read_files(host)
        for sink in self._sinks():
            counts["batches committed"] += len(sink.committed)
            missing = self._once(sink, self.world.now_ns - _PROGRESS_NS)
            if healed and missing and is_due(self._workload, healed):
                self.complain(missing)
        if healed:
            self._demand_progress(healed)

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        """True if something was decided since the heal, and every write except the latest was answered."""
        assert self.world is not None
        lately_ns = self.world.now_ns - _LATELY_NS
        if self._decided_ns <= max(lately_ns, self._workload.plan.heal_ns):
            return False
        stuck = any(self._stuck(client, lately_ns) for client in self._workload.clients)
        return not stuck and not any(self._once(sink, lately_ns) for sink in self._sinks())

    def _sinks(self) -> list[SimSink]:
        return [client for client in self._workload.clients if isinstance(client, SimSink)]

    def _once(self, sink: SimSink, late_ns: int) -> str:
        """The rows of a batch are written once, whatever happened to its attempts.

        Return True if rows are missing of a batch whose commit was sent before then, and answered.
        """
        written = Counter(row[2] for rows in self._oracle.rows.values() for row in rows)
        for version in range(sink.version + 1):
            found = [written[row] for row in sink.rows_of(version)]
            if max(found) > 1:
                self.complain(f"rows of batch {version} of {sink.name} were written {max(found)} times")
            if min(found) < 1 and version in sink.committed and sink.committed[version] <= late_ns:
                return f"batch {version} of {sink.name} was committed, and rows of it are missing"
        return ""

    def _read_files(self, host: Host) -> None:
        """A reader of files sees a prefix of what is written, complete from the first offset on.

        Records from before a checkpoint that was taken from others are no longer part of the log.
        """
        seen: dict[str, int] = {}
        made = host.disk.contents().get(checkpoint_name(self._workload.settings(host.name).order))
        first = 1 if made is None else first_of(made)
        for record in agreed(_records(host)):
            if record.kind != Kind.BATCH or record.index < first:
                continue
            body = bytes(record.body)
            rows = self._oracle.rows.get(record.stream, [])
            offset = record.first_offset
            hidden = self._workload.drops or host.name in self._workload.damaged
            if offset != seen.get(record.stream, offset if hidden else 0) and host.name not in self._workload.damaged:
                self.complain(f"the files of {host.name} jump to offset {offset} of {record.stream}")
            for head in heads_of(body):
                pack = decode_pack(body[head.start : head.end])
                for value in pack.values:
                    if offset >= len(rows) or rows[offset][0::2] != (pack.client_id, value):
                        self.complain(f"the files of {host.name} hold something else at {record.stream}/{offset}")
                    offset += 1
            seen[record.stream] = offset

    def _demand_progress(self, healed: Sequence[Host]) -> None:
        assert self.world is not None
        if not is_due(self._workload, healed):
            self.world.counts["liveness not demanded"] += 1
            return
        self.world.counts["liveness demanded"] += 1
        for client in self._workload.clients:
            stuck = self._stuck(client, self.world.now_ns - _PROGRESS_NS)
            if stuck:
                self.complain(f"{client.name} waits for an answer since before the heal: {stuck} packs")

    def _stuck(self, client: SimClient, late_ns: int) -> int:
        """The number of packs that it made before then and that are still unanswered."""
        return sum(made_ns < late_ns for _, _, made_ns in client.outbox.values()) if client.lane else 0


def is_due(workload: Requests, healed: Sequence[Host]) -> bool:
    """True if the healed nodes must have made progress by now."""
    voting = [host.name for host in healed if has_a_vote(host)]
    forgetful = [host.name for host in healed if _has_lost(host)]
    return workload.demands([host.name for host in healed], voting, forgetful)


def has_a_vote(host: Host) -> bool:
    return host.core is not None and host.core.journal.serializer.last_index is not None  # type: ignore[attr-defined]


def _has_lost(host: Host) -> bool:
    """True if the node knows that it lost something, and so needs a quorum of others."""
    hard_state = host.core.journal.serializer.context.hard_state if host.core is not None else None  # type: ignore[attr-defined]
    return hard_state is not None and hard_state.now.state in (VotingState.LOST, VotingState.WIPED)


def _records(host: Host) -> list[Record]:
    """The records up to where a writer would cut: records behind a bad end are not part of the log."""
    surveyor = Surveyor("journal")
    found: list[Found] = []
    for sequence, data in segments_of(host.disk.contents()):
        try:
            scan = surveyor.add(sequence, data)
        except Malformed:
            continue
        found += scan.records if scan is not None else ()
    cut = surveyor.finish().cut
    return [record for head, record in found if cut is None or head.position < cut.position]
