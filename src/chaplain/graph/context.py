"""State that the parts of the graph share: members, peers, streams, recently used events, and the effects of this step.

Decides which nodes are members, and how many confirmations make an event read. Invariants: all state is bounded by the
settings or by what is on disk; silence alone never ends a membership.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from random import Random

from chaplain.core import Report
from chaplain.gossip.events import MemberChanged, MemberState
from chaplain.graph.events import CheckSignatures, GraphEffect, ReadEvents, SignatureCheck, holds
from chaplain.graph.messages import peer as messages
from chaplain.graph.messages.client import LOG_BYTES
from chaplain.graph.messages.event import confirm_label, event_label
from chaplain.graph.messages.peer import GraphMessage
from chaplain.graph.peer_quota import PeerQuota
from chaplain.graph.settings import GraphSettings
from chaplain.graph.stream import Stream
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Whisper
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

QUOTAS_MAX = 4096
"""Peers with a quota record; beyond this the least recently used record is dropped."""


class GraphContext:
    def __init__(
        self,
        settings: GraphSettings,
        identity: Identity,
        rng: Random,
        founders: Iterable[bytes],
        cluster_members: Callable[[], Sequence[bytes]] | None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.rng = rng
        self.event_label = event_label(settings.cluster)
        self.confirm_label = confirm_label(settings.cluster)
        self.streams: dict[str, Stream] = {}
        self.peers: dict[bytes, Peer] = {}
        """By instance: peers with an open session."""
        self._cluster_members = cluster_members or (lambda: ())
        self._agreed: Sequence[bytes] = ()
        """The agreed member list as of the last `refresh_members`."""
        self._seen: dict[bytes, None] = dict.fromkeys(founders)
        """Keys of nodes that were configured or seen, and have not left gracefully."""
        self._seen_changed = True
        """True if `_seen` has changed since the last `refresh_members`."""
        self.known = dict(self._seen)
        """Keys of all nodes that have ever been members, as far as this node knows."""
        self.members: dict[bytes, None] = {}
        """Keys of the members whose confirmations count, including this node."""
        self.refresh_members()
        self.counts: Counter[str] = Counter()
        self.out: list[GraphEffect] = []
        self.log = rng.randbytes(LOG_BYTES)
        """Random id of this process's arrival order; a position is valid only with the id of the log that issued it."""
        self._member_bits: dict[bytes, int] = {}
        self._quotas: OrderedDict[bytes, PeerQuota] = OrderedDict()
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._recent_bytes = 0
        self._checks: deque[tuple[int, Callable[[Sequence[bool]], None]]] = deque()
        self._checked: dict[int, Sequence[bool]] = {}
        self._ticket = 0
        self._reads: dict[int, Callable[[Sequence[bytes]], None]] = {}
        self._token = 0
        self._stepped_ns = 0
        self._paused_until_ns = 0

    # Time.

    def note_step(self, now_ns: int) -> None:
        """Notice a pause of the process: what it receives next may have waited as long as the pause lasted."""
        pause_ns = max(self.settings.pause_ns, 2 * self.settings.sync_ns)
        if self._stepped_ns and now_ns - self._stepped_ns > pause_ns:
            self._paused_until_ns = now_ns + pause_ns
        self._stepped_ns = now_ns

    def was_paused(self, now_ns: int) -> bool:
        return now_ns < self._paused_until_ns

    # Members.

    @property
    def read_at(self) -> int:
        """The number of confirmations that make an event read (MAX_CONFIRMS of graph.txt). By default, half of the
        number of members, rounded down. The author does not confirm its own event, so these members and the author are
        more than half of the members.
        """
        return self.settings.max_confirms or len(self.members) // 2

    def member_changed(self, event: MemberChanged) -> None:
        """Record a membership change from gossip.

        A lost node stays a member: it may be alive on the other side of a partition (docs/decisions/member-lists.md).
        """
        key = event.member.key
        self.known[key] = None
        self._seen_changed = True
        if event.member.state is not MemberState.LEFT:
            self._seen[key] = None
        elif event.member.graceful:
            self._seen.pop(key, None)

    def refresh_members(self) -> bool:
        """Recompute the members; return True if they changed.

        The members are those of the agreed list. If this node is not on that list, its own log is behind. Until it has
        caught up, it also counts every node that it has seen: otherwise a few nodes could make it accept any event as
        read.
        """
        listed = self._cluster_members()
        if listed == self._agreed and not self._seen_changed:
            return False
        self._agreed, self._seen_changed = listed, False
        own, before = self.identity.key, self.members
        self.members = dict.fromkeys(listed if own in listed else [own, *self._seen, *listed])
        self.known |= self.members
        return self.members != before

    # Streams.

    def stream(self, name: str) -> Stream | None:
        """Return the stream; create it if fewer than `streams_max` exist."""
        found = self.streams.get(name)
        if found is None and len(self.streams) < self.settings.streams_max:
            found = self.streams[name] = Stream(name, self._member_bits, self.settings.watched_max)
        return found

    # Peers.

    def quota(self, peer: Peer, now_ns: int) -> PeerQuota:
        quota = self._quotas.pop(peer.key, None) or PeerQuota(self.settings, now_ns)
        self._quotas[peer.key] = quota
        if len(self._quotas) > QUOTAS_MAX:
            self._quotas.popitem(last=False)
        return quota

    def count_refusal(self, why: str) -> None:
        self.counts[f"refused_{why.replace(' ', '_')}"] += 1

    def strike(self, now_ns: int, instance: bytes, why: str, weight: int = 1) -> None:
        self.count_refusal(why)
        peer = self.peers.get(instance)
        if peer is not None and self.quota(peer, now_ns).strike(now_ns, weight):
            self.counts["peers_banned"] += 1
            detail: dict[str, str | int] = {"reason": why, "seconds": self.settings.ban_ns // 10**9}
            self.out.append(Report("graph: not listening", f"{peer.identifier:08x}", detail))

    def send(self, instance: bytes, message: GraphMessage) -> None:
        self.out.append(Whisper(instance, self._encode(message)))

    def broadcast(self, message: GraphMessage, except_instance: bytes = b"") -> None:
        content = self._encode(message)
        self.out.extend(Whisper(instance, content) for instance in self.peers if instance != except_instance)

    def _encode(self, message: GraphMessage) -> bytes:
        body, payload = messages.encode(message)
        return parcel.encode(Parcel(self.identity.identifier, Layer.GRAPH, body, payload))

    # Bytes.

    def remember(self, event_id: bytes, raw: bytes) -> None:
        if event_id in self._recent:
            return
        self._recent[event_id] = raw
        self._recent_bytes += len(raw)
        while self._recent_bytes > self.settings.recent_bytes_max:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1])

    def recent(self, event_id: bytes) -> bytes | None:
        return self._recent.get(event_id)

    def read(self, stream: Stream, numbers: Sequence[int], then: Callable[[Sequence[bytes]], None]) -> None:
        """Pass the bytes of these durable events to `then`, from memory or from disk; empty bytes for an unreadable
        event.
        """
        known = [self.recent(stream.model.id_of(number)) for number in numbers]
        absent = [number for number, raw in zip(numbers, known, strict=True) if raw is None]
        if not absent:
            then([raw or b"" for raw in known])
            return

        def merge(raws: Sequence[bytes]) -> None:
            ids = [stream.model.id_of(number) for number in absent]
            found = iter([self._verified(raw, event_id) for raw, event_id in zip(raws, ids, strict=True)])
            then([next(found) if raw is None else raw for raw in known])

        self._token += 1
        self._reads[self._token] = merge
        self.out.append(ReadEvents(self._token, tuple(stream.place_of(number) for number in absent)))

    def _verified(self, raw: bytes, event_id: bytes) -> bytes:
        """Return the bytes if they match the event id, else count the event as unreadable and return empty bytes."""
        if hashlib.sha256(raw).digest() == event_id:
            return raw
        self.counts["events_unreadable"] += 1
        return b""

    def on_read(self, token: int, raws: Sequence[bytes]) -> None:
        self._reads.pop(token)(raws)

    # Signatures.

    def check(self, checks: Sequence[SignatureCheck], then: Callable[[Sequence[bool]], None]) -> None:
        """Verify signatures, then call `then` with the results. The callbacks run in the order of the `check` calls,
        even if worker threads finish in another order.
        """
        self._ticket += 1
        self._checks.append((self._ticket, then))
        if len(checks) > self.settings.checks_inline_max:
            self.out.append(CheckSignatures(self._ticket, tuple(checks)))
        else:
            self.on_checked(self._ticket, [holds(check) for check in checks])

    def on_checked(self, ticket: int, results: Sequence[bool]) -> None:
        self._checked[ticket] = results
        while self._checks and self._checks[0][0] in self._checked:
            ticket, then = self._checks.popleft()
            then(self._checked.pop(ticket))
