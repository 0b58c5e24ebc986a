"""A stage for the executor's core: a journal in which everything is on disk, and databases that answer when told to."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from chaplain.core import Drained, Requested
from chaplain.executor import messages
from chaplain.executor.core import ExecutorCore
from chaplain.executor.events import (
    Applied,
    Apply,
    BackRead,
    DatabaseOpened,
    MessageApplied,
    OpenDatabase,
    ReadBack,
)
from chaplain.executor.statement import SQL_TYPE
from chaplain.gossip.events import GossipParcel
from chaplain.journal.messages.cluster import Body, chain_hash, encode_body
from chaplain.journal.messages.config import NO_ACL
from chaplain.journal.model.cluster_config import MemberRoles, initial_config
from chaplain.journal.model.records import ClientIdentity, LogPosition
from chaplain.journal.model.results import AppliedMessage, ConfigVerdict, ExecutionVerdict
from chaplain.journal.snapshots.checkpoint import CheckpointBase
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Whisper
from chaplain.segment.pack import Pack, encode_pack
from chaplain.segment.record import Kind, Record
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel
from tests.unit.executor.sqlite_stage import statement

ACL = b"A" * 15
ALICE = ClientIdentity(ACL, "alice", b"k" * 32, 1, b"", ("*",), ("main", "other"), False, b"")


def peer(node: int) -> Peer:
    return Peer(bytes([node]) * 16, node, bytes([node]) * 32, f"tcp://127.0.0.1:{node}")


class Journal:
    """What the executor sees of a journal: everything is on disk, at positions that are ten times the index."""

    def __init__(self, nodes: int) -> None:
        self.cluster_config = initial_config(
            MemberRoles(node, bytes([node]) * 32, "", b"") for node in range(1, nodes + 1)
        )
        self.clients: Mapping[bytes, ClientIdentity] = {ACL: ALICE}
        self.lanes: Mapping[int, object] = {}
        self.reach: int | None = 0
        self.on_disk = 1 << 60
        self.first = 1
        self.offset = 0
        self.keep_through = 0
        self.held = 0
        """What `held_bytes` answers."""
        self.base = CheckpointBase(LogPosition(0, 0, 0, b""), {}, {})

    def fingerprints(self) -> Mapping[int, bytes]:
        return {1: b"one"}

    def held_bytes(self, now_ns: int, index: int, /) -> int:
        return self.held

    def first_offset(self, stream: str, /) -> int:
        return self.offset

    def locate(self, index: int, bytes_max: int, /) -> tuple[int, int] | None:
        return (10 * index, 10 * index + 9) if index <= self.on_disk else None


class Stage:
    def __init__(self, nodes: int = 1, *, attach: bool = True, core: ExecutorCore | None = None) -> None:
        self.core = ExecutorCore(1, 1) if core is None else core
        self.journal = Journal(nodes)
        self.now_ns = 0
        self.index = 0
        self.records: dict[int, tuple[Record, ...]] = {}
        self.attached = False
        if attach:
            self.attach()

    def attach(self) -> None:
        self.attached = True
        self.core.attach(self.journal)

    def step(self, event: object) -> list[object]:
        return [*self.core.step(self.now_ns, event)]  # type: ignore[arg-type]

    def agree(self, stream: str = "main", *, lane: int = 1, message_type: int = SQL_TYPE, size: int = 0) -> int:
        self.index += 1
        value = statement("select 1" + " " * size)
        body = encode_pack(Pack(lane, self.index, (value,), message_type=message_type))
        batch = Record(Kind.BATCH, body, first_offset=self.index, count=1, stream=stream)
        whole = Body(1, self.index, 1, self.index, bytes(32))
        raw = encode_body(whole)
        first = Record(Kind.META, len(raw).to_bytes(4, "little") + raw, parts=3)
        parts = (first, Record(Kind.BATCH, body, stream=stream, part=1, parts=3))
        applied = Record(Kind.VERDICT, first_offset=self.index, count=1, part=2, parts=3)
        self.records[self.index] = tuple(
            replace(part, index=self.index, chain_hash=chain_hash(whole.previous, raw)) for part in (*parts, applied)
        )
        lease = ConfigVerdict(1, 0, client_id=lane, acl=ACL) if lane else ConfigVerdict(1, 0, acl=NO_ACL)  # type: ignore[arg-type]
        self.journal.reach = self.index
        moment = LogPosition(self.index, 1, self.index, bytes(32))
        applied = AppliedMessage(moment, ExecutionVerdict((lease,), ()), (batch,), False)
        if self.attached:
            assert not self.step(applied)
        else:
            self.core.replay(applied)
        return self.index

    def open(self, index: int = 0, stream: str = "main") -> list[object]:
        assert OpenDatabase(stream) in self.step(Drained())
        return [*self.step(DatabaseOpened(stream, index, b"f" * 32)), *self.step(Drained())]

    def done(self, apply: object) -> list[object]:
        assert isinstance(apply, Apply)
        steps = tuple(MessageApplied(work.index, work.index.to_bytes(32, "big"), 1) for work in apply.works)
        return [*self.step(Applied(apply.stream, steps)), *self.step(Drained())]

    def ask(self, message: object, call: int = 7, client: str = "alice", payload: bytes = b"") -> list[object]:
        request = Requested(call, client, messages.encode(message), payload)  # type: ignore[arg-type]
        return [*self.step(request), *self.step(Drained())]

    def said(self, effects: list[object]) -> list[tuple[int, object]]:
        """What was said to which node."""
        whispers = [effect for effect in effects if isinstance(effect, Whisper)]
        return [(one.instance[0], messages.decode_peer(parcel.decode(one.content).body)) for one in whispers]

    def hears(self, node: int, message: object) -> list[object]:
        told = GossipParcel(peer(node), Parcel(node, Layer.EXECUTOR, messages.encode(message)))  # type: ignore[arg-type]
        return [*self.step(told), *self.step(Drained())]


def works(effects: list[object]) -> list[int]:
    return [work.index for effect in effects if isinstance(effect, Apply) for work in effect.works]


def read_back(stage: Stage, effects: list[object]) -> list[object]:
    """Answer reads of the log."""
    out = list(effects)
    for effect in effects:
        if isinstance(effect, ReadBack):
            out += read_back(stage, stage.step(BackRead(effect.token, stage.records[effect.start // 10])))
            out += read_back(stage, stage.step(Drained()))
    return out


def ready(nodes: int = 1) -> Stage:
    stage = Stage(nodes)
    for node in range(2, nodes + 1):
        stage.step(Entered(peer(node), {}))
    stage.agree()
    (first,) = [effect for effect in read_back(stage, stage.open()) if isinstance(effect, Apply)]
    stage.done(first)
    return stage
