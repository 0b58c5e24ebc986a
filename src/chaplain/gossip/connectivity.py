"""Decides with which members to keep sessions, reconnects to lost members, and compares lists (anti-entropy).

Up to `sessions_max` members there is a session with every member. Above that, there are sessions with ring neighbours
at distances 1, 2, 4 …, so that the graph is connected with logarithmically many sessions. A member that was lost
without saying good-bye is dialled again with growing pauses: for a day, and without limit at a seed endpoint (`seeds`).
So the sides of a partition find each other after any time. Then they compare their lists. Each member that the other
side lists as lost is informed and refutes this.

Invariant: the mesh was asked to keep exactly the endpoints in `_wanted`, the seeds and those of lost members that are
dialled again. If a member has a new URI, the old one is forgotten before the new one is dialled. A URI is never
forgotten while another wanted member has it.
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
"""The maximum number of entries in a compared part. A peer with a list of our size never sends a larger part."""
COMPARE_CARDS_MAX = 128
"""Cards that one comparison sends."""
HEALS_PER_TICK = 4
"""Lost members that are dialled in one tick."""
LAST_WORDS_NS = 10 * SECOND_NS
"""The connection to a removed node stays open for this time. The layers above may still have to inform it, and to agree
on continuing without it.
"""


class Connectivity:
    def __init__(self, dissemination: Dissemination, detector: FailureDetector, membership: Membership) -> None:
        self._dissemination = dissemination
        self._members = dissemination.members
        self._detector = detector
        self._membership = membership
        self._wanted: dict[int, str] = {}
        """Members with which to keep a session: their URIs by identifier."""
        self._seeds = SeedEndpoints(dissemination, membership)
        self.cluster_nodes: frozenset[int] = frozenset()
        """The nodes that belong to the cluster, present or not."""
        self._lost: dict[int, tuple[int, int]] = {}
        """For each lost member: when to dial it again, and the pause after that."""
        self._revision = -1
        self._compare_ns = 0
        self._offer_ns = 0

    def add_seed(self, uri: str) -> None:
        self._seeds.add(uri)

    def set_cluster_nodes(self, nodes: Mapping[int, str], gone: tuple[str, ...]) -> None:
        """Nodes of our cluster are at these URIs. The nodes at the `gone` URIs were removed."""
        self.cluster_nodes = frozenset(nodes)
        self._revision = -1
        for uri in gone:
            self._seeds.remove(uri, self._wanted.values())
        for uri in nodes.values():
            if uri not in self._seeds and uri != self._membership.card.uri:
                self._seeds.add(uri)

    def update_sessions(self) -> None:
        """Dial new members and forget those that left. Cheap when nothing changed."""
        if self._revision == self._members.revision:
            return
        self._revision = self._members.revision
        targets = self._targets()
        for identifier in [identifier for identifier, uri in self._wanted.items() if not self._is_at(identifier, uri)]:
            self._stop_keeping(identifier)
        if len(self._wanted) > self._dissemination.settings.sessions_max:
            for identifier in [identifier for identifier in self._wanted if identifier not in targets]:
                self._stop_keeping(identifier)
        for identifier in targets:
            self._keep_session(identifier)

    def wants(self, identifier: int) -> bool:
        return identifier in self._wanted

    def forget_all(self) -> None:
        """End all sessions, because this node has left the cluster."""
        for identifier in list(self._wanted):
            self._stop_keeping(identifier)
        self._seeds.clear()
        self._lost.clear()
        self._revision = -1

    def on_tick(self) -> None:
        """Do what is due: compare lists with one peer, advertise messages to one, dial lost members."""
        now_ns, settings = self._dissemination.now_ns, self._dissemination.settings
        if now_ns >= self._compare_ns:
            self._compare_ns = now_ns + settings.sync_ns
            if self._dissemination.sessions:
                self.compare_with(self._dissemination.rng.choice(list(self._dissemination.sessions)))
        if now_ns >= self._offer_ns:
            self._offer_ns = now_ns + settings.repair_ns
            self._dissemination.advertise()
        if self._lost:
            self._heal()
        self._seeds.on_tick(self._wanted.values())

    def compare_with(self, identifier: int) -> None:
        buckets = self._members.buckets()
        bucket = self._dissemination.rng.randrange(buckets)
        entries = tuple(self._members.bucket(buckets, bucket))
        if len(entries) <= COMPARE_ENTRIES_MAX:
            self._dissemination.send(identifier, Compare(buckets, bucket, True, entries))

    def on_compare(self, compare: Compare, sender: int) -> None:
        """Send the entries that are newer in our list, request those that are newer in theirs, and inform members that
        are listed as lost there.
        """
        ours = self._members.bucket(compare.buckets, compare.bucket)
        if len(ours) > COMPARE_ENTRIES_MAX:
            self._dissemination.counts["compares_refused"] += 1
            return
        theirs = {entry.identifier: entry for entry in compare.entries}
        newer_cards, leaves = self._newer(ours, theirs)
        self._membership.send_cards(sender, newer_cards[:COMPARE_CARDS_MAX], tuple(leaves[:COMPARE_CARDS_MAX]))
        by_identifier = {entry.identifier: entry for entry in ours}
        if compare.reply and any(_is_news(entry, by_identifier.get(entry.identifier)) for entry in compare.entries):
            self._dissemination.send(sender, Compare(compare.buckets, compare.bucket, False, tuple(ours)))
        for entry in compare.entries:
            mine = by_identifier.get(entry.identifier)
            if entry.standing is EntryStanding.LOST and mine == ListEntry(
                entry.identifier, entry.incarnation, EntryStanding.PRESENT
            ):
                self._membership.on_claim(entry.identifier, entry.incarnation)

    def _newer(
        self, ours: list[ListEntry], theirs: dict[int, ListEntry]
    ) -> tuple[list[MemberRecord], list[LeaveMessage]]:
        newer_cards, leaves = [], []
        for entry in ours:
            their = theirs.get(entry.identifier)
            record = self._members.get(entry.identifier)
            assert record is not None
            if their is None and entry.standing is not EntryStanding.PRESENT:
                continue
            if their is None or their.incarnation < entry.incarnation:
                newer_cards.append(record.card)
            if record.proof is not None and _is_news(entry, their):
                leaves.append(record.proof)
        return newer_cards, leaves

    def _targets(self) -> dict[int, None]:
        me = self._dissemination.identifier
        if len(self._members) <= self._dissemination.settings.sessions_max + 1:
            return {identifier: None for identifier in self._members.present if identifier != me}
        kept = self._dissemination.settings.always_met | self.cluster_nodes
        configured = [identifier for identifier in self._members.present if identifier in kept and identifier != me]
        return dict.fromkeys([*configured, *self._members.neighbours(me)])

    def _is_at(self, identifier: int, uri: str) -> bool:
        record = self._members.get(identifier)
        return record is not None and record.state is not MemberState.LEFT and record.card.uri == uri

    def _keep_session(self, identifier: int) -> None:
        record = self._members.get(identifier)
        assert record is not None
        self._lost.pop(identifier, None)
        if identifier not in self._wanted:
            self._wanted[identifier] = record.card.uri
            self._dissemination.out.append(Meet(record.card.uri))
            self._detector.watch(identifier, self._dissemination.now_ns)

    def _stop_keeping(self, identifier: int) -> None:
        uri, expelled = self._wanted.pop(identifier), self._members.is_expelled(identifier)
        if not expelled and uri not in self._wanted.values():
            self._dissemination.out.append(Forget(uri))
            self._seeds.on_forgotten(uri)
        self._detector.unwatch(identifier)
        record = self._members.get(identifier)
        if record is not None and record.standing is EntryStanding.LOST:
            # A removed node is not dialled again; its entry only expires in `_heal`.
            wait_ns = self._dissemination.settings.heal_for_ns if expelled else self._dissemination.settings.heal_ns
            self._lost[identifier] = (self._dissemination.now_ns + wait_ns, wait_ns)

    def _heal(self) -> None:
        """Dial lost members whose pause is over, at most `HEALS_PER_TICK`."""
        now_ns, settings = self._dissemination.now_ns, self._dissemination.settings
        left, taken = HEALS_PER_TICK, set(self._wanted.values())
        for identifier, (due_ns, wait_ns) in list(self._lost.items()):
            record = self._members.get(identifier)
            if record is None or record.state is not MemberState.LEFT or record.card.uri in taken:
                del self._lost[identifier]  # it was forgotten, it is back, or another member uses its URI
                continue
            expelled = self._members.is_expelled(identifier)
            for_ns = LAST_WORDS_NS if expelled else settings.heal_for_ns
            if now_ns - record.left_ns > for_ns and (expelled or record.card.uri not in self._seeds):
                del self._lost[identifier]
                self._dissemination.out.append(Forget(record.card.uri))
                continue
            if left and now_ns >= due_ns and identifier not in self._dissemination.sessions:
                left -= 1
                self._dissemination.counts["healing"] += 1
                # `Forget` resets the link's back-off, so that `Meet` dials at once.
                self._dissemination.out += (Forget(record.card.uri), Meet(record.card.uri))
                longer_ns = min(settings.heal_wait_max_ns, wait_ns * 3 // 2)
                jitter_ns = self._dissemination.rng.randrange(wait_ns // 4 + 1)
                self._lost[identifier] = (now_ns + wait_ns + jitter_ns, longer_ns)


def _is_news(entry: ListEntry, held: ListEntry | None) -> bool:
    """Whether this entry contains something that the other list lacks."""
    if held is None:
        return entry.standing is EntryStanding.PRESENT
    if entry.incarnation != held.incarnation:
        return entry.incarnation > held.incarnation
    return entry.standing is not held.standing
