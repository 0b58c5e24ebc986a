"""What a proof of a log has to do: which messages go to which task, and what is broken before any is read.

Decides which of a cluster's logs is proven, from where, and what others say of it: the node's own jot, the manifest of
an earlier proof, the logs of the other nodes. Everything is read from heads alone, except who may sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from chaplain.config import NODE_FILE
from chaplain.core import Frozen
from chaplain.errors import ConfigError, Malformed, Missing
from chaplain.journal.messages.cluster import decode_body, genesis
from chaplain.journal.storage import verdict as verdicts
from chaplain.journal.storage.records import decode_sync_hint
from chaplain.pipeline.source.header_scan import LOG, Gap, Spot, Start, Step, stands, walk
from chaplain.pipeline.verification.batches import Keys, split_first
from chaplain.pipeline.verification.chain_selection import ChainSelection, Known, SelectedMessage, cut_tail
from chaplain.pipeline.verification.keys import Founded, Registry, Signers, find_founded
from chaplain.pipeline.verification.manifest import Proven
from chaplain.pipeline.verification.proof_segments import Point, ProofState
from chaplain.pipeline.verification.record_reader import PartReader
from chaplain.pipeline.verification.trust_anchor import Anchor, read_anchor
from chaplain.pipeline.verification.violations import Break
from chaplain.segment.files import OpenSegment, list_segments
from chaplain.segment.record import Kind, Record

TASK_BYTES = 256 << 20
TASKS_MIN = 4
TASKS_MAX = 1024


class Asked(Frozen, frozen=True):
    """What is to be proven."""

    path: str = ""
    cluster: str = ""
    founding: str = ""
    """A node's file, where none lies beside the segments."""
    signatures: bool = False
    proven: Proven | None = None


class VerifyPlan(Frozen, frozen=True):
    runs: list[list[SelectedMessage]]
    breaks: list[Break]
    begin: ProofState
    cluster: str
    """The cluster's name, if it is known."""
    keys: dict[int, tuple[int, bytes]] | None = None
    signers: Signers | None = None
    start: Start | None = None
    """Where the last message begins: the next proof goes on from there."""
    anchor: Anchor | None = None
    """The checkpoint that the proof leans on, because the log's beginning was dropped."""
    node: int = 0
    """Whose log is proven; 0: not known."""
    others: tuple[int, ...] = ()
    """Whose logs are only compared with it, by their heads."""
    siblings: tuple[str, ...] = ()
    """Folders with other nodes' copies, which say what a damaged record contained."""


def make_plan(asked: Asked, tasks: int = TASKS_MIN) -> VerifyPlan:
    folders = _folders(asked)
    founded = find_founded(folders[0], asked.founding)
    if asked.signatures and not founded.cluster:
        raise ConfigError(f"signatures need the founding clients: give founding=, the {NODE_FILE} of a node")
    proven = asked.proven
    if proven is not None and (proven.cluster != founded.cluster or (asked.signatures and proven.signers is None)):
        proven = None  # of another cluster, or proven by less than is asked for
    logs = [_Log(folder, proven) for folder in folders]
    best = max(logs, key=lambda log: (log.ledger.agreed, -log.first))
    others = [log for log in logs if log is not best] if asked.cluster else list(_siblings(best))
    breaks = [*best.breaks, *[one for other in others for one in best.against(other, all_of_it=bool(asked.cluster))]]
    if best.contradicted:
        proven = None  # everything is proven again: where the two differ is not known
    behind = proven.state.point.index if proven and proven.state.point else 0
    if behind + 1 < best.first:
        proven, behind = None, 0  # what follows what was proven is there no more
    anchor = best.anchor if behind + 1 < best.first else None
    messages = [held for held in best.ledger.messages if held.index > behind]
    breaks += _checkpoints_differ(best, others)
    covered = [held for held in messages if anchor is not None and held.index <= anchor.index]
    open_ = messages[len(covered) :]
    known = proven.signers if proven else anchor.signers if anchor else None
    registry = _registry(open_, founded, known) if asked.signatures else None
    return VerifyPlan(
        [*(cut(covered, tasks) if covered else []), *cut(open_, tasks)],
        breaks + (registry.breaks if registry else []),
        proven.state if proven else _beginning(founded),
        founded.cluster,
        registry.lanes() if registry else None,
        registry.signers() if registry else None,
        best.start(),
        anchor,
        best.node,
        tuple(other.node for other in others) if asked.cluster else (),
        tuple(str(other.folder) for other in others),
    )


def _checkpoints_differ(log: _Log, others: Iterable[_Log]) -> Iterator[Break]:
    mine = log.anchor
    for other in others if mine is not None else ():
        theirs = other.anchor
        if mine is not None and theirs is not None and theirs.index == mine.index and theirs.digest != mine.digest:
            expected = f"{theirs.digest.hex()}, as {other.folder.parent.name} has it"
            yield Break("", mine.index, "checkpoint", expected, mine.digest.hex())


def keys_of(plan: VerifyPlan, run: Sequence[SelectedMessage]) -> Keys | None:
    """Who signed is checked behind the checkpoint only: who might sign before is known no more."""
    leaned = plan.anchor is not None and bool(run) and run[0].index <= plan.anchor.index
    return None if plan.keys is None or leaned else Keys(plan.cluster, plan.keys)


def _folders(asked: Asked) -> list[Path]:
    if bool(asked.path) == bool(asked.cluster):
        raise ConfigError("give either the cluster's folder or a path to segments")
    cluster = Path(asked.cluster)
    folder = cluster.parent if cluster.is_file() else cluster  # its cluster.toml is as good
    folders = [Path(asked.path)] if asked.path else sorted(folder.glob("node-*/segments"))
    there = [folder for folder in folders if folder.is_dir() and list_segments(folder, LOG)]
    if not there:
        raise Missing(f"there are no segments in {asked.path or asked.cluster}: give a node's segments as path")
    return there


def _beginning(founded: Founded) -> ProofState:
    return ProofState(Point(0, [genesis(founded.cluster)] if founded.cluster else [], 0, 0), all_lanes=True)


class _Log:
    """The log of one node, as its heads tell it."""

    def __init__(self, folder: Path, proven: Proven | None = None) -> None:
        self.folder = folder
        named = re.fullmatch(r"node-(\d+)", folder.resolve().parent.name)
        self.node = int(named[1]) if named else 0
        # What others say is read first: the log may have grown since, but not shrunk.
        jot = _jot(folder)
        point = proven.state.point if proven else None
        start = proven.start if proven else None
        if point is None or start is None or not stands(folder, start, point.index, point.hashes[0]):
            start = None
        steps = list(walk(folder, start=start))
        self.anchor = read_anchor(folder)
        self.first = 1
        """The log was dropped before this message."""
        if self.anchor is not None:
            dropped = list_segments(folder, LOG)[0].sequence > 0
            self.first = max(self.anchor.first, _first(steps) if dropped else 1)
        self.ledger = ChainSelection(steps, first=point.index if start and point else self.first)
        known = [Known(jot[0], b"", "as the jot beside it says")] if jot else []
        self.breaks = [*self.ledger.breaks, *self.ledger.reaches(known)]
        self.breaks += cut_tail(self.ledger, jot[1] if jot else 0, "as the jot beside it says")
        self.contradicted = self.ledger.reaches(_noted(point))
        """By what was proven before."""
        self.breaks += self.contradicted

    def start(self) -> Start | None:
        spot = self.ledger.place_of(self.ledger.agreed)
        if spot is None:
            return None
        with OpenSegment(spot.path) as segment:
            return Start(spot.sequence, segment.header.identity, spot.position)

    def against(self, other: _Log, *, all_of_it: bool) -> Iterator[Break]:
        """Where the two differ; and, if asked, what is wrong with the other by itself."""
        name = other.folder.parent.name
        for index in range(1, min(self.ledger.agreed, other.ledger.agreed) + 1):
            here, there = self.ledger.hash_at(index), other.ledger.hash_at(index)
            if here is not None and there is not None and here != there:
                yield Break("", index, "fork", f"{there.hex()}, as {name} has it", here.hex())
                break  # everything behind differs, too
        if all_of_it:
            for one in other.breaks:
                yield msgspec.structs.replace(one, found=f"{one.found} ({name})", node=other.node)


def _noted(point: Point | None) -> list[Known]:
    return [Known(point.index, point.hashes[0], "as the manifest says")] if point is not None and point.index else []


def _siblings(log: _Log) -> Iterator[_Log]:
    """The logs of the other nodes of a cluster on this machine, if the folder is part of one."""
    directory = log.folder.resolve().parent.parent
    if (directory / "cluster.toml").exists():
        for folder in sorted(directory.glob("node-*/segments")):
            if folder != log.folder.resolve() and list_segments(folder, LOG):
                yield _Log(folder)


def _jot(folder: Path) -> tuple[int, int] | None:
    """The index and the position that the node had written before it last wrote to its log."""
    try:
        jot = decode_sync_hint((folder / f"{LOG}.jot").read_bytes())
    except (OSError, Malformed):
        return None
    return jot.index, jot.position


def _first(steps: Iterable[Step]) -> int:
    """The first message that begins here, in the first file. Before it may stand what was written again of others."""
    first, last = None, 0
    for step in steps:
        if isinstance(step, Gap) or (first is not None and isinstance(step, Spot) and step.sequence > first.sequence):
            break
        if isinstance(step, Spot) and step.part == 0 and step.kind == Kind.META:
            if first is None or step.index > last + 1:
                first = step
            last = max(last, step.index)
    return 1 if first is None else first.index


def _registry(messages: Iterable[SelectedMessage], founded: Founded, known: Signers | None) -> Registry:
    """Read the configuration in the log. What cannot be read is named by whoever checks the message."""
    registry = Registry(founded, known)
    with PartReader() as reader:
        for held in messages:
            first = reader.read(held.places[0], held.reason)
            if isinstance(first, Record):
                try:
                    raw, verdict = split_first(first)
                    registry.take(decode_body(raw), verdicts.decode(verdict))
                except Malformed:
                    continue
    return registry


def cut(messages: Sequence[SelectedMessage], tasks: int) -> list[list[SelectedMessage]]:
    """Runs of messages, of about equal size in octets."""
    sizes = [sum(size for places in held.places for _, _, size in places) for held in messages]
    total = sum(sizes)
    tasks = min(TASKS_MAX, max(tasks, total // TASK_BYTES))
    share = max(1, -(-total // tasks))
    runs: list[list[SelectedMessage]] = []
    filled = share
    for held, size in zip(messages, sizes, strict=True):
        if filled >= share:
            runs.append([])
            filled = 0
        runs[-1].append(held)
        filled += size
    return runs
