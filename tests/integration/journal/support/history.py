"""What clients saw of a journal, judged as a drill judges it, and the chain that their receipts name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chaplain import Message
from chaplain.drill import journal_load
from chaplain.drill.journal_history import Attempt
from chaplain.drill.journal_history import judge as find_breaks
from chaplain.segment.files import read_log
from chaplain.segment.layout import NO_HASH

STREAM = "load"


class Writer(journal_load.DrillWriter):
    def __init__(self, directory: Path, number: int, timeout_s: float = 10.0) -> None:
        super().__init__(directory, STREAM, number, timeout_s)


def read_all(directory: Path, node: int, stream: str = STREAM) -> list[Message]:
    return journal_load.read_all(directory, node, stream)


def read_chain(segments: Path) -> dict[int, bytes]:
    """The cluster chain as a node's files show it to anybody: the hash of each message that is agreed."""
    return {record.index: record.chain_hash for record in read_log(segments, "journal") if record.chain_hash != NO_HASH}


def judge_chain(histories: Sequence[Sequence[Attempt]], chains: dict[int, dict[int, bytes]]) -> int:
    """Every receipt names the hash that its cluster message has in every node's files; how many did."""
    receipts = {(one.index, one.hash) for history in histories for one in history if one.index}
    for node, chain in chains.items():
        for index, digest in sorted(receipts):
            assert chain.get(index) == digest, f"node {node}: message {index} has another hash than its receipt"
    return len(receipts)


def judge(histories: Sequence[Sequence[Attempt]], readings: dict[int, list[Message]]) -> dict[str, int]:
    """What was counted, if every promise was kept."""
    breaks = find_breaks(histories, readings)
    assert not breaks, f"{len(breaks)} breaks, the first: {breaks[:5]}"
    attempts = [attempt for history in histories for attempt in history]
    acked = sum(attempt.offset is not None for attempt in attempts)
    refused = sum(bool(attempt.refused) for attempt in attempts)
    written = len(next(iter(readings.values()))) - acked
    unknown = len(attempts) - acked - refused
    return {"acknowledged": acked, "unknown": unknown, "unknown and written": written, "refused": refused}


def gaps(histories: Sequence[Sequence[Attempt]], kills_s: Sequence[float]) -> list[float]:
    """From each blow to the next acknowledgement of something that was invoked after it."""
    done = sorted((one.acked_s, one.invoked_s) for history in histories for one in history if one.offset is not None)
    found = [next((acked - kill for acked, invoked in done if invoked >= kill), None) for kill in kills_s]
    return [gap for gap in found if gap is not None]
