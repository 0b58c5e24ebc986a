"""Catch-up server: answers fetches of agreed messages, recalls of single messages, and recovery questions.

Decides which messages a peer gets: agreed ones, from memory or from the log, and the tail if the peer asks for it. It
reports a message as agreed only if the message is agreed here.

Bounds: one read of the log at a time for each peer. An answer contains at most `supply_bytes_max` bytes, or one
message, and at most `supply_messages_max` messages.
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
    """Serves the log of this node to its peers."""

    def __init__(self, context: ConsensusContext) -> None:
        self._context = context
        self._reads: dict[int, tuple[int, Fetch | Recall]] = {}
        """Reads of the log under way, by token: the peer and its request."""

    def on_request(self, node: int, message: Fetch | Recall | RecoveryQuestion) -> None:
        match message:
            case Fetch():
                self._on_fetch(node, message)
            case Recall():
                self._read_log(node, message)
            case RecoveryQuestion():
                self._on_recovery_question(node, message)
            case _:
                assert_never(message)

    def _on_fetch(self, node: int, fetch: Fetch) -> None:
        context, settings = self._context, self._context.settings
        if context.hard_state.now.state is VotingState.WIPED or not fetch.index:
            return
        messages = context.log.recent(fetch.index, settings.supply_bytes_max)
        if messages is not None:
            self._send_supply(node, fetch, messages)
            return
        self._read_log(node, fetch)

    def _read_log(self, node: int, wanted: Fetch | Recall) -> None:
        """Read the requested messages from the log, unless a read for this peer is under way."""
        context, bytes_max = self._context, self._context.settings.supply_bytes_max
        if isinstance(wanted, Fetch):
            span = context.log.span(wanted.index, bytes_max)
        else:
            span = context.log.span_back(wanted.index, bytes_max, wanted.count)
        if span is None or any(reader == node for reader, _ in self._reads.values()):
            return
        token = context.next_read_token()
        self._reads[token] = (node, wanted)
        context.barrier.emit(ReadLog(token, *span))

    def on_log_read(self, event: LogRead) -> int:
        """Answer with what was read. Return the index of a message that could not be read, or 0."""
        node, wanted = self._reads.pop(event.token, (0, Fetch(0, False)))
        if not node:
            return 0
        if isinstance(wanted, Recall):
            return self._send_recalled(node, wanted, event.records)
        messages = self._context.log.read_forward(event.records, wanted.index)
        if not messages:
            return wanted.index
        self._send_supply(node, wanted, messages)
        return 0

    def _send_recalled(self, node: int, recall: Recall, records: Sequence[Record]) -> int:
        """Send the recalled messages that could be read. Return the index of a message that could not be read, or 0. A
        data holder gets no message without its payloads.
        """
        found = self._context.log.read_backward(records, recall.index)
        if not found and recall.count > 1:
            # Any of the messages may be damaged. Read the requested one alone to find out.
            self._read_log(node, Recall(recall.index))
            return 0
        recalled: list[RecalledMessage] = []
        for message, verdict in found:
            if message.lacks_payloads and node in self._context.data_holders:
                break
            recalled.append(RecalledMessage(message.raw, verdict, message.payloads))
        if recalled:
            self._context.barrier.send_now(node, Recalled(recall.index, tuple(recalled)))
        return 0 if found else recall.index

    def _send_supply(self, node: int, fetch: Fetch, messages: Sequence[LogEntry]) -> None:
        context, log = self._context, self._context.log
        supplied = [Supplied(message.raw, message.payloads) for message in messages]
        ballot = 0
        if fetch.tail and log.tail is not None and log.tail.index == fetch.index + len(messages) == log.agreed + 1:
            ballot = log.tail.ballot
            supplied.append(Supplied(log.tail.raw, log.tail.payloads))
        context.barrier.send_now(node, Supply(fetch.index, log.agreed, tuple(supplied), ballot))

    def _on_recovery_question(self, node: int, question: RecoveryQuestion) -> None:
        """Answer a node that lost its memory. From now on this node counts no promise of the asker's earlier
        incarnations. It writes this to disk before the answer leaves.
        """
        hard_state, log = self._context.hard_state, self._context.log
        if question.life > hard_state.now.incarnations.get(node, 0):
            hard_state.learn_incarnation(node, question.life)
        now = hard_state.now
        index, ballot = log.last()
        known = now.incarnations
        everyone = {**known, self._context.settings.node: now.incarnation} if now.incarnation else known
        answer = RecoveryAnswer(question.nonce, now.regime, index, ballot, now.state, known.get(node, 0), everyone)
        # The asker relies on this: a later vote or acknowledgement of this node names the new incarnation, so that no
        # quorum counts the old one with it. A crash must not make this node forget it.
        self._context.barrier.send_after_sync(node, answer)
