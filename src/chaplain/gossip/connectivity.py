"""Whom to keep a session with, whom to try again, and comparing lists with those we have.

Up to `sessions_max` members, everybody is met; above that, ring neighbours at distances 1, 2, 4 …, which keep the graph
connected at a logarithm of sessions. A member that was lost without saying good-bye is met again and again, with
growing pauses: for a day, and for ever at a door (`doors`), so that the sides of a partition find each other after any
time; then their lists are compared, whoever is held for gone is told, and refutes.

Invariant: `wanted` and doors are exactly what we asked the mesh to keep, beside lost members; a URI is forgotten before
its member's new one is met, and never while another member is wanted there.
"""

from __future__ import annotations

from collections.abc import Mapping

from chaplain.gossip.codec import Compare, EntryStanding, LeaveMessage, ListEntry
from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.events import MemberState
from chaplain.gossip.failure_detector import FailureDetector
from chaplain.gossip.member_record import MemberRecord
from chaplain.gossip.membership import Membership
from chaplain.gossip.seeds import SeedEndpoints
from chaplain.link.events import Forget, Meet
from chaplain.units import SECOND_NS

COMPARE_ENTRIES_MAX = 512
"""More than this in one part is more than a peer of our size would ask for."""
COMPARE_CARDS_MAX = 128
HEALS_PER_TICK = 4
LAST_WORDS_NS = 10 * SECOND_NS
"""The connection to a node that was removed from the cluster is kept for so long: layers above may have yet to tell it,
and to agree on doing without it."""


class Connectivity:
    def __init__(self, voice: Dissemination, suspicion: FailureDetector, membership: Membership) -> None:
        self._voice = voice
        self._members = voice.members
        self._suspicion = suspicion
        self._membership = membership
        self._wanted: dict[int, str] = {}
        self._doors = SeedEndpoints(voice, membership)
        self.belonging: frozenset[int] = frozenset()
        """Who is a node of our cluster, whether or not it is present."""
        self._lost: dict[int, tuple[int, int]] = {}
        """Of each lost member: when to try again, and the pause after that."""
        self._revision = -1
        self._compare_ns = 0
        self._heal_ns = 0
        self._offer_ns = 0

    def knock(self, uri: str) -> None:
        self._doors.open(uri)

    def belong(self, nodes: Mapping[int, str], gone: tuple[str, ...]) -> None:
        """Nodes of our cluster are at these URIs; those that were at the others were removed from it."""
        self.belonging = frozenset(nodes)
        self._revision = -1
        for uri in gone:
            self._doors.close(uri, self._wanted.values())
        for uri in nodes.values():
            if uri not in self._doors and uri != self._membership.card.uri:
                self._doors.open(uri)

    def settle(self) -> None:
        """Meet who has come and forget who has gone. Cheap when nothing changed."""
        if self._revision == self._members.revision:
            return
        self._revision = self._members.revision
        targets = self._targets()
        for identifier in [identifier for identifier, uri in self._wanted.items() if not self._is_at(identifier, uri)]:
            self._part(identifier)
        if len(self._wanted) > self._voice.settings.sessions_max:
            for identifier in [identifier for identifier in self._wanted if identifier not in targets]:
                self._part(identifier)
        for identifier in targets:
            self._meet(identifier)

    def wants(self, identifier: int) -> bool:
        return identifier in self._wanted

    def abandon(self) -> None:
        """We have left: want nobody any more."""
        for identifier in list(self._wanted):
            self._part(identifier)
        self._doors.clear()
        self._lost.clear()
        self._revision = -1

    def tend(self) -> None:
        """Do what is due: compare lists with one peer, offer messages to one, try one lost member."""
        now_ns, settings = self._voice.now_ns, self._voice.settings
        if now_ns >= self._compare_ns:
            self._compare_ns = now_ns + settings.sync_ns
            if self._voice.sessions:
                self.compare_with(self._voice.rng.choice(list(self._voice.sessions)))
        if now_ns >= self._offer_ns:
            self._offer_ns = now_ns + settings.repair_ns
            self._voice.offer()
        if self._lost:
            self._heal()
        self._doors.tend(self._wanted.values())

    def compare_with(self, identifier: int) -> None:
        buckets = self._members.buckets()
        bucket = self._voice.rng.randrange(buckets)
        entries = tuple(self._members.bucket(buckets, bucket))
        if len(entries) <= COMPARE_ENTRIES_MAX:
            self._voice.say(identifier, Compare(buckets, bucket, True, entries))

    def on_compare(self, compare: Compare, sender: int) -> None:
        """Show what we hold newer; have ours shown where they hold newer; tell who is held for gone."""
        ours = self._members.bucket(compare.buckets, compare.bucket)
        if len(ours) > COMPARE_ENTRIES_MAX:
            self._voice.counts["compares_refused"] += 1
            return
        theirs = {entry.identifier: entry for entry in compare.entries}
        held, leaves = self._newer(ours, theirs)
        self._membership.show(sender, held[:COMPARE_CARDS_MAX], tuple(leaves[:COMPARE_CARDS_MAX]))
        by_identifier = {entry.identifier: entry for entry in ours}
        if compare.reply and any(_is_news(entry, by_identifier.get(entry.identifier)) for entry in compare.entries):
            self._voice.say(sender, Compare(compare.buckets, compare.bucket, False, tuple(ours)))
        for entry in compare.entries:
            mine = by_identifier.get(entry.identifier)
            if entry.standing is EntryStanding.LOST and mine == ListEntry(
                entry.identifier, entry.incarnation, EntryStanding.PRESENT
            ):
                self._membership.on_claim(entry.identifier, entry.incarnation)

    def _newer(
        self, ours: list[ListEntry], theirs: dict[int, ListEntry]
    ) -> tuple[list[MemberRecord], list[LeaveMessage]]:
        held, leaves = [], []
        for entry in ours:
            their = theirs.get(entry.identifier)
            record = self._members.get(entry.identifier)
            assert record is not None
            if their is None and entry.standing is not EntryStanding.PRESENT:
                continue
            if their is None or their.incarnation < entry.incarnation:
                held.append(record.card)
            if record.proof is not None and _is_news(entry, their):
                leaves.append(record.proof)
        return held, leaves

    def _targets(self) -> dict[int, None]:
        me = self._voice.identifier
        if len(self._members) <= self._voice.settings.sessions_max + 1:
            return {identifier: None for identifier in self._members.present if identifier != me}
        kept = self._voice.settings.always_met | self.belonging
        configured = [identifier for identifier in self._members.present if identifier in kept and identifier != me]
        return dict.fromkeys([*configured, *self._members.neighbours(me)])

    def _is_at(self, identifier: int, uri: str) -> bool:
        record = self._members.get(identifier)
        return record is not None and record.state is not MemberState.LEFT and record.card.uri == uri

    def _meet(self, identifier: int) -> None:
        record = self._members.get(identifier)
        assert record is not None
        self._lost.pop(identifier, None)
        if identifier not in self._wanted:
            self._wanted[identifier] = record.card.uri
            self._voice.out.append(Meet(record.card.uri))
            self._suspicion.watch(identifier, self._voice.now_ns)

    def _part(self, identifier: int) -> None:
        uri, expelled = self._wanted.pop(identifier), self._members.is_expelled(identifier)
        if not expelled and uri not in self._wanted.values():
            self._voice.out.append(Forget(uri))
            self._doors.parted(uri)
        self._suspicion.unwatch(identifier)
        record = self._members.get(identifier)
        if record is not None and record.standing is EntryStanding.LOST:
            # One that was removed is only to be forgotten some time.
            wait_ns = self._voice.settings.heal_for_ns if expelled else self._voice.settings.heal_ns
            self._lost[identifier] = (self._voice.now_ns + wait_ns, wait_ns)

    def _heal(self) -> None:
        """Try lost members whose pause is over, a few at a time."""
        now_ns, settings = self._voice.now_ns, self._voice.settings
        left, taken = HEALS_PER_TICK, set(self._wanted.values())
        for identifier, (due_ns, wait_ns) in list(self._lost.items()):
            record = self._members.get(identifier)
            if record is None or record.state is not MemberState.LEFT or record.card.uri in taken:
                del self._lost[identifier]  # nobody remembers it, it is back, or another is where it was
                continue
            expelled = self._members.is_expelled(identifier)
            for_ns = LAST_WORDS_NS if expelled else settings.heal_for_ns
            if now_ns - record.left_ns > for_ns and (expelled or record.card.uri not in self._doors):
                del self._lost[identifier]
                self._voice.out.append(Forget(record.card.uri))
                continue
            if left and now_ns >= due_ns and identifier not in self._voice.sessions:
                left -= 1
                self._voice.counts["healing"] += 1
                # Both, so that the mesh dials now and not after a pause of its own.
                self._voice.out += (Forget(record.card.uri), Meet(record.card.uri))
                longer_ns = min(settings.heal_wait_max_ns, wait_ns * 3 // 2)
                jitter_ns = self._voice.rng.randrange(wait_ns // 4 + 1)
                self._lost[identifier] = (now_ns + wait_ns + jitter_ns, longer_ns)


def _is_news(entry: ListEntry, held: ListEntry | None) -> bool:
    """Does this entry say something that the other list does not?"""
    if held is None:
        return entry.standing is EntryStanding.PRESENT
    if entry.incarnation != held.incarnation:
        return entry.incarnation > held.incarnation
    return entry.standing is not held.standing
