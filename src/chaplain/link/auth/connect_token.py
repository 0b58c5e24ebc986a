"""The connect token, which a peer presents before ZeroMQ accepts any data from it.

docs/connection.md, counters and settings call a token a *knock*. This module decides which connections to admit. Each
connection needs a new token, made with the cluster key or by a registered client. It does not know greetings: a token
admits a connection, but does not identify the peer to the layers above.

Invariants:
- cheap checks come first: size, time, known key, then cryptography;
- only authenticated tokens are remembered, so that an attacker without a key cannot fill the memory;
- a token is remembered for as long as its time would be accepted, so that it admits one connection.

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
    """ZAP user name and proof with which a node connects to another node."""
    name = encode(NodeKnock(ring.used_id, identifier, now_ns, rng.randbytes(NONCE_BYTES)))
    return name, _mac(ring.used, name)


def knock_as_client(identity: Identity, now_ns: int, rng: Random) -> tuple[bytes, bytes]:
    """ZAP user name and proof with which a client connects to a node."""
    name = encode(ClientKnock(identity.key, now_ns, rng.randbytes(NONCE_BYTES)))
    return name, identity.sign(_LABEL, name)


def _mac(key: bytes, name: bytes) -> bytes:
    return hmac.digest(key, b"%b\0%b" % (_LABEL, name), "sha256")


class NonceCache:
    """Remembers used nonces, each for `keep_ns`: at most `count_max` in all and `per_owner_max` for each owner."""

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

    def use(self, now_ns: int, owner: bytes, nonce: bytes) -> None:
        """Record the nonce as used. Refuses a nonce that was used before, and any nonce while the cache is full."""
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
    """Checks the tokens of connections to this node."""

    __slots__ = ("_by_clients", "_by_nodes", "_identifier", "_ring", "_window_ns")

    def __init__(self, settings: LinkSettings, ring: KeyRing, identifier: int) -> None:
        self._identifier = identifier
        self._ring = ring
        self._window_ns = settings.knock_window_ns
        # A token's time is acceptable from one window before it to one window after it. So remembering nonces for two
        # windows covers every acceptable token.
        keep_ns = 2 * settings.knock_window_ns
        self._by_nodes = NonceCache(settings.knocks_max, settings.knocks_max, keep_ns)
        self._by_clients = NonceCache(settings.knocks_max, settings.knocks_per_client_max, keep_ns)

    def check(self, now_ns: int, clients: Mapping[bytes, str], name: bytes, proof: bytes) -> str:
        """Return the user's name for the host. Raises `Malformed` or `GreetingRefused`."""
        knock = decode(name)
        if abs(knock.time_ns - now_ns) > self._window_ns:
            raise GreetingRefused("outside the time window", skew_ms=(knock.time_ns - now_ns) // 1_000_000)
        if isinstance(knock, NodeKnock):
            return self._check_node(now_ns, knock, name, proof)
        return self._check_client(now_ns, knock, clients, name, proof)

    def _check_node(self, now_ns: int, knock: NodeKnock, name: bytes, proof: bytes) -> str:
        if knock.identifier == self._identifier:
            raise GreetingRefused("ourselves")  # we dialled our own endpoint, or an attacker replays our token to us
        key = self._ring.get(knock.key_id)
        if key is None:
            raise GreetingRefused("unknown cluster key", key=knock.key_id.hex())
        if not hmac.compare_digest(_mac(key, name), proof):
            raise GreetingRefused("wrong proof")
        self._by_nodes.use(now_ns, knock.key_id, knock.nonce)
        return f"node:{knock.identifier:08x}"

    def _check_client(
        self, now_ns: int, knock: ClientKnock, clients: Mapping[bytes, str], name: bytes, proof: bytes
    ) -> str:
        client = clients.get(knock.key)
        if client is None:
            raise GreetingRefused("unknown client", key=knock.key.hex())
        if not verify(knock.key, _LABEL, name, proof):
            raise GreetingRefused("wrong proof", client=client)
        self._by_clients.use(now_ns, knock.key, knock.nonce)
        return f"client:{client}"
