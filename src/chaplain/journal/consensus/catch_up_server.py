"""Gives others what they lack: agreed messages, from memory or from the log, and the tail to those in doubt.

Decides what may be given. Refuses to know who is right: only what is agreed here is called agreed.

Bounds: one read of the log at a time for each peer; what is given at once has `supply_bytes_max` octets, or is one
message, and `supply_messages_max` messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from chaplain.journal.consensus.context import ConsensusContext
from chaplain.journal.consensus.events import LogRead, ReadLog
from chaplain.journal.consensus.hard_state import VotingState
from chaplain.journal.messages.consensus import (
    Fetch,
    Recall,
    Recalled,
    RecalledMessage,
    RecoveryAnswer,
    RecoveryQuestion,
    Supplied,
    Supply,
)
from chaplain.journal.model.log_entry import LogEntry
from chaplain.segment.record import Record


class CatchUpServer:
    def __init__(self, bench: ConsensusContext) -> None:
        self._bench = bench
        self._reads: dict[int, tuple[int, Fetch | Recall]] = {}

    def asked(self, node: int, message: Fetch | Recall | RecoveryQuestion) -> None:
        match message:
            case Fetch():
                self._fetched(node, message)
            case Recall():
                self._read_log(node, message)
            case RecoveryQuestion():
                self._questioned(node, message)
            case _:
                assert_never(message)

    def _fetched(self, node: int, fetch: Fetch) -> None:
        bench, settings = self._bench, self._bench.settings
        if bench.keeper.now.state is VotingState.WIPED or not fetch.index:
            return
        messages = bench.log.recent(fetch.index, settings.supply_bytes_max)
        if messages is not None:
            self._supply(node, fetch, messages)
            return
        self._read_log(node, fetch)

    def _read_log(self, node: int, wanted: Fetch | Recall) -> None:
        bench, bytes_max = self._bench, self._bench.settings.supply_bytes_max
        if isinstance(wanted, Fetch):
            span = bench.log.span(wanted.index, bytes_max)
        else:
            span = bench.log.span_back(wanted.index, bytes_max, wanted.count)
        if span is None or any(reader == node for reader, _ in self._reads.values()):
            return
        token = bench.next_token()
        self._reads[token] = (node, wanted)
        bench.quill.say(ReadLog(token, *span))

    def read(self, event: LogRead) -> int:
        """What was asked for has been read; gives the index that could not be, or 0."""
        node, wanted = self._reads.pop(event.token, (0, Fetch(0, False)))
        if not node:
            return 0
        if isinstance(wanted, Recall):
            return self._recall(node, wanted, event.records)
        messages = self._bench.log.read_forward(event.records, wanted.index)
        if not messages:
            return wanted.index
        self._supply(node, wanted, messages)
        return 0

    def _recall(self, node: int, recall: Recall, records: Sequence[Record]) -> int:
        """Give what was recalled, as far as it could be read; gives the index that could not be, or 0."""
        found = self._bench.log.read_backward(records, recall.index)
        if not found and recall.count > 1:
            self._read_log(node, Recall(recall.index))  # of several any may be damaged: is it this one?
            return 0
        kept: list[RecalledMessage] = []
        for message, verdict in found:
            if message.lacks_payloads and node in self._bench.holders:
                break
            kept.append(RecalledMessage(message.raw, verdict, message.payloads))
        if kept:
            self._bench.quill.tell(node, Recalled(recall.index, tuple(kept)))
        return 0 if found else recall.index

    def _supply(self, node: int, fetch: Fetch, messages: Sequence[LogEntry]) -> None:
        bench, log = self._bench, self._bench.log
        supplied = [Supplied(message.raw, message.payloads) for message in messages]
        ballot = 0
        if fetch.tail and log.tail is not None and log.tail.index == fetch.index + len(messages) == log.agreed + 1:
            ballot = log.tail.ballot
            supplied.append(Supplied(log.tail.raw, log.tail.payloads))
        bench.quill.tell(node, Supply(fetch.index, log.agreed, tuple(supplied), ballot))

    def _questioned(self, node: int, question: RecoveryQuestion) -> None:
        """Somebody lost its memory. From now on its former lives count for nothing here, and that is on disk first."""
        keeper, log = self._bench.keeper, self._bench.log
        if question.life > keeper.now.lives.get(node, 0):
            keeper.learn_life(node, question.life)
        now = keeper.now
        index, ballot = log.last()
        lives = {**now.lives, self._bench.settings.node: now.life} if now.life else now.lives
        answer = RecoveryAnswer(question.nonce, now.regime, index, ballot, now.state, now.lives.get(node, 0), lives)
        self._bench.quill.promise(node, answer)
