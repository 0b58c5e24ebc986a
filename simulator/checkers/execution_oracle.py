"""A reference implementation of execution: decides one message after the other in one loop, without caches.

It shares the formats with the journal, but none of its rules: packs are decoded message by message, signatures are
always verified, lanes are lists. The journal's executors must decide the same about every agreed message.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from chaplain.errors import Malformed
from chaplain.journal.execution import two_phase
from chaplain.journal.messages import conditions as conditional
from chaplain.journal.messages import config, ingest
from chaplain.journal.messages.cluster import Body, ConfigEntry, encode_body, genesis
from chaplain.journal.messages.config import (
    AddIdentity,
    FenceLane,
    LeaseLane,
    MakeCheckpoint,
    ReleaseLane,
    RemoveIdentity,
    RetireLane,
    acl_id,
)
from chaplain.journal.messages.consumer import CONSUMER
from chaplain.journal.model.bootstrap import ClusterBootstrap
from chaplain.segment.headers import decode_headers
from chaplain.segment.pack import Pack, decode_pack, encode_pack, stated_digest


class OracleLane:
    def __init__(self, acl: bytes, nonce: bytes, used_ns: int) -> None:
        self.acl = acl
        self.nonce = nonce
        self.used_ns = used_ns
        self.last = 0
        self.fenced = False
        self.written: list[tuple[int, int, bytes]] = []
        """First id, last id and signed bytes of every pack that was applied."""


class OracleClient:
    def __init__(self, key: bytes, name: str, writes: tuple[str, ...], admin: bool) -> None:
        self.key = key
        self.name = name
        self.writes = writes
        self.admin = admin
        self.end = ""
        self.wish = b""


class Oracle:
    def __init__(self, founding: ClusterBootstrap) -> None:
        self._founding = founding
        self._clients: dict[bytes, OracleClient] = {}
        for number, seed in enumerate(founding.clients):
            self._clients[acl_id(0, 0, number + 1)] = OracleClient(seed.key, seed.name, seed.writes, seed.admin)
        self._lanes: dict[int, OracleLane] = {}
        self._leases = 0
        self._epochs = [(genesis(founding.cluster)[:16], 0)]
        """Token and first message of each epoch in which a request may have been signed; the last one is current."""
        self._epoch_requests = 0
        self._answers: dict[tuple[int, bytes], tuple[int, str]] = {}
        """For every decided request: the epoch in which it was signed, and the decision."""
        self._asked: set[tuple[int, bytes]] = set()
        """Requests that the current message decides."""
        self.commands: set[tuple[int, int]] = set()
        """Lane and first request id of every pack of commands to consumers."""
        self.rows: dict[str, list[tuple[int, int, bytes]]] = {}
        """Every message of each stream: lane, request id, value."""
        self.keys: dict[str, list[bytes | None]] = {}
        """The key of every message of each stream."""
        self.tagged: dict[str, list[tuple[int, str]]] = {}
        """Offset of the last message, and tag, of every tagged request of each stream."""
        self.refused: dict[tuple[int, int], tuple[str, int]] = {}
        """Lane and first request id of every pack whose conditions did not hold: the reason, and the offset."""
        self._tracked_from: dict[str, int] = {}
        """The head of each stream when the first condition asked about one of its keys."""
        self._tokens: dict[tuple[str, str], int] = {}
        self._staged: dict[tuple[int, int], tuple[int, str, bytes, bytes, Pack]] = {}
        """Staged packs, by lane and first id: last id, stream, digest, identity."""
        self._owed: list[tuple[int, int, str, bytes, bytes]] = []
        self._committed = 0
        self._versions: dict[tuple[bytes, str], tuple[int, int]] = {}
        self.chains: dict[str, bytes] = {}
        self._links: dict[str, tuple[int, bytes]] = {}
        """What the current message wrote to each stream: first offset, and the digests of the packs."""

    def judge(self, body: Body, payloads: tuple[bytes, ...]) -> list[Any]:
        """The required decision for each entry: a list of (reason, base offset) for data, (reason, lane) otherwise."""
        for client_id, lane in list(self._lanes.items()):
            if body.timestamp_ns - lane.used_ns > self._founding.policy.lane_idle_ns:
                del self._lanes[client_id]
        arrived = list(payloads)
        decided: list[Any] = []
        for number, entry in enumerate(body.entries):
            if isinstance(entry, ConfigEntry):
                decided.append(self._configure(body, number, entry))
            else:
                payload = arrived.pop(0)
                assert sha256(payload).digest() == entry.digest
                decided.append(self._write_all(body, payload, entry.reference))
        self._link()
        self._end_epoch(body)
        return decided

    def _end_epoch(self, body: Body) -> None:
        bounds = self._founding.policy.epochs
        self._epoch_requests += len(self._asked)
        self._asked.clear()
        old = body.index - self._epochs[-1][1] >= bounds.epoch_messages
        if old or self._epoch_requests >= bounds.epoch_requests:
            digest = sha256(b"chaplain cluster chain\0" + body.previous + encode_body(body)).digest()
            self._epochs = [*self._epochs, (digest[:16], body.index)][-bounds.epochs_kept :]
            self._epoch_requests = 0

    def _link(self) -> None:
        label = b"chaplain stream chain\0"
        for stream, (first, digests) in self._links.items():
            begin = sha256(label + b"genesis\0" + self._founding.cluster.encode() + b"\0" + stream.encode()).digest()
            count = len(self.rows[stream]) - first
            place = first.to_bytes(8, "big") + count.to_bytes(8, "big")
            self.chains[stream] = sha256(label + self.chains.get(stream, begin) + place + digests).digest()
        self._links.clear()

    # Data.

    def _write_all(self, body: Body, payload: bytes, reference: object) -> list[tuple[str, int]]:
        try:
            message = ingest.decode(payload)
        except Malformed:
            return []
        if message.reference != reference:
            return []
        return [self._write(body, entry.stream, bytes(entry.raw)) for entry in message.entries]

    def _write(self, body: Body, stream: str, raw: bytes) -> tuple[str, int]:
        try:
            pack = decode_pack(raw)
        except Malformed:
            return "broken", -1
        if not pack.client_id or not pack.first_id:
            return "malformed", -1  # lanes and requests count from 1
        if self._is_next(stream, pack, raw):
            self._owed.pop(0)
            return "applied", self._append(stream, pack, stated_digest(raw))
        lane = self._lanes.get(pack.client_id)
        if lane is None:
            return "unknown_lane", -1
        client = self._clients[lane.acl]
        if client.end:
            return client.end, -1
        if not self._signed(client, stream, pack, raw):
            return "signature", -1
        if pack.message_type in (two_phase.COMMIT, two_phase.DISCARD):
            if stream != "_transactions":
                return "no_right", -1
        elif pack.message_type == CONSUMER:
            if stream.startswith("_"):
                return "no_right", -1  # the clients of the workloads may read all streams
        elif stream.startswith("_") or not any(fnmatchcase(stream, pattern) for pattern in client.writes):
            return "no_right", -1
        return self._apply(body, stream, pack, lane, stream.encode() + b"\0" + stated_digest(raw))

    def _signed(self, client: OracleClient, stream: str, pack: Pack, raw: bytes) -> bool:
        if encode_pack(pack) != raw or pack.signature_type != 1:
            return False
        cluster = self._founding.cluster.encode()
        names = bytes((len(cluster),)) + cluster + bytes((len(stream),)) + stream.encode()
        try:
            VerifyKey(client.key).verify(b"chaplain request 1\0" + names + stated_digest(raw), pack.signature)
        except (BadSignatureError, ValueError):
            return False
        return True

    def _apply(self, body: Body, stream: str, pack: Pack, lane: OracleLane, signed: bytes) -> tuple[str, int]:
        counts = pack.request_counts or (1,) * len(pack.values)
        first, last = pack.first_id, pack.first_id + len(counts) - 1
        remembered = lane.written[-self._founding.policy.remembered_packs :]
        if first <= lane.last:
            met = [known for known in remembered if known[0] <= last and first <= known[1]]
            if not met:
                return "old", -1
            if met[-1] == (first, last, signed) or lane.nonce.startswith(b"retry of"):
                return "duplicate", -1
            self._clients[lane.acl].end = "compromised"
            return "compromised", -1
        if lane.fenced:
            return "fenced", -1
        if first > lane.last + 1:
            return "gap", -1
        kind, base = "applied", -1
        if pack.conditional:
            kind, base = self._conditions(stream, pack)
            if kind == "bad_command":
                return kind, -1
        if pack.message_type == two_phase.STAGED:
            kind = "staged"
            self._staged[pack.client_id, first] = (last, stream, signed[-32:], lane.acl, pack)
        elif pack.message_type in (two_phase.COMMIT, two_phase.DISCARD):
            kind, base = self._commit(lane.acl, pack.values, pack.message_type == two_phase.DISCARD)
            if kind != "committed":
                return kind, -1
        elif pack.message_type == CONSUMER:
            kind = "committed"  # `ConsumerChecker` judges the commands
            self.commands.add((pack.client_id, first))
        elif kind != "applied":
            self.refused[pack.client_id, first] = (kind, base)
        else:
            base = self._append(stream, pack, signed[-32:])
            if pack.conditional:
                tags = _tags_of(pack)
                self.tagged.setdefault(stream, []).extend((base + len(pack.values) - 1, tag) for tag in tags)
        lane.last, lane.used_ns = last, body.timestamp_ns
        lane.written.append((first, last, signed))
        return kind, base

    def _append(self, stream: str, pack: Pack, digest: bytes) -> int:
        rows = self.rows.setdefault(stream, [])
        base = len(rows)
        begun, digests = self._links.get(stream, (base, b""))
        self._links[stream] = (begun, digests + digest)
        self.keys.setdefault(stream, []).extend(pack.keys or [None] * len(pack.values))
        values = list(pack.values)
        for place, count in enumerate(pack.request_counts or (1,) * len(pack.values)):
            rows += [(pack.client_id, pack.first_id + place, values.pop(0)) for _ in range(count)]
        return base

    # Conditions. The bounds are never reached here.

    def _conditions(self, stream: str, pack: Pack) -> tuple[str, int]:
        cell = pack.headers[0] if pack.headers else None
        try:
            value = decode_headers(cell)[conditional.HEADER] if cell is not None else b""
            asked = conditional.decode(value)
            _tags_of(pack)
        except (Malformed, KeyError):
            return "bad_command", -1
        keys = self.keys.get(stream, [])
        for one in asked:
            if isinstance(one, conditional.Fence):
                if one.token < self._tokens.get((stream, one.name), 0):
                    return "stale_token", len(keys)
                self._tokens[stream, one.name] = one.token
        for one in asked:
            if isinstance(one, conditional.NextOffset) and one.offset != len(keys):
                return "conflict", len(keys)
            if isinstance(one, conditional.KeyUnchanged | conditional.TagUnchanged):
                floor = self._tracked_from.setdefault(stream, len(keys))
                if isinstance(one, conditional.KeyUnchanged):
                    after = [at for at in range(floor, len(keys)) if keys[at] == one.key]
                else:
                    after = [at for at, tag in self.tagged.get(stream, ()) if at >= floor and tag == one.tag]
                if one.since > len(keys):
                    return "conflict", len(keys)
                if after and after[-1] >= one.since:
                    return "conflict", after[-1]
                if not after and one.since < floor:
                    return "outside_window", floor
        return "applied", -1

    # Two phases.

    def _is_next(self, stream: str, pack: Pack, raw: bytes) -> bool:
        """True if this is exactly the committed pack that comes next."""
        if pack.message_type != two_phase.STAGED or not self._owed:
            return False
        client_id, first, owed_stream, digest, acl = self._owed[0]
        known = (pack.client_id, pack.first_id, stream, stated_digest(raw)) == (client_id, first, owed_stream, digest)
        return known and self._signed(self._clients[acl], stream, pack, raw)

    def _commit(self, acl: bytes, values: tuple[bytes, ...], drop: bool) -> tuple[str, int]:
        try:
            wanted = two_phase.decode(values[0])
        except Malformed:
            return "not_staged", -1
        version, ticket = self._versions.get((acl, wanted.app), (-1, 0))
        if drop or (wanted.app and wanted.version <= version):
            for span in wanted.spans:
                self._drop(acl, span)
            return "committed", self._committed if drop else ticket
        found = []
        for span in wanted.spans:
            reached = span.first_id
            while reached <= span.last_id:
                staged = self._staged.get((span.client_id, reached))
                if staged is None or staged[3] != acl or staged[0] > span.last_id:
                    return "not_staged", -1
                found.append((span.client_id, reached, *staged[1:4]))
                reached = staged[0] + 1
        if len(set(found)) < len(found):
            return "not_staged", -1
        for one in found:
            del self._staged[one[:2]]
        self._owed += found
        self._committed += len(found)
        self._versions[acl, wanted.app] = (wanted.version, self._committed)
        return "committed", self._committed

    def _drop(self, acl: bytes, span: two_phase.RequestRange) -> None:
        """Whole packs of this identity, up to the first that is not there."""
        reached = span.first_id
        while reached <= span.last_id:
            staged = self._staged.get((span.client_id, reached))
            if staged is None or staged[3] != acl or staged[0] > span.last_id:
                return
            del self._staged[span.client_id, reached]
            reached = staged[0] + 1

    # Configuration.

    def _configure(self, body: Body, number: int, entry: ConfigEntry) -> tuple[str, int]:
        try:
            petition = config.decode(entry.entry_type, entry.stage, entry.data)
        except Malformed:
            return "unknown_type", 0
        signer = self._clients.get(petition.signer)
        if signer is None or signer.end:
            return "unknown_signer", 0
        if not config.signature_holds(petition, self._founding.cluster, signer.key):
            return "signature", 0
        signed = [index for token, index in self._epochs if token == petition.epoch]
        if not signed:
            return "expired", 0
        name = (entry.entry_type, petition.covered[:-16])
        epoch, answer = self._answers.get(name, (-1, ""))
        if epoch >= self._epochs[0][1]:
            if answer != "applied" and signed[0] <= epoch:
                return answer, 0
            if answer == "applied" and isinstance(petition.message, LeaseLane):
                return self._leased(petition.signer, petition.nonce) or ("unknown_lane", 0)
            if answer == "applied" and isinstance(petition.message, MakeCheckpoint):
                return "applied", 0
        kind, lane = self._grant(body, number, petition, signer)
        if kind == "applied" or not isinstance(petition.message, LeaseLane):
            self._answers[name] = (signed[0], kind)
            self._asked.add(name)
        return kind, lane

    def _grant(self, body: Body, number: int, petition: config.ConfigRequest, signer: OracleClient) -> tuple[str, int]:
        message = petition.message
        match message:
            case LeaseLane():
                return self._lease(body, petition.signer, petition.nonce, message)
            case AddIdentity():
                acl = acl_id(body.regime, body.index, number)
                return self._add(acl, message, petition.signer + petition.nonce, signer)
            case RemoveIdentity():
                return self._remove(message, petition.signer, signer), 0
            case MakeCheckpoint():
                return ("applied" if signer.admin else "refused"), 0
            case FenceLane() | ReleaseLane() | RetireLane():
                lane = self._lanes.get(message.client_id)
                if lane is None or not (signer.admin or lane.acl == petition.signer):
                    return "refused", 0
                if isinstance(message, ReleaseLane):
                    del self._lanes[message.client_id]
                elif isinstance(message, RetireLane):
                    if lane.acl != message.acl:
                        return "refused", 0
                    lane.fenced, lane.nonce, lane.written = True, b"", lane.written[-8:]
                elif not lane.fenced:
                    lane.fenced, lane.used_ns = True, body.timestamp_ns
                return "applied", message.client_id
            case _:
                return "refused", 0  # nodes do not change in this workload

    def _lease(self, body: Body, signer: bytes, nonce: bytes, message: LeaseLane) -> tuple[str, int]:
        if message.acl != signer:
            return "refused", 0
        if known := self._leased(signer, nonce):
            return known
        self._leases += 1
        self._lanes[self._leases] = OracleLane(signer, nonce, body.timestamp_ns)
        return "applied", self._leases

    def _leased(self, signer: bytes, nonce: bytes) -> tuple[str, int] | None:
        for client_id, lane in self._lanes.items():
            if (lane.acl, lane.nonce) == (signer, nonce):
                return "applied", client_id
        return None

    def _remove(self, message: RemoveIdentity, asking: bytes, signer: OracleClient) -> str:
        client = self._clients.get(message.acl)
        if client is None or not (signer.admin or message.acl == asking):
            return "refused"
        admins = [one for one in self._clients.values() if one.admin and not one.end]
        if admins == [client]:
            return "refused"
        client.end = client.end or "removed"
        return "applied"

    def _add(self, acl: bytes, message: AddIdentity, wish: bytes, signer: OracleClient) -> tuple[str, int]:
        if not signer.admin:
            return "refused", 0
        if any(client.wish == wish for client in self._clients.values()):
            return "applied", 0
        active = [client for client in self._clients.values() if not client.end]
        if any(client.name == message.name or client.key == message.key[:32] for client in active):
            return "refused", 0
        self._clients[acl] = OracleClient(message.key, message.name, message.writes, message.admin)
        self._clients[acl].wish = wish
        return "applied", 0


def _tags_of(pack: Pack) -> tuple[str, ...]:
    cell = pack.headers[0] if pack.headers else None
    headers = decode_headers(cell) if cell is not None else {}
    return conditional.decode_tags(headers["chaplain-tags"]) if "chaplain-tags" in headers else ()
