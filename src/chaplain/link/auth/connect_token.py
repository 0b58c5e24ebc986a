"""The knock: what somebody shows before ZeroMQ lets a single octet of theirs through.

Decides who may connect: a holder of a cluster key, or a registered client, each time anew. Knows nothing of
greetings: a knock lets in, it identifies nobody to the layers above.

Invariants:
- the cheap checks come first: size, time, known key, then cryptography;
- only proven knocks are remembered, so a stranger cannot fill the memory;
- a knock is remembered for as long as its time would be accepted, so it opens the door once.

Byte tables and hex examples: docs/connection.md.
"""

from __future__ import annotations

import hmac
import struct
from collections import Counter, deque
from collections.abc import Mapping
from random import Random

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.link.auth.identity import KEY_BYTES, Identity, verify
from chaplain.link.auth.keyring import KEY_ID_BYTES, KeyRing
from chaplain.link.errors import GreetingRefused
from chaplain.link.settings import LinkSettings

KNOCK_VERSION = 1
KIND_NODE = 1
KIND_CLIENT = 2
NONCE_BYTES = 16

_NODE = struct.Struct(f">BB{KEY_ID_BYTES}sIQ{NONCE_BYTES}s")
_CLIENT = struct.Struct(f">BB{KEY_BYTES}sQ{NONCE_BYTES}s")
_LABEL = b"chaplain knock 1"


class NodeKnock(Frozen, frozen=True):
    key_id: bytes
    identifier: int
    time_ns: int
    nonce: bytes


class ClientKnock(Frozen, frozen=True):
    key: bytes
    time_ns: int
    nonce: bytes


def encode(knock: NodeKnock | ClientKnock) -> bytes:
    if isinstance(knock, NodeKnock):
        return _NODE.pack(KIND_NODE, KNOCK_VERSION, knock.key_id, knock.identifier, knock.time_ns, knock.nonce)
    return _CLIENT.pack(KIND_CLIENT, KNOCK_VERSION, knock.key, knock.time_ns, knock.nonce)


def decode(name: bytes) -> NodeKnock | ClientKnock:
    if len(name) == _NODE.size and name[0] == KIND_NODE and name[1] == KNOCK_VERSION:
        return NodeKnock(*_NODE.unpack(name)[2:])
    if len(name) == _CLIENT.size and name[0] == KIND_CLIENT and name[1] == KNOCK_VERSION:
        return ClientKnock(*_CLIENT.unpack(name)[2:])
    raise Malformed(f"knock: {len(name)} octets are neither a node's knock nor a client's of version {KNOCK_VERSION}")


def knock_as_node(ring: KeyRing, identifier: int, now_ns: int, rng: Random) -> tuple[bytes, bytes]:
    """Name and proof to show at another node's door."""
    name = encode(NodeKnock(ring.used_id, identifier, now_ns, rng.randbytes(NONCE_BYTES)))
    return name, _mac(ring.used, name)


def knock_as_client(identity: Identity, now_ns: int, rng: Random) -> tuple[bytes, bytes]:
    name = encode(ClientKnock(identity.key, now_ns, rng.randbytes(NONCE_BYTES)))
    return name, identity.sign(_LABEL, name)


def _mac(key: bytes, name: bytes) -> bytes:
    return hmac.digest(key, b"%b\0%b" % (_LABEL, name), "sha256")


class OneUse:
    """Remembers which nonces were used, each for `keep_ns`, at most so many in all and for each owner."""

    __slots__ = ("_count_max", "_keep_ns", "_order", "_owned", "_per_owner_max", "_seen")

    def __init__(self, count_max: int, per_owner_max: int, keep_ns: int) -> None:
        self._count_max = count_max
        self._per_owner_max = per_owner_max
        self._keep_ns = keep_ns
        self._order: deque[tuple[int, bytes, bytes]] = deque()
        self._seen: set[tuple[bytes, bytes]] = set()
        self._owned: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._order)

    def spend(self, now_ns: int, owner: bytes, nonce: bytes) -> None:
        """Use the nonce up, or refuse: it was used before, or there is no room to remember it."""
        self._expire(now_ns)
        if (owner, nonce) in self._seen:
            raise GreetingRefused("replayed")
        if len(self._order) >= self._count_max or self._owned[owner] >= self._per_owner_max:
            raise GreetingRefused("too many knocks")
        self._order.append((now_ns + self._keep_ns, owner, nonce))
        self._seen.add((owner, nonce))
        self._owned[owner] += 1
        assert len(self._seen) == len(self._order)

    def _expire(self, now_ns: int) -> None:
        while self._order and self._order[0][0] < now_ns:
            _, owner, nonce = self._order.popleft()
            self._seen.discard((owner, nonce))
            self._owned[owner] -= 1
            if not self._owned[owner]:
                del self._owned[owner]


class TokenChecker:
    """Judges the knocks at one node's door."""

    __slots__ = ("_by_clients", "_by_nodes", "_identifier", "_ring", "_window_ns")

    def __init__(self, settings: LinkSettings, ring: KeyRing, identifier: int) -> None:
        self._identifier = identifier
        self._ring = ring
        self._window_ns = settings.knock_window_ns
        # A time is acceptable from one window before it to one after, so two windows of memory cover any knock.
        keep_ns = 2 * settings.knock_window_ns
        self._by_nodes = OneUse(settings.knocks_max, settings.knocks_max, keep_ns)
        self._by_clients = OneUse(settings.knocks_max, settings.knocks_per_client_max, keep_ns)

    def judge(self, now_ns: int, clients: Mapping[bytes, str], name: bytes, proof: bytes) -> str:
        """Who it is, as text for the host; raises `Malformed` or `GreetingRefused`."""
        knock = decode(name)
        if abs(knock.time_ns - now_ns) > self._window_ns:
            raise GreetingRefused("outside the time window", skew_ms=(knock.time_ns - now_ns) // 1_000_000)
        if isinstance(knock, NodeKnock):
            return self._judge_node(now_ns, knock, name, proof)
        return self._judge_client(now_ns, knock, clients, name, proof)

    def _judge_node(self, now_ns: int, knock: NodeKnock, name: bytes, proof: bytes) -> str:
        if knock.identifier == self._identifier:
            raise GreetingRefused("ourselves")  # We dialled our own endpoint, or somebody plays our knock back to us.
        key = self._ring.get(knock.key_id)
        if key is None:
            raise GreetingRefused("unknown cluster key", key=knock.key_id.hex())
        if not hmac.compare_digest(_mac(key, name), proof):
            raise GreetingRefused("wrong proof")
        self._by_nodes.spend(now_ns, knock.key_id, knock.nonce)
        return f"node:{knock.identifier:08x}"

    def _judge_client(
        self, now_ns: int, knock: ClientKnock, clients: Mapping[bytes, str], name: bytes, proof: bytes
    ) -> str:
        client = clients.get(knock.key)
        if client is None:
            raise GreetingRefused("unknown client", key=knock.key.hex())
        if not verify(knock.key, _LABEL, name, proof):
            raise GreetingRefused("wrong proof", client=client)
        self._by_clients.spend(now_ns, knock.key, knock.nonce)
        return f"client:{client}"
