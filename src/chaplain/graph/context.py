"""What the parts of the graph share: who is there, the streams, recent bytes, and the effects of this step.

Decides who a member is and how many confirmations make an event read. Invariants: everything here is bounded by the
settings, or by what is on disk; nobody ceases to be a member by being silent.
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

ACCOUNTS_MAX = 4096


class GraphContext:
    def __init__(
        self,
        settings: GraphSettings,
        identity: Identity,
        rng: Random,
        founders: Iterable[bytes],
        belonging: Callable[[], Sequence[bytes]] | None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.rng = rng
        self.event_label = event_label(settings.cluster)
        self.confirm_label = confirm_label(settings.cluster)
        self.streams: dict[str, Stream] = {}
        self.peers: dict[bytes, Peer] = {}
        """By instance: nodes with which we have a session."""
        self._belonging = belonging or (lambda: ())
        self._listed: Sequence[bytes] = ()
        """What it said last."""
        self._met: dict[bytes, None] = dict.fromkeys(founders)
        """Keys of those who were configured or seen, and have not said good-bye."""
        self._met_others = True
        """There is news of those since we looked."""
        self.known = dict(self._met)
        """Keys of everybody who ever was a member, as far as we heard."""
        self.members: dict[bytes, None] = {}
        """Keys of those whose word counts, ourselves included."""
        self.look()
        self.counts: Counter[str] = Counter()
        self.out: list[GraphEffect] = []
        self.log = rng.randbytes(LOG_BYTES)
        """Names our order of arrival; another process has another."""
        self._bits: dict[bytes, int] = {}
        self._accounts: OrderedDict[bytes, PeerQuota] = OrderedDict()
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._recent_bytes = 0
        self._checks: deque[tuple[int, Callable[[Sequence[bool]], None]]] = deque()
        self._checked: dict[int, Sequence[bool]] = {}
        self._ticket = 0
        self._reads: dict[int, Callable[[Sequence[bytes]], None]] = {}
        self._token = 0

    # Members.

    @property
    def read_at(self) -> int:
        """MAX_CONFIRMS: with its author, so many others are half of the members or more."""
        return len(self.members) // 2

    def member_changed(self, event: MemberChanged) -> None:
        """Who is lost is a member still: it may be well on the other side of a partition (decision 0152)."""
        key = event.member.key
        self.known[key] = None
        self._met_others = True
        if event.member.state is not MemberState.LEFT:
            self._met[key] = None
        elif event.member.graceful:
            self._met.pop(key, None)

    def look(self) -> bool:
        """Find out who the members are now, and say whether they are others than before.

        They are who belongs to the cluster, where that is agreed on. Whoever is not on that list has a log that is
        behind: until it has caught up it counts everybody it met as well, or a few could tell it what they like.
        """
        listed = self._belonging()
        if listed == self._listed and not self._met_others:
            return False
        self._listed, self._met_others = listed, False
        own, before = self.identity.key, self.members
        self.members = dict.fromkeys(listed if own in listed else [own, *self._met, *listed])
        self.known |= self.members
        return self.members != before

    # Streams.

    def stream(self, name: str) -> Stream | None:
        """The stream, made if there is room for one more."""
        found = self.streams.get(name)
        if found is None and len(self.streams) < self.settings.streams_max:
            found = self.streams[name] = Stream(name, self._bits, self.settings.watched_max)
        return found

    # Peers.

    def account(self, peer: Peer, now_ns: int) -> PeerQuota:
        account = self._accounts.pop(peer.key, None) or PeerQuota(self.settings, now_ns)
        self._accounts[peer.key] = account
        if len(self._accounts) > ACCOUNTS_MAX:
            self._accounts.popitem(last=False)
        return account

    def refuse(self, why: str) -> None:
        self.counts[f"refused_{why.replace(' ', '_')}"] += 1

    def strike(self, now_ns: int, instance: bytes, why: str, weight: int = 1) -> None:
        self.refuse(why)
        peer = self.peers.get(instance)
        if peer is not None and self.account(peer, now_ns).strike(now_ns, weight):
            self.counts["peers_banned"] += 1
            detail: dict[str, str | int] = {"reason": why, "seconds": self.settings.ban_ns // 10**9}
            self.out.append(Report("graph: not listening", f"{peer.identifier:08x}", detail))

    def tell(self, instance: bytes, message: GraphMessage) -> None:
        self.out.append(Whisper(instance, self._content(message)))

    def tell_all(self, message: GraphMessage, but: bytes = b"") -> None:
        content = self._content(message)
        self.out.extend(Whisper(instance, content) for instance in self.peers if instance != but)

    def _content(self, message: GraphMessage) -> bytes:
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
        """Have the bytes of these durable events, from memory or from disk; empty for one that cannot be read."""
        known = [self.recent(stream.model.id_of(number)) for number in numbers]
        absent = [number for number, raw in zip(numbers, known, strict=True) if raw is None]
        if not absent:
            then([raw or b"" for raw in known])
            return

        def merge(raws: Sequence[bytes]) -> None:
            ids = [stream.model.id_of(number) for number in absent]
            found = iter([self._whole(raw, event_id) for raw, event_id in zip(raws, ids, strict=True)])
            then([next(found) if raw is None else raw for raw in known])

        self._token += 1
        self._reads[self._token] = merge
        self.out.append(ReadEvents(self._token, tuple(stream.place_of(number) for number in absent)))

    def _whole(self, raw: bytes, event_id: bytes) -> bytes:
        if hashlib.sha256(raw).digest() == event_id:
            return raw
        self.counts["events_unreadable"] += 1
        return b""

    def was_read(self, token: int, raws: Sequence[bytes]) -> None:
        self._reads.pop(token)(raws)

    # Signatures.

    def check(self, checks: Sequence[SignatureCheck], then: Callable[[Sequence[bool]], None]) -> None:
        """Have signatures checked; what follows, follows in the order in which it was asked for."""
        self._ticket += 1
        self._checks.append((self._ticket, then))
        if len(checks) > self.settings.checks_inline_max:
            self.out.append(CheckSignatures(self._ticket, tuple(checks)))
        else:
            self.checked(self._ticket, [holds(check) for check in checks])

    def checked(self, ticket: int, results: Sequence[bool]) -> None:
        self._checked[ticket] = results
        while self._checks and self._checks[0][0] in self._checked:
            ticket, then = self._checks.popleft()
            then(self._checked.pop(ticket))
