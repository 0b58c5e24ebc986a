"""Plans the verification of a log: which messages go to which task, and which breaks the record headers show already.

This module decides which of a cluster's logs is verified and from where. It compares the log with what other sources
state about it: the node's own sync hint (the file `journal.jot`), the manifest of an earlier verification, and the logs
of the other nodes. It reads only record headers, except for the configuration entries that say who may sign.
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
from chaplain.journal.storage.records import decode_jot
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
    """What to verify; the arguments of `prove`."""

    path: str = ""
    cluster: str = ""
    founding: str = ""
    """A node's `node.toml`, if there is none beside the segments."""
    signatures: bool = False
    proven: Proven | None = None


class VerifyPlan(Frozen, frozen=True):
    """The work of the tasks, and what the driver needs to join their results."""

    runs: list[list[SelectedMessage]]
    """The messages of each task."""
    breaks: list[Break]
    begin: ProofState
    cluster: str
    """The cluster's name; empty if unknown."""
    keys: dict[int, tuple[int, bytes]] | None = None
    signers: Signers | None = None
    start: Start | None = None
    """Where the last message begins. The next verification continues from there."""
    anchor: Anchor | None = None
    """The checkpoint on which the verification relies, because the beginning of the log was dropped."""
    node: int = 0
    """The node whose log is verified; 0 if unknown."""
    others: tuple[int, ...] = ()
    """Nodes whose record headers are compared with that log."""
    siblings: tuple[str, ...] = ()
    """Folders with other nodes' copies of the log, which show what a damaged record contained."""


def make_plan(asked: Asked, tasks: int = TASKS_MIN) -> VerifyPlan:
    folders = _folders(asked)
    founded = find_founded(folders[0], asked.founding)
    if asked.signatures and not founded.cluster:
        raise ConfigError(f"signatures need the founding clients: give founding=, the {NODE_FILE} of a node")
    proven = asked.proven
    if proven is not None and (proven.cluster != founded.cluster or (asked.signatures and proven.signers is None)):
        proven = None  # the manifest is of another cluster, or did not verify the signatures that are requested now
    logs = [_Log(folder, proven) for folder in folders]
    best = max(logs, key=lambda log: (log.ledger.agreed, -log.first))
    others = [log for log in logs if log is not best] if asked.cluster else list(_siblings(best))
    breaks = [*best.breaks, *[one for other in others for one in best.against(other, all_of_it=bool(asked.cluster))]]
    if best.contradicted:
        proven = None  # verify everything again, because the manifest does not show where the two begin to differ
    behind = proven.state.point.index if proven and proven.state.point else 0
    if behind + 1 < best.first:
        proven, behind = None, 0  # the message after the verified ones was dropped
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
    """Return the keys for a task. Signatures before the checkpoint cannot be verified: who could sign is unknown."""
    leaned = plan.anchor is not None and bool(run) and run[0].index <= plan.anchor.index
    return None if plan.keys is None or leaned else Keys(plan.cluster, plan.keys)


def _folders(asked: Asked) -> list[Path]:
    if bool(asked.path) == bool(asked.cluster):
        raise ConfigError("give either the cluster's folder or a path to segments")
    cluster = Path(asked.cluster)
    folder = cluster.parent if cluster.is_file() else cluster  # the path may name cluster.toml itself
    folders = [Path(asked.path)] if asked.path else sorted(folder.glob("node-*/segments"))
    there = [folder for folder in folders if folder.is_dir() and list_segments(folder, LOG)]
    if not there:
        raise Missing(f"there are no segments in {asked.path or asked.cluster}: give a node's segments as path")
    return there


def _beginning(founded: Founded) -> ProofState:
    return ProofState(Point(0, [genesis(founded.cluster)] if founded.cluster else [], 0, 0), all_lanes=True)


class _Log:
    """The log of one node, from its record headers."""

    def __init__(self, folder: Path, proven: Proven | None = None) -> None:
        self.folder = folder
        named = re.fullmatch(r"node-(\d+)", folder.resolve().parent.name)
        self.node = int(named[1]) if named else 0
        # The sync hint is read before the log: a running node may append in between, but the log never shrinks.
        jot = _jot(folder)
        point = proven.state.point if proven else None
        start = proven.start if proven else None
        if point is None or start is None or not stands(folder, start, point.index, point.hashes[0]):
            start = None
        steps = list(walk(folder, start=start))
        self.anchor = read_anchor(folder)
        self.first = 1
        """The first message of the log; earlier ones were dropped."""
        if self.anchor is not None:
            dropped = list_segments(folder, LOG)[0].sequence > 0
            self.first = max(self.anchor.first, _first(steps) if dropped else 1)
        self.ledger = ChainSelection(steps, first=point.index if start and point else self.first)
        known = [Known(jot[0], b"", "as the sync hint beside it says")] if jot else []
        self.breaks = [*self.ledger.breaks, *self.ledger.reaches(known)]
        self.breaks += cut_tail(self.ledger, jot[1] if jot else 0, "as the sync hint beside it says")
        self.contradicted = self.ledger.reaches(_noted(point))
        """Breaks that contradict the manifest."""
        self.breaks += self.contradicted

    def start(self) -> Start | None:
        spot = self.ledger.place_of(self.ledger.agreed)
        if spot is None:
            return None
        with OpenSegment(spot.path) as segment:
            return Start(spot.sequence, segment.header.identity, spot.position)

    def against(self, other: _Log, *, all_of_it: bool) -> Iterator[Break]:
        """Yield the first message at which two logs differ and, with `all_of_it`, the breaks of the other log."""
        name = other.folder.parent.name
        for index in range(1, min(self.ledger.agreed, other.ledger.agreed) + 1):
            here, there = self.ledger.hash_at(index), other.ledger.hash_at(index)
            if here is not None and there is not None and here != there:
                yield Break("", index, "fork", f"{there.hex()}, as {name} has it", here.hex())
                break  # hashes are chained, so all later messages differ as well
        if all_of_it:
            for one in other.breaks:
                yield msgspec.structs.replace(one, found=f"{one.found} ({name})", node=other.node)


def _noted(point: Point | None) -> list[Known]:
    return [Known(point.index, point.hashes[0], "as the manifest says")] if point is not None and point.index else []


def _siblings(log: _Log) -> Iterator[_Log]:
    """Yield the logs of the other local nodes, if the folder belongs to a cluster's directory."""
    directory = log.folder.resolve().parent.parent
    if (directory / "cluster.toml").exists():
        for folder in sorted(directory.glob("node-*/segments")):
            if folder != log.folder.resolve() and list_segments(folder, LOG):
                yield _Log(folder)


def _jot(folder: Path) -> tuple[int, int] | None:
    """Read the node's sync hint: the index and the position up to which its log was durable at the last write."""
    try:
        jot = decode_jot((folder / f"{LOG}.jot").read_bytes())
    except (OSError, Malformed):
        return None
    return jot.index, jot.position


def _first(steps: Iterable[Step]) -> int:
    """Return the first message that begins in the first file. Copies of older messages may precede it."""
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
    """Read the configuration entries in the log. `checker` reports messages that cannot be read."""
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
    """Split messages into groups of consecutive ones, of about equal size in octets."""
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
