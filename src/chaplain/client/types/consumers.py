"""Settings of a consumer in a program, and what `consumers` returns."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypeAlias

from chaplain.client.types import validation
from chaplain.client.types.results import ResultRecord
from chaplain.core import Frozen
from chaplain.errors import Malformed, Misused
from chaplain.journal.messages.consumer import LATEST, SLOTS_MAX, Join, Mode, check_name

ConsumerStart: TypeAlias = int | Literal["earliest", "latest"] | datetime
"""The first message of a new consumer: an offset, the first retained message, the end, or a time."""
LEASE_MAX_S = 3600.0
PREFETCH_MAX = 10_000
DELIVERIES_MAX = 65_535
GROUP_SEPARATOR = "/"


class ConsumerRecord(ResultRecord, frozen=True):
    """A named consumer of a stream."""

    stream: str
    name: str
    mode: str
    """`single`, `keyed` or `queue`."""
    position: int
    """All messages below this offset are processed."""
    head: int
    """The next offset of the stream."""
    lag: int
    """Messages that are not processed. With slots, it is counted from the slot that is furthest behind."""
    workers: int
    leased: int
    """Queue: messages that workers have."""
    waiting: int
    """Queue: messages that wait to be delivered again."""
    dropped: int
    """Queue: messages that were given up after `max_deliveries`, without a dead-letter stream."""


class ConsumerSettings(Frozen, frozen=True):
    """Checked arguments of `consume`."""

    name: str
    mode: Mode
    start: ConsumerStart
    timeout_s: float | None
    lease_s: float
    slots: int
    prefetch: int
    max_deliveries: int
    dead_letter: str

    def join(self, nonce: bytes, start: int) -> Join:
        return Join(
            self.name,
            nonce,
            self.mode,
            self.slots,
            round(self.lease_s * 1000),
            self.max_deliveries,
            self.dead_letter,
            start,
        )


def consumer_settings(
    name: str,
    group: str | None,
    mode: str,
    start: ConsumerStart,
    timeout: float | None,
    *,
    lease: float,
    slots: int,
    prefetch: int,
    max_deliveries: int | None,
    dead_letter: str | None,
) -> ConsumerSettings:
    """Check the arguments of `consume`."""
    if mode not in {one.name.lower() for one in Mode}:
        raise Misused(f"a consumer's mode is 'single', 'keyed' or 'queue', not {mode!r}")
    kind = Mode[mode.upper()]
    if kind is not Mode.QUEUE and (max_deliveries is not None or dead_letter is not None):
        raise Misused("only a queue counts deliveries: use mode='queue', or leave out max_deliveries and dead_letter")
    if dead_letter is not None:
        validation.journal_stream(dead_letter)
    count = {Mode.SINGLE: 1, Mode.KEYED: slots, Mode.QUEUE: 0}[kind]
    validation.number("slots", slots, 1, SLOTS_MAX, f"are 1 to {SLOTS_MAX}")
    validation.number("a prefetch", prefetch, 1, PREFETCH_MAX, f"is 1 to {PREFETCH_MAX} messages")
    if max_deliveries is not None:
        validation.number("max_deliveries", max_deliveries, 1, DELIVERIES_MAX, f"is 1 to {DELIVERIES_MAX}")
    lease_s = validation.timeout_s(lease)
    if not 1 <= lease_s <= LEASE_MAX_S:
        raise Misused(f"a lease is 1 to {LEASE_MAX_S:g} seconds, not {lease}")
    return ConsumerSettings(
        full_name(name, group),
        kind,
        check_start(start),
        validation.wait_s(timeout),
        lease_s,
        count,
        prefetch,
        max_deliveries or 0,
        dead_letter or "",
    )


def full_name(name: str, group: str | None = None) -> str:
    """The name of the consumer, after the name of its group if it has one."""
    full = name if group is None else f"{group}{GROUP_SEPARATOR}{name}"
    try:
        check_name(full)
    except (Malformed, AttributeError, UnicodeEncodeError):
        raise Misused(f"a consumer's name has 1 to 64 visible ASCII characters, not {full!r:.80}") from None
    return full


def check_start(start: ConsumerStart) -> ConsumerStart:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise Misused("a start time needs a time zone: datetime.now(UTC)")
        return start
    if isinstance(start, str):
        if start not in ("earliest", "latest"):
            raise Misused(f"a consumer starts at 'earliest', 'latest', an offset or a datetime, not {start!r}")
        return start
    return validation.number("offsets", start, requirement="count from 0")


def start_offset(start: int | Literal["earliest", "latest"]) -> int:
    if isinstance(start, str):
        return 0 if start == "earliest" else LATEST
    return start
