"""Runs: what a task found about messages that follow one another, and how the driver joins what tasks found.

Decides whether one run continues another. Refuses to know where messages come from. What holds inside of a run,
`checker` decides, by the same rules.

Invariant: a run keeps what it saw first and last of everything, so that cutting a log anywhere hides no break, and
adds none.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chaplain.core import Frozen
from chaplain.journal.execution.state import stream_genesis, stream_hash
from chaplain.pipeline.verification.violations import Break, told

LOG = ""


class StreamLink(Frozen, frozen=True, array_like=True):
    """What one message wrote to one stream."""

    first_offset: int
    count: int
    digests: list[bytes] | None
    """Of its packs; None if they are not known, or known to be wrong."""
    chain: bytes
    """The stream's hash behind it, as stated; empty if that is not known."""


class StreamTail(Frozen, frozen=True, array_like=True):
    """Where a stream goes on, and the hashes that its next link may continue: none if any may."""

    next_offset: int
    chains: list[bytes]


class Point(Frozen, frozen=True, array_like=True):
    """A message as its neighbours see it."""

    index: int
    hashes: list[bytes]
    """That the next one may continue; none if any may."""
    regime: int
    timestamp_ns: int


class LaneSeen(Frozen, frozen=True, array_like=True):
    """Where a lane was first seen, and with which id."""

    stream: str
    offset: int
    first_id: int


class SegmentOpening(Frozen, frozen=True, array_like=True):
    """The first message of a run as its predecessor would see it."""

    index: int
    previous: bytes
    """Empty if the message cannot be read: then nothing else here is known, either."""
    regime: int
    timestamp_ns: int


class ProofState(msgspec.Struct):
    """How far a proof has come: everything that the next message is measured against."""

    point: Point | None = None
    tails: dict[str, StreamTail] = {}
    ids: dict[int, int] = {}
    """The next id of each lane."""
    all_lanes: bool = False
    """Every lane that was ever used is in `ids`: another one must begin with 1."""


class ProofSegment(msgspec.Struct):
    """What a task found."""

    opening: SegmentOpening | None = None
    end: ProofState = msgspec.field(default_factory=ProofState)
    first_links: dict[str, StreamLink] = {}
    second_links: dict[str, StreamLink] = {}
    """Those that do not continue the first as it is stated: who knows what came before it knows which is wrong."""
    first_ids: dict[int, LaneSeen] = {}
    forgot: bool = False
    """Something in the run could not be read: what lanes wrote before it says nothing about what follows."""
    breaks: list[Break] = []
    rows: int = 0
    packs: int = 0
    unchecked: int = 0
    """Packs whose signature nobody but a node can check."""


def continued(before: Point, opening: SegmentOpening) -> list[Break]:
    """Whether a message continues the one before. A hole between them is named where the log is put together."""
    if opening.index != before.index + 1 or not opening.previous:
        return []
    if before.hashes and opening.previous not in before.hashes:
        kind = "cluster chain" if before.index else "genesis"
        return [Break(LOG, opening.index, kind, before.hashes[0].hex(), opening.previous.hex())]
    if opening.regime < before.regime:
        return [Break(LOG, opening.index, "regime", f"{before.regime} or later", str(opening.regime))]
    if opening.timestamp_ns <= before.timestamp_ns:
        return [Break(LOG, opening.index, "time", f"later than {before.timestamp_ns}", str(opening.timestamp_ns))]
    return []


def linked(stream: str, before: StreamTail, link: StreamLink) -> tuple[list[Break], StreamTail]:
    """Whether a link continues its stream; and where the stream goes on."""
    end = link.first_offset + link.count
    stated = [link.chain] if link.chain else []
    if link.first_offset != before.next_offset:
        return [_jump(stream, before.next_offset, link.first_offset)], StreamTail(end, stated)
    if link.digests is None or not before.chains or not link.chain:
        return [], StreamTail(end, stated)
    expected = [stream_hash(one, link.first_offset, link.count, link.digests) for one in before.chains]
    if link.chain in expected:
        return [], StreamTail(end, stated)
    # The stated hash may be what is wrong, or what it is made of: the next link may continue either.
    wrong = Break(stream, link.first_offset, "stream chain", expected[0].hex(), link.chain.hex())
    return [wrong], StreamTail(end, [link.chain, *expected])


def _jump(stream: str, expected: int, found: int) -> Break:
    if found > expected:
        return Break(stream, expected, "missing", f"offset {expected}", f"offset {found}")
    return Break(stream, found, "repeated", f"offset {expected}", f"offset {found}")


def stitch(runs: Iterable[ProofSegment], begin: ProofState, cluster: str = "") -> tuple[list[Break], ProofState]:
    """All breaks, in runs and where they meet, and how far the log is proven behind them.

    `begin` is what the first run must continue. With the cluster's name streams begin from their genesis.
    """
    breaks: list[Break] = []
    state = ProofState(begin.point, dict(begin.tails), dict(begin.ids), begin.all_lanes)
    whole = begin.point is not None
    for run in sorted(runs, key=lambda run: run.opening.index if run.opening else 0):
        breaks += run.breaks
        if run.opening is None:
            continue
        if state.point is not None:
            found = continued(state.point, run.opening)
            breaks += found
            if any(one.kind == "genesis" for one in found):
                cluster = ""  # another cluster's log: its streams begin elsewhere, too
            if run.opening.index != state.point.index + 1:
                state.ids, state.all_lanes = {}, False
        breaks += _join_links(run, state, cluster, whole)
        breaks += _join_ids(run, state)
        state.point = run.end.point
    return told(breaks), state


def _join_links(run: ProofSegment, state: ProofState, cluster: str, whole: bool) -> list[Break]:
    breaks: list[Break] = []
    for stream, link in run.first_links.items():
        before = state.tails.get(stream)
        if before is None:
            genesis = [stream_genesis(cluster, stream)] if cluster else []
            before = StreamTail(0 if whole else link.first_offset, genesis if whole else [])
        found, after = linked(stream, before, link)
        breaks += found
        second = run.second_links.get(stream)
        if second is not None:
            found, _ = linked(stream, after, second)
            breaks += found
        last = run.end.tails[stream]
        state.tails[stream] = after if last.next_offset == after.next_offset else last
    return breaks


def _join_ids(run: ProofSegment, state: ProofState) -> list[Break]:
    breaks = []
    for client, seen in run.first_ids.items():
        expected = state.ids.get(client, 1 if state.all_lanes else seen.first_id)
        if seen.first_id != expected:
            breaks.append(lane_break(client, expected, seen.first_id, seen.stream, seen.offset))
    if run.forgot:
        state.ids, state.all_lanes = {}, False
    state.ids |= run.end.ids
    return breaks


def lane_break(client: int, expected: int, found: int, stream: str, offset: int) -> Break:
    return Break(stream, offset, "lane", f"client {client} id {expected}", f"id {found}")
