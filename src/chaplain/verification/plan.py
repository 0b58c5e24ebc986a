"""Plans the verification of a log: which messages go to which task, and which breaks the record headers show already.

This module decides which of a cluster's logs is verified and from where. It compares the log with what other sources
state about it: the node's own sync hint (the file `journal.jot`), the manifest of an earlier verification, and the logs
of the other nodes. It reads only record headers, except for the configuration entries that say who may sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from chaplain.config import NODE_FILE
from chaplain.core import Frozen
from chaplain.errors import ConfigError, Inaccessible, Malformed, Missing
from chaplain.journal.messages.cluster import decode_body, genesis
from chaplain.journal.storage import verdict as verdicts
from chaplain.journal.storage.records import decode_sync_hint, verdict_of
from chaplain.segment.files import OpenSegment, Recycled, list_segments
from chaplain.segment.record import Kind, Record
from chaplain.verification.access import access_errors, exists
from chaplain.verification.batches import Keys, split_first
from chaplain.verification.chain_selection import ChainClaim, ChainSelection, SelectedMessage, check_end
from chaplain.verification.header_scan import LOG, Gap, ScannedRecord, ScanStart, Step, begins_at, scan_headers
from chaplain.verification.keys import AllowedSigners, FoundingInfo, Registry, find_founding
from chaplain.verification.manifest import ManifestContent
from chaplain.verification.proof_segments import Point, ProofState
from chaplain.verification.record_reader import RecordReader
from chaplain.verification.tree_check import LeafRange, Subtree, TreeSource, plan_ranges
from chaplain.verification.trust_anchor import TrustAnchor, read_anchor
from chaplain.verification.violations import Break

TASK_COST = 256 << 20
"""The cost of a task (see `cost_of`), unless the caller chooses another one."""
MESSAGE_COST_BYTES = 32 << 10
"""The cost of a message beside its octets: checking a short one takes as long as hashing this many octets."""
TASKS_MIN = 4
TASKS_MAX = 1024
ATTEMPTS = 3
"""Number of attempts to read a log while the running node drops segments."""


class VerifyRequest(Frozen, frozen=True):
    """The log and range to verify: the arguments of `prove`."""

    path: str = ""
    cluster: str = ""
    founding: str = ""
    """A node's `node.toml`, if there is none beside the segments."""
    signatures: bool = False
    proven: ManifestContent | None = None
    tree: TreeSource | None = None
    """A signed checkpoint to compare the log with."""


class VerifyPlan(Frozen, frozen=True):
    """The work of the tasks, and what the driver needs to join their results."""

    segments: list[list[SelectedMessage]]
    """The messages of each task."""
    breaks: list[Break]
    begin: ProofState
    cluster: str
    """The cluster's name; empty if unknown."""
    keys: dict[int, tuple[int, bytes]] | None = None
    signers: AllowedSigners | None = None
    start: ScanStart | None = None
    """Where the last message begins. The next verification continues from there."""
    anchor: TrustAnchor | None = None
    """The checkpoint on which the verification relies, because the beginning of the log was dropped."""
    node: int = 0
    """The node whose log is verified; 0 if unknown."""
    others: tuple[int, ...] = ()
    """Nodes whose record headers are compared with that log."""
    siblings: tuple[str, ...] = ()
    """Folders with other nodes' copies of the log, which show what a damaged record contained."""
    skipped: tuple[str, ...] = ()
    """Why logs of other nodes were not compared, although they are beside the verified one."""
    tree: TreeSource | None = None
    tree_before: tuple[Subtree, ...] = ()
    """The subtrees before the leaves of the first task."""
    leaf_ranges: tuple[LeafRange, ...] = ()
    """The leaves of each task; empty without a signed checkpoint."""

    def leaf_range(self, task: int) -> LeafRange | None:
        return self.leaf_ranges[task] if self.leaf_ranges else None


def make_plan(request: VerifyRequest, tasks: int = TASKS_MIN, task_cost: int = TASK_COST) -> VerifyPlan:
    """Plan a verification. Raises `Inaccessible` if a file cannot be read, and `Missing` if there is no log.

    There are at least `tasks` tasks if there are as many messages, and at most `TASKS_MAX`.
    """
    with access_errors():
        for _ in range(1, ATTEMPTS):
            with suppress(FileNotFoundError, Recycled):
                return _make_plan(request, tasks, task_cost)
        return _make_plan(request, tasks, task_cost)


def _make_plan(request: VerifyRequest, tasks: int, task_cost: int) -> VerifyPlan:
    folders = _folders(request)
    founding_info = find_founding(folders[0], request.founding)
    if request.signatures and not founding_info.cluster:
        raise ConfigError(f"signatures need the founding clients: give founding=, the {NODE_FILE} of a node")
    proven = request.proven
    if proven is not None and (
        proven.cluster != founding_info.cluster or (request.signatures and proven.signers is None)
    ):
        proven = None  # the manifest is of another cluster, or did not verify the signatures that are requested now
    logs = [_Log(folder, proven) for folder in folders]
    best = max(logs, key=lambda log: (log.selection.agreed, -log.first))
    others = [log for log in logs if log is not best]
    skipped: list[str] = []
    if not request.cluster:
        others, skipped = _siblings(best)
    breaks = [*best.breaks, *[one for other in others for one in best.compare(other, all_of_it=bool(request.cluster))]]
    if best.contradicted:
        proven = None  # verify everything again, because the manifest does not show where the two begin to differ
    behind = proven.state.point.index if proven and proven.state.point else 0
    if behind + 1 < best.first:
        proven, behind = None, 0  # the message after the verified ones was dropped
    anchor = best.anchor if behind + 1 < best.first else None
    messages = [message for message in best.selection.messages if message.index > behind]
    breaks += _checkpoints_differ(best, others)
    before_anchor = [message for message in messages if anchor is not None and message.index <= anchor.index]
    after_anchor = messages[len(before_anchor) :]
    known = proven.signers if proven else anchor.signers if anchor else None
    registry = _registry(after_anchor, founding_info, known) if request.signatures else None
    segments = [*(cut(before_anchor, tasks, task_cost) if before_anchor else []), *cut(after_anchor, tasks, task_cost)]
    tree = None if request.tree is None else request.tree.at(best.folder)
    firsts = [segment[0].index for segment in segments]
    tree_before, leaf_ranges = ([], []) if tree is None else plan_ranges(tree, firsts)
    return VerifyPlan(
        segments,
        breaks + (registry.breaks if registry else []),
        proven.state if proven else _beginning(founding_info),
        founding_info.cluster,
        registry.lanes() if registry else None,
        registry.signers() if registry else None,
        best.start(),
        anchor,
        best.node,
        tuple(other.node for other in others) if request.cluster else (),
        tuple(str(other.folder) for other in others),
        tuple(skipped),
        tree,
        tuple(tree_before),
        tuple(leaf_ranges),
    )


def _checkpoints_differ(log: _Log, others: Iterable[_Log]) -> Iterator[Break]:
    mine = log.anchor
    for other in others if mine is not None else ():
        theirs = other.anchor
        if mine is not None and theirs is not None and theirs.index == mine.index and theirs.digest != mine.digest:
            expected = f"{theirs.digest.hex()}, as {other.folder.parent.name} has it"
            yield Break("", mine.index, "checkpoint", expected, mine.digest.hex())


def keys_of(plan: VerifyPlan, segment: Sequence[SelectedMessage]) -> Keys | None:
    """Return the keys for a task. Signatures before the checkpoint cannot be verified: who could sign is unknown."""
    leaned = plan.anchor is not None and bool(segment) and segment[0].index <= plan.anchor.index
    return None if plan.keys is None or leaned else Keys(plan.cluster, plan.keys)


def _folders(request: VerifyRequest) -> list[Path]:
    if bool(request.path) == bool(request.cluster):
        raise ConfigError("give either the cluster's folder or a path to segments")
    folders = [Path(request.path)] if request.path else local_folders(Path(request.cluster))
    present = [folder for folder in folders if list_segments(folder, LOG)]
    if not present:
        raise Missing(f"there are no segments in {request.path or request.cluster}: give a node's segments as path")
    return present


def local_folders(cluster: Path) -> list[Path]:
    """Return the folders of segments below a cluster's folder, which may also be named by its `cluster.toml`.

    Raises `OSError` if a node's folder cannot be opened: `Path.glob` would leave it out.
    """
    nodes = _node_directories(cluster.parent if cluster.is_file() else cluster)
    return [node / "segments" for node in nodes if exists(node / "segments")]


def _node_directories(cluster: Path) -> list[Path]:
    return [node for node in sorted(cluster.iterdir()) if node.name.startswith("node-")]


def _beginning(founding_info: FoundingInfo) -> ProofState:
    return ProofState(Point(0, [genesis(founding_info.cluster)] if founding_info.cluster else [], 0, 0), all_lanes=True)


class _Log:
    """The log of one node, from its record headers."""

    def __init__(self, folder: Path, proven: ManifestContent | None = None) -> None:
        self.folder = folder
        named = re.fullmatch(r"node-(\d+)", folder.resolve().parent.name)
        self.node = int(named[1]) if named else 0
        # The sync hint is read before the log: a running node may append in between, but the log never shrinks.
        hint = _sync_hint(folder)
        point = proven.state.point if proven else None
        start = proven.start if proven else None
        if point is None or start is None or not begins_at(folder, start, point.index, point.hashes[0]):
            start = None
        steps = list(scan_headers(folder, start=start))
        self.anchor = read_anchor(folder)
        self.first = 1
        """The first message of the log; earlier ones were dropped."""
        if self.anchor is not None:
            dropped = list_segments(folder, LOG)[0].sequence > 0
            self.first = max(self.anchor.first, _first(steps) if dropped else 1)
        self.selection = ChainSelection(steps, first=point.index if start and point else self.first)
        known = [ChainClaim(hint[0], b"", "as the sync hint beside it says")] if hint else []
        self.breaks = [*self.selection.breaks, *self.selection.reaches(known)]
        self.breaks += check_end(self.selection, hint[1] if hint else 0, "as the sync hint beside it says")
        self.contradicted = self.selection.reaches(_manifest_claim(point))
        """Breaks that contradict the manifest."""
        self.breaks += self.contradicted

    def start(self) -> ScanStart | None:
        record = self.selection.place_of(self.selection.agreed)
        if record is None:
            return None
        with OpenSegment(record.path) as segment:
            return ScanStart(record.sequence, segment.header.identity, record.position)

    def compare(self, other: _Log, *, all_of_it: bool) -> Iterator[Break]:
        """Yield the first message at which two logs differ and, with `all_of_it`, the breaks of the other log."""
        name = other.folder.parent.name
        for index in range(1, min(self.selection.agreed, other.selection.agreed) + 1):
            here, present = self.selection.hash_at(index), other.selection.hash_at(index)
            if here is not None and present is not None and here != present:
                yield Break("", index, "fork", f"{present.hex()}, as {name} has it", here.hex())
                break  # hashes are chained, so all later messages differ as well
        if all_of_it:
            for one in other.breaks:
                yield msgspec.structs.replace(one, found=f"{one.found} ({name})", node=other.node)


def _manifest_claim(point: Point | None) -> list[ChainClaim]:
    return (
        [ChainClaim(point.index, point.hashes[0], "as the manifest says")] if point is not None and point.index else []
    )


def _siblings(log: _Log) -> tuple[list[_Log], list[str]]:
    """Return the logs of the other local nodes, if the folder belongs to a cluster's directory.

    The second list names those that cannot be read. The user requested one node's log only, and may have no rights to
    others.
    """
    own = log.folder.resolve()
    logs: list[_Log] = []
    skipped: list[str] = []
    if not (own.parent.parent / "cluster.toml").exists():
        return logs, skipped
    for node in _node_directories(own.parent.parent):
        folder = node / "segments"
        try:
            with access_errors():
                if folder != own and exists(folder) and list_segments(folder, LOG):
                    logs.append(_Log(folder))
        except Inaccessible as error:
            skipped.append(str(error))
    return logs, skipped


def _sync_hint(folder: Path) -> tuple[int, int] | None:
    """Read the node's sync hint: the index and the position up to which its log was durable at the last write.

    Raises `OSError` if there is one that cannot be read: without it, a log that was cut short would seem whole.
    """
    try:
        hint = decode_sync_hint((folder / f"{LOG}.jot").read_bytes())
    except (FileNotFoundError, Malformed):
        return None
    return hint.index, hint.position


def _first(steps: Iterable[Step]) -> int:
    """Return the first message that begins in the first file. Copies of older messages may precede it."""
    first, last = None, 0
    for step in steps:
        if isinstance(step, Gap) or (
            first is not None and isinstance(step, ScannedRecord) and step.sequence > first.sequence
        ):
            break
        if isinstance(step, ScannedRecord) and step.part == 0 and step.kind == Kind.META:
            if first is None or step.index > last + 1:
                first = step
            last = max(last, step.index)
    return 1 if first is None else first.index


def _registry(
    messages: Iterable[SelectedMessage], founding_info: FoundingInfo, known: AllowedSigners | None
) -> Registry:
    """Read the configuration entries in the log. `checker` reports messages that cannot be read."""
    registry = Registry(founding_info, known)
    with RecordReader() as reader:
        for message in messages:
            first, last = (reader.read(message.places[at], message.reason) for at in (0, -1))
            if isinstance(first, Record) and isinstance(last, Record):
                try:
                    registry.take(decode_body(split_first(first)[0]), verdicts.decode(verdict_of(last)))
                except Malformed:
                    continue
    return registry


def cost_of(message: SelectedMessage) -> int:
    """Return the effort of checking a message, in octets: those of its records, copies included, and a fixed part."""
    return MESSAGE_COST_BYTES + sum(size for places in message.places for _, _, size in places)


def cut(messages: Sequence[SelectedMessage], tasks: int, task_cost: int = TASK_COST) -> list[list[SelectedMessage]]:
    """Split messages into groups of consecutive ones, of about equal cost."""
    costs = [cost_of(message) for message in messages]
    total = sum(costs)
    tasks = min(TASKS_MAX, max(tasks, total // task_cost))
    share = max(1, -(-total // tasks))
    segments: list[list[SelectedMessage]] = []
    filled = share
    for message, cost in zip(messages, costs, strict=True):
        if filled >= share:
            segments.append([])
            filled = 0
        segments[-1].append(message)
        filled += cost
    return segments
