"""The calls of the sequence as data, for both clients: publishing, reading pages, and tracking a reader's position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from chaplain.client.api.calls import PreparedCall
from chaplain.client.protocol.events import ClientCall
from chaplain.client.types import validation
from chaplain.client.types.results import ResultRecord
from chaplain.client_service.messages import Instruct, LookUp
from chaplain.errors import Missing, Misused, Unproven
from chaplain.sequence.messages import client
from chaplain.sequence.messages.client import PublishRequest, ReadRequest, SequencePage
from chaplain.sequence.messages.entry import NO_HASH, event_hashes, values_hash
from chaplain.wire.parcel import Layer

PUBLISH_BYTES_MAX = 2 << 20
WAIT_S = 10.0
"""How long a node holds the request of a reader that has read everything; then the reader asks again."""
_GRACE_S = 10.0
_NS = 1_000_000_000


class SequenceEvent(ResultRecord, frozen=True):
    """One event of a sequence stream, with its number."""

    stream: str
    number: int
    value: bytes
    publisher: str
    hash: bytes
    """Hash link over this event and all events before it."""


class Published(int):
    """The number of a published event, and its hash. Of several events: the number and the hash of the first."""

    hash: bytes
    """Hash link over this event and all events before it, as readers receive it with the event."""

    def __new__(cls, number: int, hash_: bytes) -> Self:
        made = super().__new__(cls, number)
        made.hash = hash_
        return made

    def __reduce__(self) -> tuple[type[Published], tuple[int, bytes]]:
        return Published, (int(self), self.hash)

    @property
    def number(self) -> int:
        return int(self)


def check_stream(stream: str) -> str:
    return validation.name("a stream's name", stream)


def check_values(values: Iterable[bytes]) -> list[bytes]:
    taken = [validation.octets(value) for value in validation.several("events", values)]
    size = sum(len(value) + 4 for value in taken)
    if not taken or size > PUBLISH_BYTES_MAX:
        raise Misused(f"one call publishes 1 event or more, {PUBLISH_BYTES_MAX} bytes at most: publish in parts")
    return taken


def publish(stream: str, values: list[bytes]) -> PreparedCall[Published]:
    body = client.encode(PublishRequest(stream, [len(value) for value in values]))
    payload = b"".join(values)

    def build(call: int, timeout_ns: int) -> ClientCall:
        return ClientCall(Instruct(call, Layer.SEQUENCE, body), payload, timeout_ns)

    def finish(answer: bytes) -> Published:
        numbered = client.decode_numbered(answer)
        return Published(numbered.first, numbered.hash)

    return PreparedCall(build, finish)


def read_page(
    stream: str, start: int, wait_s: float, history: int, *, whole: bool = False, fresh: bool = False
) -> PreparedCall[SequencePage]:
    """Read one page of events, waiting up to `wait_s` seconds for the first."""
    body = client.encode(ReadRequest(stream, start, max(0, int(wait_s * _NS)), history, whole, fresh))

    def build(call: int, timeout_ns: int) -> ClientCall:
        return ClientCall(LookUp(call, Layer.SEQUENCE, body), b"", timeout_ns)

    return PreparedCall(build, client.decode_page, wait_s + _GRACE_S)


class StreamChain:
    """The hash chain of one stream, as a reader recomputes it from whole runs."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._next = 0
        """The number of the next run's first event; 0 before the first run."""
        self._hash = NO_HASH

    def take(self, first: int, publisher: str, before: bytes, values: Sequence[bytes]) -> None:
        """Raise `Unproven` unless this run continues the one before. A first run with number 1 begins the chain; any
        other first run is where the verification begins.
        """
        if self._next and first != self._next:
            raise Unproven(f"{self._stream}: number {self._next} is missing, the next one is {first}")
        if (self._next or first == 1) and before != self._hash:
            raise Unproven(
                f"{self._stream} {first} is linked to {before.hex()}, but the events before it have the hash"
                f" {self._hash.hex()}"
            )
        self._next, self._hash = first + len(values), values_hash(before, first, publisher, values)


class SequenceReader:
    """The position of a reader: the next request, and the events it takes from a page."""

    def __init__(
        self,
        stream: str,
        start: int | None,
        stop: int | None,
        follow: bool,
        timeout_s: float | None,
        *,
        verify: bool | Published = False,
        fresh: bool = False,
    ) -> None:
        start = None if start is None else validation.number("numbers", start, 1, requirement="begin at 1")
        stop = None if stop is None else validation.number("numbers", stop, requirement="begin at 1")
        timeout_s = validation.wait_s(timeout_s)
        self._stream = check_stream(stream)
        self._next = start or 0
        self._stop = stop
        self._follow = follow
        self._wait_s = WAIT_S if timeout_s is None else timeout_s
        self._ends_idle = timeout_s is not None
        self._history = 0
        self._last: int | None = None
        """Without `follow`: the head when the first page was read."""
        self._fresh = fresh
        """Whether the next page has to be fresh: the first one of a fresh read."""
        self._chain = StreamChain(self._stream) if verify is not False else None
        self._known = verify if isinstance(verify, Published) else None
        """An event that the stream must contain."""
        if self._known is not None and not (start or 0) <= self._known < (self._known + 1 if stop is None else stop):
            raise Misused(f"{self._known!r} is not between `start` and `stop`: read it to verify that it is there")
        self.ended = stop is not None and start is not None and stop <= start

    def next_request(self) -> PreparedCall[SequencePage]:
        """The request for the next page."""
        wait_s = self._wait_s if self._follow else 0.0
        whole = self._chain is not None
        return read_page(self._stream, self._next, wait_s, self._history, whole=whole, fresh=self._fresh)

    def take(self, page: SequencePage) -> Iterator[SequenceEvent]:
        """Yield the events of a page and advance the position."""
        self._history = page.history
        self._fresh = False
        if self._last is None:
            self._last = page.head
        for run in page.runs:
            if self._chain is not None:
                self._chain.take(run.first, run.publisher, run.before, run.values)
            hashes = event_hashes(run.before, run.first, run.values)
            for number, (value, hash_) in enumerate(zip(run.values, hashes, strict=True), run.first):
                if number == self._known:
                    self._check_known(number, hash_)
                if self._chain is not None and number < self._next:
                    continue  # an event before the requested one, from the same run
                if self._is_past(number):
                    self.ended = True
                    return
                if self._next and number != self._next:
                    raise Missing(f"{self._stream} {self._next} is not in the node's answer: read anew")
                self._next = number + 1
                yield SequenceEvent(self._stream, number, value, run.publisher, hash_)
        if not page.runs:
            self.ended = not self._follow or self._ends_idle
        elif self._is_past(self._next):
            self.ended = True
        self._check_end()

    def _check_known(self, number: int, found: bytes) -> None:
        assert self._known is not None
        if found != self._known.hash:
            raise Unproven(f"{self._stream} {number} is another event than the one that was published")
        self._known = None

    def _check_end(self) -> None:
        if self.ended and self._known is not None:
            raise Missing(f"{self._stream} {int(self._known)} is not at this node, not yet or not any more")

    def _is_past(self, number: int) -> bool:
        if self._stop is not None and number >= self._stop:
            return True
        return not self._follow and number > (self._last or 0)


def shape(event: SequenceEvent, value: Any) -> dict[str, Any]:
    """The event as the command line shows it in JSON."""
    return {"number": event.number, "value": value, "publisher": event.publisher, "hash": event.hash.hex()}
