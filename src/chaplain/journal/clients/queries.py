"""Answers what clients ask of one node: who am I, how far is a lane, what is there, and proof against a compromised
one.

Decides from the executed state and the asker's identity, nothing else. Writing, reading and petitions are elsewhere.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from chaplain.errors import Malformed
from chaplain.journal.clients.describe import of_assembly
from chaplain.journal.consensus.events import ReadLog, RecordDamaged
from chaplain.journal.events import Locate, ToClient
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.client import (
    AskLane,
    AskProof,
    Failed,
    LaneIs,
    Listed,
    ListStreams,
    PaidAre,
    ProofIs,
    Run,
    Wrapped,
    WrapSecret,
)
from chaplain.journal.messages.signing import SECRET_BYTES, WRAP_NONCE_BYTES, SignatureType, Wrapping
from chaplain.journal.model.receipts import run_of
from chaplain.journal.model.records import ClientIdentity, IdentityStatus, LaneState, RequestPosition
from chaplain.journal.storage.offset_index import StreamIndex
from chaplain.journal.storage.pack_lookup import PackLookup
from chaplain.link.auth.identity import KEY_BYTES
from chaplain.rights import may_read
from chaplain.segment.record import Record

ServiceEffect: TypeAlias = ToClient | ReadLog | RecordDamaged
PAGE_STREAMS_MAX = 256
"""Streams looked at for one page of the list of streams."""
PROOFS_MAX = 64
"""Proofs that are being read from the log."""


class _Search(msgspec.Struct):
    """A proof on its way from the log."""

    instance: bytes
    call: int
    client: ClientIdentity
    places: tuple[RequestPosition, ...]
    packs: list[bytes]


class ClientQueries:
    def __init__(
        self,
        execution: JournalExecution,
        chance: random.Random,
        wrapping: Wrapping | None,
        locate: Locate,
        streams: StreamIndex,
    ) -> None:
        self._execution = execution
        self._chance = chance
        self._wrapping = wrapping
        self._locate = locate
        self._streams = streams
        self._searches: dict[int, _Search] = {}
        self._token = 0
        self.effects: list[ServiceEffect] = []

    def lane(self, instance: bytes, client: ClientIdentity, ask: AskLane) -> None:
        lane = self._execution.state.lanes.get(ask.client_id)
        index = self._execution.applied_index
        if lane is None:
            answer = LaneIs(ask.call, ask.client_id, False, 0, False, index)
        else:
            run = _receipt_in(lane, ask.request) if lane.acl == client.acl else None
            answer = LaneIs(ask.call, ask.client_id, True, lane.last_id, lane.fenced, index, run)
        self.effects.append(ToClient(instance, answer))

    def paid(self, instance: bytes, call: int) -> None:
        """How far the packs that were committed are, all of them, in the order of their commits."""
        holding = self._execution.state.staged_packs
        answer = PaidAre(call, self._execution.applied_index, holding.committed_total, holding.replayed)
        self.effects.append(ToClient(instance, answer))

    def streams(self, instance: bytes, ask: ListStreams, client: ClientIdentity) -> None:
        """One page: at most `PAGE_STREAMS_MAX` names are looked at, whether the client may read them or not."""
        names, tails = self._streams.names, self._execution.state.streams
        first = bisect_right(names, ask.after)
        page = names[first : first + PAGE_STREAMS_MAX]
        listed = [
            {
                "stream": name,
                "next_offset": tails[name].next_offset,
                "chain": tails[name].chain.hex(),
                "first_offset": self._streams.first_offset(name),
            }
            for name in page
            if may_read(client, name)
        ]
        after = page[-1] if first + len(page) < len(names) else ""
        answer = msgspec.json.encode({"streams": listed, "after": after})
        self.effects.append(ToClient(instance, Listed(ask.call), answer))

    def nodes(self, instance: bytes, call: int) -> None:
        census = of_assembly(self._execution.cluster_config)
        self.effects.append(ToClient(instance, Listed(call), msgspec.json.encode(census)))

    def clients(self, instance: bytes, call: int, client: ClientIdentity) -> None:
        if not client.admin:
            self._fail(instance, call, "not_allowed", "only an admin may see who there is")
            return
        listed = [
            {
                "name": one.name,
                "acl": one.acl.hex(),
                "key": one.key.hex(),
                "status": IdentityStatus(one.status).name.lower(),
                "admin": one.admin,
                "writes": one.writes,
                "reads": one.reads,
                "signature": SignatureType(one.signature_type).name.lower(),
                "lanes": self._execution.state.lane_counts.get(one.acl, 0),
            }
            for one in self._execution.state.clients.values()
        ]
        self.effects.append(ToClient(instance, Listed(call), msgspec.json.encode(listed)))

    def wrap(self, instance: bytes, wish: WrapSecret, secret: bytes, client: ClientIdentity) -> None:
        if not client.admin or self._wrapping is None:
            why = "only an admin may, and the cluster must have been founded with a wrapping key"
            self._fail(instance, wish.call, "not_allowed", why)
        elif len(secret) != SECRET_BYTES or len(wish.key) != KEY_BYTES:
            why = f"a secret has {SECRET_BYTES} octets and a key {KEY_BYTES}"
            self._fail(instance, wish.call, "malformed", why)
        else:
            wrapped = self._wrapping.wrap(secret, wish.key, self._chance.randbytes(WRAP_NONCE_BYTES))
            self.effects.append(ToClient(instance, Wrapped(wish.call), wrapped))

    # Proof.

    def proof(self, instance: bytes, ask: AskProof) -> None:
        """Find both requests in the log. Anybody with a session may ask: proof is there to be seen."""
        proof = self._execution.state.proofs.get(ask.acl)
        client = self._execution.state.clients.get(ask.acl)
        if proof is None or client is None:
            self._fail(instance, ask.call, "unknown", "nothing is proven against this identity")
        elif len(self._searches) >= PROOFS_MAX:
            self._fail(instance, ask.call, "busy", "too many proofs are being read: ask again later")
        else:
            self._search(_Search(instance, ask.call, client, (proof.first, proof.second), []))

    def _search(self, search: _Search) -> None:
        place = search.places[len(search.packs)]
        span = self._locate(place.index, 1)
        if span is None:
            why = "the request is not in the log of this node, not yet or no more: ask later, or another node"
            self._fail(search.instance, search.call, "busy", why)
            return
        self._token += 1
        self._searches[self._token] = search
        self.effects.append(ReadLog(self._token, *span))

    def read(self, token: int, records: Sequence[Record]) -> None:
        search = self._searches.pop(token, None)
        if search is None:
            return
        try:
            place = search.places[len(search.packs)]
            search.packs.append(PackLookup(records).pack(place.index, place.entry, place.pack))
        except Malformed as wrong:
            self.effects.append(RecordDamaged(search.places[len(search.packs)].index))
            self._fail(search.instance, search.call, "damaged", f"{wrong}: ask another node, or later")
            return
        if len(search.packs) < len(search.places):
            self._search(search)
        else:
            self._prove(search)

    def _prove(self, search: _Search) -> None:
        first, second = search.places
        streams = (first.stream, len(search.packs[0]), second.stream)
        answer = ProofIs(search.call, self._execution.cluster, search.client.key, *streams)
        self.effects.append(ToClient(search.instance, answer, b"".join(search.packs)))

    def _fail(self, instance: bytes, call: int, kind: str, reason: str) -> None:
        self.effects.append(ToClient(instance, Failed(call, kind, reason)))


def _receipt_in(lane: LaneState, request: int) -> Run | None:
    """Of the pack with this request, if the lane still remembers it."""
    found = (run_of(lane.client_id, one) for one in lane.recent if one.first_id <= request <= one.last_id)
    return next(found, None)
