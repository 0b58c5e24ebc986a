"""The failure detector: decides from silence which members to suspect and which to declare lost.

It decides from the times at which each watched member was last known to be alive. It does not know sessions, messages
or the list: `membership` applies the actions that `due_actions` returns.

    silent for T, or its connection broke   → SUSPECT, and ask all members; ask again every T/4
    known to be alive since                 → CLEAR
    silent for 2T, asked for T/2 or longer  → LOSE; for T, if another node has declared it lost already

A pause of this node is not silence of others. After a pause every timer is set forward by its length, the node only
listens for T/2, and its own T is longer while pauses recur (local health, as in Lifeguard).

Invariants:
- a member is lost only if it was not known to be alive for 2T (T, after another node's report), and was asked about for
  T/2;
- a node reports a member only if it heard the member itself, so that reports never confirm each other.
"""

from __future__ import annotations

from enum import Enum

from chaplain.gossip.settings import GossipSettings

SCORE_MAX = 4
"""The maximum local health score; T is multiplied by 1 plus the score."""


class DetectorAction(Enum):
    """An action that `membership` applies."""

    SUSPECT = "suspect"
    ASK = "ask again"
    CLEAR = "clear"
    LOSE = "lose"
    DROP = "stop watching"


class MemberWatch:
    """The timers of one member."""

    __slots__ = ("asked_ns", "broken_ns", "direct_ns", "indirect", "known_ns", "reported_lost", "suspected_ns")

    def __init__(self, now_ns: int, *, indirect: bool) -> None:
        self.known_ns = now_ns
        """When it was last known to be alive, by any node's report."""
        self.direct_ns: int | None = None
        """When this node itself last heard it."""
        self.suspected_ns: int | None = None
        """Since when it is suspected."""
        self.broken_ns = -1
        """When its connection last broke."""
        self.asked_ns = now_ns
        """When this node last asked all members about it."""
        self.indirect = indirect
        """This node keeps no session with it, and watches it only while another node suspects it."""
        self.reported_lost = False
        """Another node has declared it lost."""


class FailureDetector:
    def __init__(self, settings: GossipSettings) -> None:
        self._settings = settings
        self._watches: dict[int, MemberWatch] = {}
        self._listen_until_ns = 0
        self._score = 0
        self._score_until_ns = 0

    @property
    def timeout_ns(self) -> int:
        """T, multiplied while this node itself had pauses."""
        return self._settings.silence_ns * (1 + self._score)

    def is_watched(self, identifier: int) -> bool:
        watch = self._watches.get(identifier)
        return watch is not None and not watch.indirect

    def watch(self, identifier: int, now_ns: int) -> None:
        """Start to judge this member's silence."""
        watch = self._watches.get(identifier)
        if watch is None:
            self._watches[identifier] = MemberWatch(now_ns, indirect=False)
        elif watch.indirect:
            watch.indirect = False
            watch.known_ns = max(watch.known_ns, now_ns - self.timeout_ns)

    def unwatch(self, identifier: int) -> None:
        self._watches.pop(identifier, None)

    def release(self, identifier: int) -> None:
        """Stop judging the member by its silence, because this node has no session with it any more."""
        watch = self._watches.get(identifier)
        if watch is not None:
            watch.indirect = True

    def known_ns(self, identifier: int) -> int | None:
        watch = self._watches.get(identifier)
        return None if watch is None else watch.known_ns

    def direct_age_ns(self, identifier: int, now_ns: int) -> int | None:
        """How long ago this node itself heard the member; None if never."""
        watch = self._watches.get(identifier)
        return None if watch is None or watch.direct_ns is None else now_ns - watch.direct_ns

    def on_heard(self, identifier: int, now_ns: int) -> bool:
        """The member sent something to us. Returns True if that ends a suspicion."""
        watch = self._watches.get(identifier)
        if watch is None:
            return False
        watch.direct_ns = now_ns
        return self._known_alive(watch, now_ns, now_ns)

    def on_vouched(self, identifier: int, heard_ns: int, now_ns: int) -> bool:
        """Another node heard the member at `heard_ns`. Returns True if that ends our suspicion."""
        watch = self._watches.get(identifier)
        return watch is not None and self._known_alive(watch, min(heard_ns, now_ns), now_ns)

    def on_new_record(self, identifier: int) -> None:
        """A later card of the member exists.

        The suspicion of the earlier incarnation is void, but its silence still counts.
        """
        watch = self._watches.get(identifier)
        if watch is not None:
            watch.suspected_ns = None
            watch.reported_lost = False

    def on_disconnect(self, identifier: int, now_ns: int) -> bool:
        """The member's connection broke: suspect it at once; it is still lost only after 2T of silence.

        Returns True if the suspicion is new.
        """
        watch = self._watches.get(identifier)
        if watch is None:
            return False
        watch.broken_ns = now_ns
        if watch.suspected_ns is not None:
            return False
        watch.suspected_ns = watch.asked_ns = now_ns
        return True

    def accuse(self, identifier: int, now_ns: int, *, lost: bool) -> bool:
        """Another node suspects the member or declared it lost.

        Watch it, too. Returns True if it became a suspect now.
        """
        watch = self._watches.get(identifier)
        if watch is None:
            watch = self._watches[identifier] = MemberWatch(now_ns - self.timeout_ns, indirect=True)
        watch.reported_lost = watch.reported_lost or lost
        if watch.suspected_ns is not None or now_ns - watch.known_ns < self.timeout_ns:
            return False
        watch.suspected_ns = watch.asked_ns = now_ns
        return True

    def may_lose(self, identifier: int, now_ns: int) -> bool:
        """Whether to believe another node's report that the member is lost: unheard for T, and asked about for T/2.

        T is not extended here: a slow node must not suspect other nodes because of its own delay.
        """
        watch = self._watches.get(identifier)
        return watch is not None and now_ns >= self._listen_until_ns and self._accepts_report(watch, now_ns)

    def on_pause(self, gap_ns: int, now_ns: int) -> None:
        """Discount the time in which this process did not run."""
        for watch in self._watches.values():
            watch.known_ns += gap_ns
            watch.asked_ns += gap_ns
            if watch.suspected_ns is not None:
                watch.suspected_ns += gap_ns
        self._listen_until_ns = now_ns + self._settings.silence_ns // 2
        self._score = min(SCORE_MAX, self._score + 1)
        self._score_until_ns = now_ns + 2 * self._settings.silence_ns

    def due_actions(self, now_ns: int) -> list[tuple[DetectorAction, int]]:
        """The actions that are due now."""
        self._recover(now_ns)
        if now_ns < self._listen_until_ns:
            return []
        found = [(self._evaluate(watch, now_ns), identifier) for identifier, watch in self._watches.items()]
        return [(action, identifier) for action, identifier in found if action is not None]

    def _evaluate(self, watch: MemberWatch, now_ns: int) -> DetectorAction | None:
        silence_ns = now_ns - watch.known_ns
        if watch.suspected_ns is None:
            if watch.indirect:
                return DetectorAction.DROP
            if silence_ns < self.timeout_ns:
                return None
            watch.suspected_ns = watch.asked_ns = now_ns
            return DetectorAction.SUSPECT
        if silence_ns >= 2 * self.timeout_ns and now_ns - watch.suspected_ns >= self.timeout_ns // 2:
            # A node that keeps no session with the member has no evidence of its own: without a report of a loss it
            # stops suspecting.
            return DetectorAction.CLEAR if watch.indirect and not watch.reported_lost else DetectorAction.LOSE
        if watch.reported_lost and not watch.indirect and self._accepts_report(watch, now_ns):
            return DetectorAction.LOSE
        if now_ns - watch.asked_ns >= self.timeout_ns // 4:
            watch.asked_ns = now_ns
            return DetectorAction.ASK
        return None

    def _accepts_report(self, watch: MemberWatch, now_ns: int) -> bool:
        silence_ns = self._settings.silence_ns
        asked = watch.suspected_ns is not None and now_ns - watch.suspected_ns >= silence_ns // 2
        return asked and now_ns - watch.known_ns >= silence_ns

    def _known_alive(self, watch: MemberWatch, heard_ns: int, now_ns: int) -> bool:
        watch.known_ns = max(watch.known_ns, heard_ns)
        if watch.suspected_ns is None:
            return False
        # An old report only postpones the loss. One from before the connection broke says nothing about the time since.
        if now_ns - heard_ns >= self.timeout_ns // 2 or heard_ns < watch.broken_ns:
            return False
        watch.suspected_ns = None
        watch.reported_lost = False
        return True

    def _recover(self, now_ns: int) -> None:
        if self._score and now_ns >= self._score_until_ns:
            self._score -= 1
            self._score_until_ns = now_ns + 2 * self._settings.silence_ns
