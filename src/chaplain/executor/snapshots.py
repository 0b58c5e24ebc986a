"""Copies of databases: kept on disk so that the log can be done without, and taken from others by whoever lacks one.

    the log is to be dropped up to a message ──▶ KeepDatabase, once the database has it ──▶ the log may go
    a database needs what its log no longer has ──▶ AskCopy, piece by piece ──▶ it takes the database's place

Decides when a copy is made, whom one is asked of, and when somebody else is asked. Refuses to know databases, and
whether a copy is right: whoever makes, gives or takes one reads its rows again, and executors compare fingerprints when
it is open.

Bounds: one piece under way for each database; one copy made at a time for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from chaplain.core import Report
from chaplain.executor.apply_queue import ApplyPhase, ApplyQueue
from chaplain.executor.events import CopyErrand, CopyTaken, DatabaseKept, KeepDatabase, KeptRead, ReadKept, TakeCopy
from chaplain.executor.messages import AskCopy, CopyPiece, PeerMessage

PATIENCE_NS = 3_000_000_000
"""Somebody who gives nothing for so long is left for the next one."""
READS_MAX = 16
Tell = Callable[[bytes, PeerMessage, bytes], None]


class _Taking(msgspec.Struct):
    """One copy on its way to us."""

    feed: ApplyQueue
    peer: bytes
    due_ns: int
    position: int = 0
    name: tuple[int, int, bytes] | None = None
    """Index, size and digest of the copy; a piece of another one means to begin anew."""
    writing: bool = False


class Copying:
    def __init__(self, tell: Tell, peers: Callable[[], Sequence[bytes]]) -> None:
        """`peers` are other executors that are connected."""
        self._tell = tell
        self._peers = peers
        self._takings: dict[str, _Taking] = {}
        self._reads: dict[int, tuple[bytes, AskCopy]] = {}
        self._token = 0
        self.effects: list[CopyErrand | Report] = []

    @property
    def due_ns(self) -> int | None:
        return min((taking.due_ns for taking in self._under_way()), default=None)

    def _under_way(self) -> list[_Taking]:
        """Those of executors that have not stopped since."""
        return [taking for taking in self._takings.values() if taking.feed.phase is ApplyPhase.LACKING]

    # Keeping.

    def keep(self, feed: ApplyQueue, through: int) -> None:
        """Have a copy made, if there is none with all messages up to this one."""
        if feed.is_open and not feed.keeping and feed.first_unkept() <= through and feed.has_reached(through):
            feed.keeping = True
            self.effects.append(KeepDatabase(feed.stream))

    def kept(self, feed: ApplyQueue, event: DatabaseKept) -> None:
        """An engine that cannot be copied is not asked again, nor one whose copy is damaged: then the log stays."""
        if event.damage:
            self._report("copy not kept", feed.stream, event.damage)
        elif not event.failed:
            feed.keeping, feed.kept = False, event.index

    def asked(self, peer: bytes, ask: AskCopy, feed: ApplyQueue | None) -> None:
        if feed is not None and not feed.kept:
            self.keep(feed, feed.applied)  # for when it is asked again
        elif len(self._reads) < READS_MAX:
            self._token += 1
            self._reads[self._token] = (peer, ask)
            self.effects.append(ReadKept(self._token, ask.stream, ask.position))

    def read(self, event: KeptRead, feeds: Mapping[str, ApplyQueue]) -> None:
        peer, ask = self._reads.pop(event.token)
        if event.damage:
            feeds[ask.stream].kept = 0  # another is made when the log is to be dropped further
            self._report("copy damaged", ask.stream, event.damage)
        elif event.data:
            piece = CopyPiece(ask.stream, event.index, ask.position, event.size_bytes, event.digest)
            self._tell(peer, piece, event.data)

    # Taking.

    def want(self, now_ns: int, feed: ApplyQueue) -> None:
        feed.lack()
        self._takings[feed.stream] = _Taking(feed, b"", now_ns)
        self._ask_next(now_ns, self._takings[feed.stream])

    def _ask_next(self, now_ns: int, taking: _Taking) -> None:
        """Ask the next executor, from the beginning."""
        peers = sorted(self._peers())
        taking.due_ns = now_ns + PATIENCE_NS
        taking.position, taking.name = 0, None
        if peers:
            taking.peer = next((peer for peer in peers if peer > taking.peer), peers[0])
            self._ask(taking)

    def _ask(self, taking: _Taking) -> None:
        self._tell(taking.peer, AskCopy(taking.feed.stream, taking.position), b"")

    def came(self, now_ns: int, peer: bytes, piece: CopyPiece, data: bytes) -> None:
        taking = self._takings.get(piece.stream)
        if taking is None or taking.writing or peer != taking.peer or piece.position != taking.position:
            return
        if taking not in self._under_way():
            return
        name = (piece.index, piece.size_bytes, piece.digest)
        feed = taking.feed
        useless = piece.index <= feed.applied or piece.index < feed.given_up
        if taking.name not in (None, name) or useless or not data:
            self._ask_next(now_ns, taking)
            return
        taking.name, taking.writing = name, True
        taking.due_ns = now_ns + PATIENCE_NS
        self.effects.append(TakeCopy(piece.stream, piece.position, data, piece.size_bytes, piece.digest))

    def taken(self, now_ns: int, event: CopyTaken) -> None:
        taking = self._takings[event.stream]
        taking.writing = False
        taking.due_ns = now_ns + PATIENCE_NS
        if taking not in self._under_way():
            return
        if event.failed:
            self._report("copy refused", event.stream, event.failed)
            self._ask_next(now_ns, taking)
        else:
            taking.position = event.position
            self._ask(taking)

    def _report(self, what: str, stream: str, reason: str) -> None:
        self.effects.append(Report(what, detail={"stream": stream, "reason": reason}))

    def opened(self, feed: ApplyQueue) -> None:
        self._takings.pop(feed.stream, None)

    def woken(self, now_ns: int) -> None:
        for taking in self._under_way():
            if now_ns >= taking.due_ns:
                if taking.writing:
                    taking.due_ns = now_ns + PATIENCE_NS
                else:
                    self._ask_next(now_ns, taking)
