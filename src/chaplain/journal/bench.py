"""What the parts of a serializer share: settings, chance, memory, log, payloads, and the one way to speak."""

from __future__ import annotations

import random
from collections.abc import Iterable

from chaplain.core import Report
from chaplain.journal.log import Log
from chaplain.journal.order_events import Agreed, Message
from chaplain.journal.order_message import OrderMessage
from chaplain.journal.order_settings import OrderSettings
from chaplain.journal.quill import Quill, Written
from chaplain.journal.shelf import Shelf
from chaplain.journal.standing import Keeper


class Bench:
    def __init__(self, settings: OrderSettings, chance: random.Random, quill: Quill, keeper: Keeper, log: Log) -> None:
        self.settings = settings
        self.chance = chance
        self.quill = quill
        self.keeper = keeper
        self.log = log
        self.shelf = Shelf(settings.shelf_bytes_max, settings.shelf_idle_ns)
        self.up: list[int] = []
        """Peers we have a connection with, in the order in which they came."""
        self.room = True
        """The disk has room for more."""
        self.leaving = False
        self.mark_due_ns: int | None = None
        """When the agreed mark is to be written, unless a message comes first."""

    def tell_all(self, message: OrderMessage) -> None:
        for peer in self.settings.peers:
            self.quill.tell(peer, message)

    def report(self, event: str, node: int = 0, **detail: str | int) -> None:
        self.quill.say(Report(event, str(node) if node else "", detail))

    def written(self) -> Written:
        """What will be proven when all that was written to the log so far is on disk."""
        reach = self.log.tail.index if self.log.tail is not None and self.log.whole else self.log.agreed
        return Written(self.log.written, reach)

    def settle_tail(self, now_ns: int) -> None:
        """The tail is agreed: execution has it, and the rest of the journal hears of it."""
        self.announce(now_ns, [self.log.settle()])

    def announce(self, now_ns: int, messages: Iterable[Message]) -> None:
        for message in messages:
            self.shelf.ordered(message.entries)
            self.quill.say(Agreed(message.body, message.ballot, message.hash, message.payloads))
        self.mark_due_ns = now_ns + self.settings.mark_ns

    def write_mark(self) -> None:
        self.mark_due_ns = None
        self.quill.write(self.log.mark(self.keeper.regime), self.written())
