"""Clients of a simulated journal, honest and not, and a rogue ingest node.

An honest client keeps a request until it is answered, and sends the same bytes again to any node: when it learns of a
gap or of a busy node, after a short pause, as the real client does, and when it gets no answer. A thief has a copy of
an honest client's key. The rogue ingest node is a member of the cluster whose messages contain packs of all clients in
any order, duplicated, damaged, or none at all. Execution must decide the same about them on every node.
"""

from __future__ import annotations

from hashlib import sha512
from random import Random
from typing import TYPE_CHECKING

from nacl import bindings

from chaplain.journal.events import JournalParcel
from chaplain.journal.messages import client as client_messages
from chaplain.journal.messages import config, ingest, peer
from chaplain.journal.messages.client import (
    AlreadyWritten,
    Decided,
    GoBack,
    NodeMessage,
    NotWritten,
    Receipts,
    Run,
    SubmitPetition,
    Write,
)
from chaplain.journal.messages.cluster import Reference, genesis
from chaplain.journal.messages.config import (
    EPOCH_BYTES,
    FenceLane,
    LeaseLane,
    RemoveIdentity,
    RetireLane,
    entry_type_of,
)
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.peer import (
    AskState,
    ForwardConfigRequest,
    Payload,
    PeerMessage,
    SnapshotOffer,
    StatePiece,
)
from chaplain.journal.messages.signing import SLOT_BYTES, SignatureType, sign_pack
from chaplain.journal.messages.write_request import REQUEST_LABEL, client_id_of, signed_octets
from chaplain.link.auth.identity import Identity
from chaplain.link.events import Peer
from chaplain.mesh.events import Entered, Exited
from chaplain.segment.pack import Pack, encode_pack, stated_digest, with_signature
from chaplain.units import MILLISECOND_NS, SECOND_NS
from chaplain.wire.parcel import Layer, Parcel
from simulator.actors.checkpoint_forger import Forger

if TYPE_CHECKING:
    from simulator.workloads.requests import Requests
    from simulator.world.world import World

_TICK_NS = 100 * MILLISECOND_NS
_PATIENCE_NS = 2 * SECOND_NS
_PAUSE_FIRST_NS = 5 * MILLISECOND_NS
_PAUSE_MOST_NS = 500 * MILLISECOND_NS
_OUTBOX_MAX = 5
_LATER = ("busy", "stopping", "disk_full", "not_ingest")
"""Refusals that are temporary."""


class SimClient:
    def __init__(self, workload: Requests, name: str, seed: bytes, acl: bytes, streams: tuple[str, ...]) -> None:
        self._workload = workload
        self.rng = Random(f"{workload.rng.random()} {name}")
        self.name = name
        self.seed = seed
        self.identity = Identity(seed)
        self.acl = acl
        self._streams = streams
        self.instance = b""
        self._at: tuple[str, int] = ("", 0)
        self._next_id = 1
        self.lane = 0
        self._nonce = self.rng.randbytes(16)
        self._epoch = genesis(workload.founding.cluster)[:EPOCH_BYTES]
        """The epoch that a node reported last."""
        self.outbox: dict[int, tuple[int, IngestEntry, int]] = {}
        """Unanswered packs by first id: last id, the pack, and when it was made."""
        self.runs: list[Run] = []
        self._progress_ns = 0
        self._back_to = 0
        """The first id to send again after the pause; 0 if there is none."""
        self._pause_ns = _PAUSE_FIRST_NS
        self._calls = 0
        self.over = False

    def begin(self, world: World) -> None:
        world.after(self.rng.randrange(SECOND_NS), self._tick, world)

    def _tick(self, world: World) -> None:
        world.after(self.rng.randrange(_TICK_NS), self._tick, world)
        host = world.hosts.get(self._at[0])
        impatient = world.now_ns - self._progress_ns > _PATIENCE_NS
        if host is None or host.process != self._at[1] or (impatient and self.rng.random() < 0.2):
            self._connect(world)
        elif not self.lane:
            if not self.over and self.rng.random() < 0.2:
                self._petition(world, LeaseLane(self.acl), self._nonce)
        elif impatient and self.rng.random() < 0.3:
            self._resend(world, 0)
        elif len(self.outbox) < _OUTBOX_MAX and self.rng.random() < 0.5:
            self._write(world)
        elif self.rng.random() < 0.01:
            end = RetireLane(self.lane, self.acl) if self.lane % 2 else FenceLane(self.lane)
            self._petition(world, end, self.rng.randbytes(16))

    def _connect(self, world: World) -> None:
        old = world.hosts.get(self._at[0])
        if old is not None and old.process == self._at[1]:
            world.tell(old, Exited(self._peer(), "elsewhere"))
        others = [name for name in self._workload.client_nodes if name != self._at[0]]
        host = world.hosts[self.rng.choice(others or self._workload.client_nodes)]
        self._progress_ns = world.now_ns
        if host.up:
            self.instance = self.rng.randbytes(16)
            self._at = (host.name, host.process)
            world.tell(host, Entered(self._peer(), {}))
            self._resend(world, 0)

    def _peer(self) -> Peer:
        return Peer(self.instance, self.identity.identifier, self.identity.key, client=self.name)

    def _say(self, world: World, message: client_messages.ClientMessage, payload: bytes) -> None:
        """Send a message, which may be lost, late or duplicated."""
        said = Parcel(self.identity.identifier, Layer.JOURNAL, client_messages.encode(message), payload)
        host = world.hosts[self._at[0]]
        for _ in range(self.rng.choice((0, 1, 1, 1, 1, 1, 1, 1, 2))):
            delay_ns = self.rng.randrange(self.rng.choice((MILLISECOND_NS, 20 * MILLISECOND_NS)))
            world.deliver(delay_ns, host, self._at[1], JournalParcel(self._peer(), said))

    def wish(self, world: World, message: config.ConfigMessage) -> None:
        """Send a request, if there is a node to send it to."""
        if self._at[0]:
            self._petition(world, message, self.rng.randbytes(16))

    def _petition(self, world: World, message: config.ConfigMessage, nonce: bytes) -> None:
        self._calls += 1
        cluster, epoch = self._workload.founding.cluster, self._epoch
        data = config.sign(message, cluster, self.acl, nonce, self.identity, epoch=epoch)
        self._workload.signed.append(ForwardConfigRequest(entry_type_of(message), 0, data))
        self._say(world, SubmitPetition(self._calls, entry_type_of(message), 0), data)

    def make_pack(self, first_id: int, stream: str, signer: Identity | None = None) -> IngestEntry:
        counts = tuple(self.rng.choice((1, 1, 2)) for _ in range(self.rng.choice((1, 1, 3))))
        values = tuple(b"%s %d %s" % (self.name.encode(), first_id, self.rng.randbytes(4)) for _ in range(sum(counts)))
        values = tuple(value + bytes(self._workload.padding_bytes) for value in values)
        slot = bytes(SLOT_BYTES[SignatureType.ED25519])
        raw = encode_pack(Pack(self.lane, first_id, values, None, None, counts, 0, SignatureType.ED25519, slot))
        entry = IngestEntry(stream, sign_pack(raw, self._workload.founding.cluster, stream, signer or self.identity))
        self._workload.made.append(entry)
        return entry

    def _write(self, world: World) -> None:
        self.send(world, self.make_pack(self._next_id, self.rng.choice(self._streams)))

    def send(self, world: World, entry: IngestEntry) -> None:
        """Send a pack with the next ids, and keep it until it is answered."""
        last_id = self._next_id + int.from_bytes(entry.raw[16:20], "little") - 1
        self.outbox[self._next_id] = (last_id, entry, world.now_ns)
        self._next_id = last_id + 1
        self._say(world, Write(entry.stream), bytes(entry.raw))

    def _resend(self, world: World, first_id: int) -> None:
        self._back_to = 0
        for known, (_, entry, _) in self.outbox.items():
            if known >= first_id and self.lane:
                self._say(world, Write(entry.stream), bytes(entry.raw))

    def _go_back(self, world: World, first_id: int) -> None:
        """Send again from this id on after a pause, not at once: the node has just answered "not yet"."""
        if self._back_to:
            self._back_to = min(self._back_to, first_id)
            return
        self._back_to = first_id
        world.after(self._pause_ns, self._paused, world)
        self._pause_ns = min(2 * self._pause_ns, _PAUSE_MOST_NS)

    def _paused(self, world: World) -> None:
        if self._back_to:  # unless everything was sent again in the meantime
            self._resend(world, self._back_to)

    # Answers.

    def hear(self, world: World, message: NodeMessage) -> None:
        match message:
            case Receipts():
                for run in message.runs:
                    if run.client_id == self.lane:
                        self._settle(world, run.first_id + run.requests - 1)
                    self.runs.append(run)
            case AlreadyWritten():
                if message.client_id == self.lane:
                    self._settle(world, message.last_id)
            case GoBack():
                # Every pack that is sent too early gets this answer: going back for each of them would never end.
                if message.client_id == self.lane:
                    self._go_back(world, message.expected_id)
            case NotWritten():
                if message.client_id == self.lane and message.kind in _LATER:
                    self._go_back(world, message.first_id)
                if message.kind in ("unknown_lane", "fenced", "compromised", "removed", "not_staged"):
                    self._lane_over(message)
            case Decided():
                self._decided(message)
            case _:
                pass

    def listed(self, world: World, payload: bytes) -> None:
        """A node answered a question with JSON."""

    def _settle(self, world: World, last_id: int) -> None:
        self._progress_ns = world.now_ns
        self._pause_ns = _PAUSE_FIRST_NS
        for first_id in [first for first, (last, _, _) in self.outbox.items() if last <= last_id]:
            del self.outbox[first_id]

    def _decided(self, message: Decided) -> None:
        self._epoch = message.epoch
        if message.kind == "unknown_lane" and not self.lane:
            self._nonce = self.rng.randbytes(16)  # the lane of this lease has ended
        if message.kind == "applied" and not self.lane and message.client_id:
            self.lane = message.client_id
            self._next_id = message.last_id + 1
        elif message.kind == "unknown_signer":
            self.over = True

    def _lane_over(self, message: NotWritten) -> None:
        """Unanswered packs stay unknown; a new lane begins."""
        if message.client_id == self.lane:
            self.lane = 0
            self._nonce = self.rng.randbytes(16)
            self.outbox.clear()
            self.over = message.kind in ("compromised", "removed")


def resigned(entry: IngestEntry, cluster: str, seed: bytes) -> IngestEntry:
    """The same request under another valid signature: Ed25519 with a nonce of our own choice."""
    raw = bytes(entry.raw)
    message = b"%b\0%b" % (REQUEST_LABEL, signed_octets(cluster, entry.stream, stated_digest(raw)))
    scalar = bytearray(sha512(seed).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    secret = bindings.crypto_core_ed25519_scalar_reduce(bytes(scalar) + bytes(32))
    nonce = bindings.crypto_core_ed25519_scalar_reduce(b"another nonce".ljust(64, b"!"))
    point = bindings.crypto_scalarmult_ed25519_base_noclamp(nonce)
    key = Identity(seed).key
    challenge = bindings.crypto_core_ed25519_scalar_reduce(sha512(point + key + message).digest())
    product = bindings.crypto_core_ed25519_scalar_mul(challenge, secret)
    signature = point + bindings.crypto_core_ed25519_scalar_add(nonce, product)
    return IngestEntry(entry.stream, with_signature(raw, signature))


PRESSED = 40
"""How often a forged state is offered to a node that needs one."""


class Rogue:
    """One more ingest node: it is no serializer, and ignores the protocol."""

    def __init__(self, workload: Requests, identity: Identity) -> None:
        self._workload = workload
        self._rng = Random(f"{workload.rng.random()} rogue")
        self._node = max(workload.numbers) + 1
        self.peer = Peer(b"rogue".ljust(16), self._node, identity.key, workload.endpoint_of(self._node))
        self._sent: dict[Reference, bytes] = {}
        self._forger = Forger(self._rng)

    def begin(self, world: World) -> None:
        world.after(SECOND_NS, self._tick, world)

    def enter(self, world: World) -> None:
        for host in world.hosts.values():
            if host.up:
                world.tell(host, Entered(self.peer, {}))

    def _tick(self, world: World) -> None:
        world.after(self._rng.randrange(3 * SECOND_NS), self._tick, world)
        self.enter(world)
        reference = Reference(self._node, 1, len(self._sent) + 1)
        if self._rng.random() < 0.1:
            payload = ingest.encode(reference, ())[:8] + self._rng.randbytes(20)
        else:
            payload = ingest.encode(reference, [self._entry() for _ in range(self._rng.randrange(1, 6))])
        self._sent[reference] = payload
        petition = self._petition()
        for host in world.hosts.values():
            self._tell(world, host.name, petition)
        for host in world.hosts.values():
            self._tell(world, host.name, Payload(payload))

    def _entry(self) -> IngestEntry:
        made = self._workload.made
        if not made:
            return IngestEntry("orders", b"nothing yet")
        entry = self._rng.choice(made[-40:]) if self._rng.random() < 0.8 else self._rng.choice(made)
        kind = self._rng.random()
        if kind < 0.1:
            broken = bytearray(entry.raw)
            broken[self._rng.randrange(len(broken))] ^= 1 << self._rng.randrange(8)
            return IngestEntry(entry.stream, bytes(broken))
        if kind < 0.15:
            return self._resign(entry)
        if kind < 0.2:
            return IngestEntry(self._rng.choice(("orders", "bob-1", "_config")), entry.raw)
        if kind < 0.35:
            return self._forge()
        return entry

    def _resign(self, entry: IngestEntry) -> IngestEntry:
        """The same request under another valid signature of the lane's owner, which only a holder of the key
        can make.
        """
        client_id = int.from_bytes(entry.raw[8:12], "little")
        seed = next((client.seed for client in self._workload.clients if client.lane == client_id), None)
        return entry if seed is None else resigned(entry, self._workload.founding.cluster, seed)

    def _forge(self) -> IngestEntry:
        """A pack of some lane with an id near the next, signed by itself or by another client."""
        client = self._rng.choice(self._workload.clients)
        signer = self._rng.choice(self._workload.clients)
        if not client.lane:
            return IngestEntry("orders", b"?")
        made = [entry for entry in self._workload.made[-40:] if client_id_of(bytes(entry.raw)) == client.lane]
        known = self._rng.choice(made[-4:]).raw[12:16] if made else b"\1\0\0\0"
        first_id = max(1, int.from_bytes(known, "little") + self._rng.choice((-1, 0, 0, 0, 1)))
        stream = self._rng.choice(("orders", "bob-1", "audit"))
        if self._workload.thief and self._rng.random() < 0.3:
            return client.make_pack(first_id, "bob-1")
        if signer is client:
            # An honest client's own signature does no harm on a stream that it may not write to.
            stream = "orders" if client.name == "bob" else "_config"
        return client.make_pack(first_id, stream, signer.identity)

    def _petition(self) -> ForwardConfigRequest:
        """A configuration request that only others may make, that is unsigned, or that was signed before."""
        if self._workload.signed and self._rng.random() < 0.4:
            return self._rng.choice(self._workload.signed)
        client, other = self._rng.choice(self._workload.clients), self._rng.choice(self._workload.clients)
        wishes = (LeaseLane(client.acl), FenceLane(client.lane or 1), RemoveIdentity(client.acl))
        message = self._rng.choice(wishes)
        cluster, nonce = self._workload.founding.cluster, self._rng.randbytes(16)
        epoch = genesis(cluster)[:EPOCH_BYTES]
        data = config.sign(message, cluster, client.acl, nonce, other.identity, epoch=epoch)
        if client is other:
            data = data[:-1] + bytes((data[-1] ^ 1,))
        return ForwardConfigRequest(entry_type_of(message), 0, data)

    def hear(self, world: World, name: str, message: PeerMessage) -> None:
        if isinstance(message, peer.AskPayload) and message.reference in self._sent:
            self._tell(world, name, Payload(self._sent[message.reference]))
        elif isinstance(message, SnapshotOffer | AskState | StatePiece):
            for answer in self._forger.hear(message):
                self._tell(world, name, answer)
                for again in range(PRESSED if isinstance(answer, StatePiece) else 0):
                    world.after(again * 50 * MILLISECOND_NS, self._tell, world, name, answer)

    def _tell(self, world: World, name: str, message: PeerMessage) -> None:
        body, payload = peer.encode(message)
        if self._rng.random() < 0.9:
            host = world.hosts[name]
            event = JournalParcel(self.peer, Parcel(self._node, Layer.JOURNAL, body, payload))
            world.deliver(self._rng.randrange(20 * MILLISECOND_NS), host, host.process, event)
