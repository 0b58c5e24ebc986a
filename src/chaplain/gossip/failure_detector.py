"""Clocks of silence: whom to ask about, and whom to take for gone.

Decides from when each watched member was last known to be there. Refuses to know why: sessions, messages and the list
belong to others, who act on the moves that `moves` returns.

    silent for T, or its connection broke   → SUSPECT, and ask everybody; ask again every T/4
    known to be there since                 → CLEAR
    silent for 2T, asked for T/2 or longer  → LOSE; for T, if somebody else has lost it already

Restraint: time that this node itself slept through is nobody's silence. After a pause every clock is set forward by it,
the node listens for T/2 before it judges, and its T is stretched while pauses keep coming (Lifeguard's local health).

Invariants:
- nobody is lost who was known to be there less than 2T ago (T, on another's word), or asked about for less than T/2;
- only what a node heard itself is passed on, so that hearsay never feeds itself.
"""

from __future__ import annotations

from enum import Enum

from chaplain.gossip.settings import GossipSettings

SCORE_MAX = 4


class Move(Enum):
    SUSPECT = "suspect"
    ASK = "ask again"
    CLEAR = "clear"
    LOSE = "lose"
    DROP = "stop watching"


class MemberWatch:
    """What is known of one member's presence."""

    __slots__ = ("asked_ns", "broken_ns", "direct_ns", "guest", "known_ns", "since_ns", "told_lost")

    def __init__(self, now_ns: int, *, guest: bool) -> None:
        self.known_ns = now_ns
        """When it was last known to be there, by anybody's word."""
        self.direct_ns: int | None = None
        """When we heard it ourselves."""
        self.since_ns: int | None = None
        """Since when it is suspected."""
        self.broken_ns = -1
        """When its connection last broke."""
        self.asked_ns = now_ns
        self.guest = guest
        """Not one we keep a session with: watched only while somebody else suspects it."""
        self.told_lost = False
        """Somebody else has taken it for gone."""


class FailureDetector:
    def __init__(self, settings: GossipSettings) -> None:
        self._settings = settings
        self._watches: dict[int, MemberWatch] = {}
        self._listen_until_ns = 0
        self._score = 0
        self._score_until_ns = 0

    @property
    def timeout_ns(self) -> int:
        """T, stretched while this node is the slow one."""
        return self._settings.silence_ns * (1 + self._score)

    def is_watched(self, identifier: int) -> bool:
        watch = self._watches.get(identifier)
        return watch is not None and not watch.guest

    def watch(self, identifier: int, now_ns: int) -> None:
        """Judge this member's silence from now on."""
        watch = self._watches.get(identifier)
        if watch is None:
            self._watches[identifier] = MemberWatch(now_ns, guest=False)
        elif watch.guest:
            watch.guest = False
            watch.known_ns = max(watch.known_ns, now_ns - self.timeout_ns)

    def unwatch(self, identifier: int) -> None:
        self._watches.pop(identifier, None)

    def release(self, identifier: int) -> None:
        """Leave the judging to others: we keep no session with this member."""
        watch = self._watches.get(identifier)
        if watch is not None:
            watch.guest = True

    def known_ns(self, identifier: int) -> int | None:
        watch = self._watches.get(identifier)
        return None if watch is None else watch.known_ns

    def direct_age_ns(self, identifier: int, now_ns: int) -> int | None:
        """How long ago we heard it ourselves; None if we never did."""
        watch = self._watches.get(identifier)
        return None if watch is None or watch.direct_ns is None else now_ns - watch.direct_ns

    def heard(self, identifier: int, now_ns: int) -> bool:
        """It spoke to us; true if that ends a suspicion."""
        watch = self._watches.get(identifier)
        if watch is None:
            return False
        watch.direct_ns = now_ns
        return self._known(watch, now_ns, now_ns)

    def vouched(self, identifier: int, heard_ns: int, now_ns: int) -> bool:
        """Somebody heard it then; true if that ends our suspicion."""
        watch = self._watches.get(identifier)
        return watch is not None and self._known(watch, min(heard_ns, now_ns), now_ns)

    def renewed(self, identifier: int) -> None:
        """Others hold a later card of it: what was suspected of the earlier one is void, its silence is not."""
        watch = self._watches.get(identifier)
        if watch is not None:
            watch.since_ns = None
            watch.told_lost = False

    def broke(self, identifier: int, now_ns: int) -> bool:
        """Its connection broke: suspect it at once, but lose it no sooner. True if that is news."""
        watch = self._watches.get(identifier)
        if watch is None:
            return False
        watch.broken_ns = now_ns
        if watch.since_ns is not None:
            return False
        watch.since_ns = watch.asked_ns = now_ns
        return True

    def accuse(self, identifier: int, now_ns: int, *, lost: bool) -> bool:
        """Somebody suspects it, or took it for gone. Watch it if we do not already; true if it now is a suspect."""
        watch = self._watches.get(identifier)
        if watch is None:
            watch = self._watches[identifier] = MemberWatch(now_ns - self.timeout_ns, guest=True)
        watch.told_lost = watch.told_lost or lost
        if watch.since_ns is not None or now_ns - watch.known_ns < self.timeout_ns:
            return False
        watch.since_ns = watch.asked_ns = now_ns
        return True

    def may_lose(self, identifier: int, now_ns: int) -> bool:
        """Whether somebody else's word that it is gone can be believed now: unheard for T, and asked about for T/2.

        T is not stretched here: who is slow should doubt its own judgement, not that of the others.
        """
        watch = self._watches.get(identifier)
        return watch is not None and now_ns >= self._listen_until_ns and self._would_follow(watch, now_ns)

    def slept(self, gap_ns: int, now_ns: int) -> None:
        """Count out time in which this node did not run: nobody else's fault."""
        for watch in self._watches.values():
            watch.known_ns += gap_ns
            watch.asked_ns += gap_ns
            if watch.since_ns is not None:
                watch.since_ns += gap_ns
        self._listen_until_ns = now_ns + self._settings.silence_ns // 2
        self._score = min(SCORE_MAX, self._score + 1)
        self._score_until_ns = now_ns + 2 * self._settings.silence_ns

    def moves(self, now_ns: int) -> list[tuple[Move, int]]:
        """What the clocks call for now."""
        self._recover(now_ns)
        if now_ns < self._listen_until_ns:
            return []
        found = [(self._judge(watch, now_ns), identifier) for identifier, watch in self._watches.items()]
        return [(move, identifier) for move, identifier in found if move is not None]

    def _judge(self, watch: MemberWatch, now_ns: int) -> Move | None:
        silence_ns = now_ns - watch.known_ns
        if watch.since_ns is None:
            if watch.guest:
                return Move.DROP
            if silence_ns < self.timeout_ns:
                return None
            watch.since_ns = watch.asked_ns = now_ns
            return Move.SUSPECT
        if silence_ns >= 2 * self.timeout_ns and now_ns - watch.since_ns >= self.timeout_ns // 2:
            return Move.CLEAR if watch.guest and not watch.told_lost else Move.LOSE
        if watch.told_lost and not watch.guest and self._would_follow(watch, now_ns):
            return Move.LOSE
        if now_ns - watch.asked_ns >= self.timeout_ns // 4:
            watch.asked_ns = now_ns
            return Move.ASK
        return None

    def _would_follow(self, watch: MemberWatch, now_ns: int) -> bool:
        silence_ns = self._settings.silence_ns
        asked = watch.since_ns is not None and now_ns - watch.since_ns >= silence_ns // 2
        return asked and now_ns - watch.known_ns >= silence_ns

    def _known(self, watch: MemberWatch, heard_ns: int, now_ns: int) -> bool:
        watch.known_ns = max(watch.known_ns, heard_ns)
        if watch.since_ns is None:
            return False
        if now_ns - heard_ns >= self.timeout_ns // 2 or heard_ns < watch.broken_ns:
            return False
        watch.since_ns = None
        watch.told_lost = False
        return True

    def _recover(self, now_ns: int) -> None:
        if self._score and now_ns >= self._score_until_ns:
            self._score -= 1
            self._score_until_ns = now_ns + 2 * self._settings.silence_ns
