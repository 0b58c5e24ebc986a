"""A client of a simulated journal that writes batches in two phases, and is killed between any two steps.

A batch has a version and rows. An attempt stages the rows, in its own order, and commits what it staged. It may be
abandoned at any time, and the next attempt knows only the version. Some attempts discard what they staged before they
end, and a later commit may name that. In every case the rows of a batch must be written
exactly once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chaplain.journal.execution.two_phase import COMMIT, DISCARD, STAGED, TRANSACTIONS, Commit, RequestRange, encode
from chaplain.journal.messages.client import NodeMessage, NotWritten, Receipts, Run
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import SLOT_BYTES, SignatureType, sign_pack
from chaplain.segment.pack import Pack, encode_pack
from simulator.actors.journal_clients import SimClient

if TYPE_CHECKING:
    from simulator.world.world import World

_APP = "job"
_ROWS = 5


class SimSink(SimClient):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.version = 0
        self.committed: dict[int, int] = {}
        """Versions whose commit was answered, and when the commit was sent."""
        self._todo: list[bytes] = []
        self._spans: list[RequestRange] = []
        self._discarded: list[RequestRange] = []
        self._commit_ns = 0
        """When the commit of this attempt was sent; 0 before."""
        self._commit_id = 0
        self._begin()

    def rows_of(self, version: int) -> list[bytes]:
        return [b"%s %d row %d" % (self.name.encode(), version, number) for number in range(_ROWS)]

    def _begin(self) -> None:
        self._todo = self.rows_of(self.version)
        self.rng.shuffle(self._todo)
        self._spans = []
        self._commit_ns = self._commit_id = 0

    def _write(self, world: World) -> None:
        if self._commit_ns and not self.outbox:
            self.committed[self.version] = self._commit_ns
            self.version += 1
            self._begin()
        elif self.rng.random() < 0.1:
            if self._spans and not self._commit_ns and self._next_id % 2:  # aborted; otherwise killed: the packs stay
                value = encode(Commit("", 0, tuple(self._spans)))
                self.send(world, self._pack(TRANSACTIONS, (value,), DISCARD))
                self._discarded = self._spans
            self._begin()
        elif self._todo:
            self._stage(world)
        elif not self._commit_ns and (not self.outbox or self.rng.random() < 0.3):
            self._commit_ns, self._commit_id = world.now_ns, self._next_id
            if self.rng.random() < 0.1:
                nothing = RequestRange(self.lane, self._next_id + 9, self._next_id + 9)
                self._spans += self._discarded or [nothing]
            value = encode(Commit(_APP, self.version, tuple(self._spans)))
            self.send(world, self._pack(TRANSACTIONS, (value,), COMMIT))

    def _stage(self, world: World) -> None:
        count = self.rng.randrange(1, 4)
        values, self._todo = tuple(self._todo[:count]), self._todo[count:]
        self._spans.append(RequestRange(self.lane, self._next_id, self._next_id + len(values) - 1))
        self.send(world, self._pack(self.rng.choice(self._streams), values, STAGED))

    def _pack(self, stream: str, values: tuple[bytes, ...], message_type: int) -> IngestEntry:
        slot = bytes(SLOT_BYTES[SignatureType.ED25519])
        head = (self.lane, self._next_id, values, None, None, None, message_type)
        raw = encode_pack(Pack(*head, SignatureType.ED25519, slot))
        entry = IngestEntry(stream, sign_pack(raw, self._workload.founding.cluster, stream, self.identity))
        self._workload.made.append(entry)
        return entry

    def hear(self, world: World, message: NodeMessage) -> None:
        super().hear(world, message)
        if isinstance(message, Receipts) and any(map(self._is_stolen, message.runs)):
            self._begin()

    def _is_stolen(self, run: Run) -> bool:
        """True if a thief of this client's key wrote to another stream under the id of the commit: the batch is not
        committed.
        """
        ids = range(run.first_id, run.first_id + run.requests)
        return run.client_id == self.lane and self._commit_id in ids and run.stream != TRANSACTIONS

    def _lane_over(self, message: NotWritten) -> None:
        """Abandon what was staged under the old lane; the version will show whether the commit was accepted."""
        if message.client_id == self.lane:
            self._begin()
        super()._lane_over(message)
