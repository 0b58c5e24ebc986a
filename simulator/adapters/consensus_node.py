"""Adapter that runs a serializer in the simulator.

It dials every peer, begins each frame with its number, and reads its log back from what it has written.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from chaplain.core import (
    Arrived,
    Persist,
    Send,
)
from chaplain.errors import Malformed
from chaplain.journal.consensus.core import SerializerCore
from chaplain.journal.consensus.events import (
    ConsensusStarted,
    LogRead,
    NeedPayload,
    PeerDown,
    PeerUp,
    ReadLog,
    Received,
    Role,
    RoleChanged,
    SendMessage,
)
from chaplain.journal.messages import ingest
from chaplain.journal.messages.cluster import Body, ConfigEntry, Reference
from chaplain.journal.messages.config import acl_id
from chaplain.journal.messages.membership import decode_fields, decode_step, is_opening
from chaplain.journal.model.cluster_config import MemberRoles, apply_stage, initial_config, open_change
from chaplain.journal.model.log_entry import AgreedEntry, Decision
from chaplain.journal.model.reason import Reason
from chaplain.journal.model.results import DataVerdict, ExecutedIngest, PackVerdict
from chaplain.journal.model.verdict_chain import NO_VERDICT, check, put_head, verdict_hash
from chaplain.journal.storage.log import hard_state_name, records_between, sync_hint_name
from chaplain.journal.storage.record_layout import applied_batches
from chaplain.link.auth.identity import Identity
from chaplain.segment.record import Record
from chaplain.units import MILLISECOND_NS
from chaplain.wire.primitives import ByteReader
from simulator.adapters.core_adapter import CoreAdapter
from simulator.adapters.dialer import Dialer
from simulator.world.disk import apply, segments_of

if TYPE_CHECKING:
    from simulator.workloads.order import Order

_ECHOED = (2, 8)
"""Purposes of acknowledgements and votes."""


TAPE = "tape"
"""The stream to which every payload is written."""


@cache
def identity_of(node: int) -> Identity:
    """The key with which a node signs its votes: the same in every run."""
    return Identity(sha256(b"node %d" % node).digest())


class CountingExecution:
    """A minimal execution: it counts payloads, and changes the serializers on request."""

    def __init__(self, nodes: Sequence[int], serializers: Sequence[int] = ()) -> None:
        config = initial_config(MemberRoles(node, identity_of(node).key, f"node-{node}", b"") for node in nodes)
        self.cluster_config = replace(config, serializers=tuple(serializers) or config.serializers)
        self.applied_index = 0
        self.count = 0
        self.copies = 0
        self.verdict_hash = NO_VERDICT

    def cached_payload(self, reference: Reference, digest: bytes, /) -> bytes | None:
        """Not needed here: serializers hold all payloads."""
        return None

    def cache_stored(self, body: Body, payloads: Sequence[bytes], verdict: bytes = b"", /) -> None:
        """Not needed here: there are no signatures."""

    def prepare(self, message: AgreedEntry, /) -> None:
        assert message.body.index == self.applied_index + 1, "prepared out of order"

    def _decide(self, verdict: bytes, count: int, body: Body, payloads: Sequence[bytes]) -> Decision:
        """Every payload is applied as one message of one stream. `count` payloads were applied before."""
        executed: list[ExecutedIngest] = []
        for place, (entry, payload) in enumerate(zip(body.data_entries, payloads, strict=True)):
            pack = PackVerdict(0, 0, 1, 1, TAPE, Reason.APPLIED, count + place)
            try:
                message = ingest.decode(payload)
            except Malformed:  # payloads may be any octets
                executed.append(ExecutedIngest(entry.reference, payload, None, DataVerdict((), malformed=True)))
            else:
                executed.append(ExecutedIngest(entry.reference, payload, message, DataVerdict((pack,))))
        return Decision(verdict, applied_batches(executed).batches)

    def observe_stored(self, records: Sequence[Record], /) -> None:
        """Not needed here: there are no checkpoints."""

    def apply(self, message: AgreedEntry, /) -> Decision:
        assert message.body.index == self.applied_index + 1, "settled out of order"
        self.applied_index += 1
        verdict = put_head(self.verdict_hash) + b"%d" % self.count
        decision = self._decide(verdict, self.count, message.body, message.payloads)
        self.verdict_hash = verdict_hash(verdict)
        self.count += len(message.payloads)
        for number, entry in enumerate(message.body.entries):
            if isinstance(entry, ConfigEntry):
                self._configure(acl_id(message.body.regime, self.applied_index, number), entry)
        return decision

    def _configure(self, change: bytes, entry: ConfigEntry) -> None:
        """Requests are not signed here: a request is its fields."""
        try:
            if is_opening(entry.entry_type, entry.stage):
                wanted = decode_fields(ByteReader(entry.data), entry.entry_type)
                self.cluster_config, _ = open_change(self.cluster_config, wanted, change, change, self.applied_index)
            else:
                step = decode_step(entry.entry_type, entry.stage, entry.data)
                self.cluster_config, _ = apply_stage(self.cluster_config, step, self.applied_index)
        except Malformed:
            pass

    def decision_of(self, body: Body, payloads: Sequence[bytes], verdict: bytes, expected: bytes, /) -> Decision:
        check(verdict, expected)
        return self._decide(verdict, int(verdict[len(put_head(expected)) :]), body, payloads)


class OrderNode(CoreAdapter):
    """A serializer that a host can run."""

    def __init__(self, workload: Order, name: str, rng: Random, disk: Mapping[str, bytes], now_ns: int) -> None:
        self._workload = workload
        self._rng = rng
        self.routing_id = b"\x01" + rng.randbytes(16)
        self.number = workload.number(name)
        self.settings = workload.settings(name)
        self.execution = CountingExecution(workload.members_at_first, workload.founders)
        self._files = {file: bytearray(data) for file, data in disk.items()}
        self.serializer = SerializerCore(
            self.settings,
            identity_of(self.number),
            rng,
            self.execution,
            segments=segments_of(disk),
            sync_hint=disk.get(sync_hint_name(self.settings)),
            hard_state=disk.get(hard_state_name(self.settings)),
        )
        self._started = False
        peers = (peer for peer in workload.numbers if peer != self.number)
        super().__init__(self.serializer, Dialer(peers, workload.endpoint_of, rng, now_ns))
        self._echoes: deque[bytes] = deque(maxlen=64)
        """Acknowledgements and votes received before: the network may deliver them again at the worst moment."""
        self._echo_due = False
        self._parcels: list[tuple[int, Reference]] = []
        """Requested payloads, and when they arrive."""

    def step(self, now_ns: int, event: Any, /) -> list[Any]:
        effects: list[Any] = []
        if not self._started:
            self._started = True
            self._feed(now_ns, ConsensusStarted(), effects)
        if self._echo_due:
            self._echo_due = False
            for frame in list(self._echoes):
                self._feed(now_ns, Received(frame[0], frame[1:]), effects)
        return effects + super().step(now_ns, event)

    def _due(self) -> Iterable[int]:
        return [when for when, _ in self._parcels[:1]]

    def _arrived(self, now_ns: int, event: Arrived, effects: list[Any]) -> None:
        number = self._dialer.arrived(event)
        if event.frame[2] in _ECHOED:
            self._echoes.append(event.frame)
        self._feed(now_ns, Received(number, event.frame[1:]), effects)

    def _up(self, now_ns: int, peer: int, effects: list[Any]) -> None:
        self._feed(now_ns, PeerUp(peer), effects)

    def _down(self, now_ns: int, peer: int, reason: str, effects: list[Any]) -> None:
        self._feed(now_ns, PeerDown(peer), effects)

    def _late(self, now_ns: int) -> Iterator[Any]:
        while self._parcels and self._parcels[0][0] <= now_ns:
            yield self._workload.arrival(self._parcels.pop(0)[1])

    def _feed(self, now_ns: int, event: Any, effects: list[Any]) -> None:
        """Step the serializer, and carry out the effects that a host does not know."""
        for effect in self.serializer.step(now_ns, event):
            match effect:
                case SendMessage():
                    if effect.node in self._dialer.to:
                        effects.append(Send(self._dialer.to[effect.node], bytes((self.number,)) + effect.message))
                    elif self._workload.liar is not None and effect.node == self._workload.liar.number:
                        self._workload.liar.told(self.number, effect.message)
                case ReadLog():
                    files = [data for _, data in segments_of(self._files)]
                    read = LogRead(effect.token, records_between(files, effect.start, effect.end))
                    self._feed(now_ns, read, effects)
                case NeedPayload():
                    effects.append(effect)
                    if effect.reference.index <= self._workload.sent and len(self._parcels) < 1024:
                        parcel = (now_ns + self._rng.randrange(50 * MILLISECOND_NS), effect.reference)
                        insort(self._parcels, parcel, key=lambda parcel: parcel[0])
                case RoleChanged():
                    self._echo_due = self._workload.echoes and effect.role is not Role.FOLLOWER
                    effects.append(effect)
                case Persist():
                    for operation in effect.operations:
                        apply(self._files, operation)
                    effects.append(effect)
                case _:
                    effects.append(effect)
