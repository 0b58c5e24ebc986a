"""Proof segments: the result of a task that verified consecutive messages, and how the driver joins such results.

This module decides whether one segment continues another. `checker` decides, by the same rules, what is valid within a
segment. Neither knows where messages come from.

Invariant: a segment contains the first and the last value of everything that its neighbours must continue. A log may
therefore be split anywhere: no split hides a break or adds one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from chaplain.core import Frozen
from chaplain.journal.execution.state import stream_genesis, stream_hash
from chaplain.verification.tree_check import Subtree
from chaplain.verification.violations import Break, deduplicate

LOG = ""


class StreamLink(Frozen, frozen=True, array_like=True):
    """The part of one message that was appended to one stream."""

    first_offset: int
    count: int
    digests: list[bytes] | None
    """The digests of its packs; None if they are unknown or wrong."""
    chain: bytes
    """The stream's hash after it, as the message states it; empty if unknown."""


class StreamTail(Frozen, frozen=True, array_like=True):
    """The next offset of a stream, and the hashes that its next link may continue. If there are none, any hash is
    right.
    """

    next_offset: int
    chains: list[bytes]


class Point(Frozen, frozen=True, array_like=True):
    """The end of a chain of messages, which the next message must continue."""

    index: int
    hashes: list[bytes]
    """The hashes that the next message may continue. If the list is empty, any hash is right."""
    regime: int
    timestamp_ns: int


class LaneSeen(Frozen, frozen=True, array_like=True):
    """The first message of a segment with requests of a lane, and the first request id there."""

    stream: str
    offset: int
    first_id: int


class MessageLink(Frozen, frozen=True, array_like=True):
    """A message's claims about the one before it, and the values that must not fall: its index, regime and time."""

    index: int
    previous: bytes
    """The hash of the message before; empty if the message is unreadable. Then regime and time are unknown, too."""
    regime: int
    timestamp_ns: int


class ProofState(msgspec.Struct):
    """How far a log is verified: everything that the next message must continue."""

    point: Point | None = None
    tails: dict[str, StreamTail] = {}
    ids: dict[int, int] = {}
    """The next id of each lane."""
    all_lanes: bool = False
    """Whether `ids` contains every lane that was ever used, so that any other lane must begin with id 1."""


class ProofSegment(msgspec.Struct):
    """The result of one task."""

    first_message: MessageLink | None = None
    end: ProofState = msgspec.field(default_factory=ProofState)
    first_links: dict[str, StreamLink] = {}
    second_links: dict[str, StreamLink] = {}
    """Second links of streams that do not continue the hash stated by the first. Which of the two is wrong depends on
    the link before the first one, so the driver decides."""
    first_ids: dict[int, LaneSeen] = {}
    forgot: bool = False
    """Whether something in the segment is unreadable, so that request ids before it do not determine those after it."""
    breaks: list[Break] = []
    rows: int = 0
    packs: int = 0
    unchecked: int = 0
    """Packs whose signature only a node can check."""
    subtrees: list[Subtree] = []
    """With a signed checkpoint: the hashes of the tree's leaves of these messages."""


def continued(before: Point, link: MessageLink) -> list[Break]:
    """Return a break if a message does not continue the one before. `chain_selection` reports holes between them."""
    if link.index != before.index + 1 or not link.previous:
        return []
    if before.hashes and link.previous not in before.hashes:
        kind = "cluster chain" if before.index else "genesis"
        return [Break(LOG, link.index, kind, before.hashes[0].hex(), link.previous.hex())]
    if link.regime < before.regime:
        return [Break(LOG, link.index, "regime", f"{before.regime} or later", str(link.regime))]
    if link.timestamp_ns <= before.timestamp_ns:
        return [Break(LOG, link.index, "time", f"later than {before.timestamp_ns}", str(link.timestamp_ns))]
    return []


def linked(stream: str, before: StreamTail, link: StreamLink) -> tuple[list[Break], StreamTail]:
    """Return a break if a link does not continue its stream, and the new tail of the stream."""
    end = link.first_offset + link.count
    stated = [link.chain] if link.chain else []
    if link.first_offset != before.next_offset:
        return [_jump(stream, before.next_offset, link.first_offset)], StreamTail(end, stated)
    if link.digests is None or not before.chains or not link.chain:
        return [], StreamTail(end, stated)
    expected = [stream_hash(one, link.first_offset, link.count, link.digests) for one in before.chains]
    if link.chain in expected:
        return [], StreamTail(end, stated)
    # Either the stated hash is wrong, or the data from which it is computed: the next link may continue either hash.
    error = Break(stream, link.first_offset, "stream chain", expected[0].hex(), link.chain.hex())
    return [error], StreamTail(end, [link.chain, *expected])


def _jump(stream: str, expected: int, found: int) -> Break:
    if found > expected:
        return Break(stream, expected, "missing", f"offset {expected}", f"offset {found}")
    return Break(stream, found, "repeated", f"offset {expected}", f"offset {found}")


def join_segments(
    segments: Iterable[ProofSegment], begin: ProofState, cluster: str = ""
) -> tuple[list[Break], ProofState]:
    """Join segments: return all breaks, within segments and between them, and the state after the last segment.

    `begin` is the state that the first segment must continue. If the cluster's name is known, each stream must begin
    with its genesis hash, which contains the name.
    """
    breaks: list[Break] = []
    state = ProofState(begin.point, dict(begin.tails), dict(begin.ids), begin.all_lanes)
    whole = begin.point is not None
    for segment in sorted(segments, key=lambda segment: segment.first_message.index if segment.first_message else 0):
        breaks += segment.breaks
        if segment.first_message is None:
            continue
        if state.point is not None:
            found = continued(state.point, segment.first_message)
            breaks += found
            if any(one.kind == "genesis" for one in found):
                cluster = ""  # this is another cluster's log, so its streams have other genesis hashes, too
            if segment.first_message.index != state.point.index + 1:
                state.ids, state.all_lanes = {}, False
        breaks += _join_links(segment, state, cluster, whole)
        breaks += _join_ids(segment, state)
        state.point = segment.end.point
    return deduplicate(breaks), state


def _join_links(segment: ProofSegment, state: ProofState, cluster: str, whole: bool) -> list[Break]:
    breaks: list[Break] = []
    for stream, link in segment.first_links.items():
        before = state.tails.get(stream)
        if before is None:
            genesis = [stream_genesis(cluster, stream)] if cluster else []
            before = StreamTail(0 if whole else link.first_offset, genesis if whole else [])
        found, after = linked(stream, before, link)
        breaks += found
        second = segment.second_links.get(stream)
        if second is not None:
            found, _ = linked(stream, after, second)
            breaks += found
        last = segment.end.tails[stream]
        state.tails[stream] = after if last.next_offset == after.next_offset else last
    return breaks


def _join_ids(segment: ProofSegment, state: ProofState) -> list[Break]:
    breaks = []
    for client, seen in segment.first_ids.items():
        expected = state.ids.get(client, 1 if state.all_lanes else seen.first_id)
        if seen.first_id != expected:
            breaks.append(lane_break(client, expected, seen.first_id, seen.stream, seen.offset))
    if segment.forgot:
        state.ids, state.all_lanes = {}, False
    state.ids |= segment.end.ids
    return breaks


def lane_break(client: int, expected: int, found: int, stream: str, offset: int) -> Break:
    return Break(stream, offset, "lane", f"client {client} id {expected}", f"id {found}")
