"""Gives others what they lack: agreed messages, from memory or from the log, and the tail to those in doubt.

Decides what may be given. Refuses to know who is right: only what is agreed here is called agreed.

Bounds: one read of the log at a time for each peer; a supply has `supply_bytes_max` octets, or one message.
"""

from __future__ import annotations

from collections.abc import Sequence

from chaplain.journal.bench import Bench
from chaplain.journal.order_events import LogRead, Message, ReadLog
from chaplain.journal.order_message import Answer, Fetch, Question, Supplied, Supply
from chaplain.journal.standing import State


class Supplying:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._token = 0
        self._reads: dict[int, tuple[int, Fetch]] = {}

    def fetched(self, node: int, fetch: Fetch) -> None:
        bench, settings = self._bench, self._bench.settings
        if bench.keeper.now.state is State.WIPED or not fetch.index:
            return
        messages = bench.log.recent(fetch.index, settings.supply_bytes_max)
        if messages is not None:
            self._supply(node, fetch, messages)
            return
        span = bench.log.span(fetch.index, settings.supply_bytes_max)
        if span is None or any(reader == node for reader, _ in self._reads.values()):
            return
        self._token += 1
        self._reads[self._token] = (node, fetch)
        bench.quill.say(ReadLog(self._token, *span))

    def read(self, event: LogRead) -> None:
        node, fetch = self._reads.pop(event.token, (0, Fetch(0, False)))
        if not node:
            return
        messages = self._bench.log.reread(event.records, fetch.index)
        if messages:
            self._supply(node, fetch, messages)
        else:
            self._bench.report("damaged: agreed messages cannot be read back", 0, index=fetch.index)

    def _supply(self, node: int, fetch: Fetch, messages: Sequence[Message]) -> None:
        bench, log = self._bench, self._bench.log
        supplied = [Supplied(message.raw, message.payloads) for message in messages]
        ballot = 0
        if fetch.tail and log.tail is not None and log.tail.index == fetch.index + len(messages) == log.agreed + 1:
            ballot = log.tail.ballot
            supplied.append(Supplied(log.tail.raw, log.tail.payloads))
        bench.quill.tell(node, Supply(bench.keeper.regime, fetch.index, log.agreed, tuple(supplied), ballot))

    def questioned(self, node: int, question: Question) -> None:
        """Somebody lost its memory. From now on its former lives count for nothing here, and that is on disk first."""
        keeper, log = self._bench.keeper, self._bench.log
        if question.life > keeper.now.lives.get(node, 0):
            keeper.learn_life(node, question.life)
        now = keeper.now
        index, ballot = log.last()
        lives = {**now.lives, self._bench.settings.node: now.life} if now.life else now.lives
        answer = Answer(question.nonce, now.regime, index, ballot, now.state, now.lives.get(node, 0), lives)
        self._bench.quill.promise(node, answer)
