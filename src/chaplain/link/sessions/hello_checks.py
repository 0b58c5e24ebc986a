"""Validation of greetings: decides whether a greeting is genuine and fits this process.

`handshake.py` decides what follows from it. The checks change nothing but their own table of identifiers.

Invariants:
- the proof that needs no decoding is checked before HELLO is decoded;
- the content of a greeting has no effect before its signature was checked;
- an identifier belongs to the first key that proved it, for as long as that owner is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable

from chaplain.core import Channel, Frozen
from chaplain.errors import Malformed
from chaplain.link.auth import hello as codec
from chaplain.link.auth.hello import GREETING_CLIENT, GREETING_NODE, Envelope, HelloClaims
from chaplain.link.auth.identity import identifier_of, is_route_of
from chaplain.link.endpoint import is_endpoint
from chaplain.link.errors import GreetingRefused
from chaplain.link.events import Peer
from chaplain.link.sessions.tables import LinkTables
from chaplain.wire.command import Hello


class CheckedHello(Frozen, frozen=True):
    """A greeting that passed all checks."""

    peer: Peer
    claim: HelloClaims
    hello: Hello
    cluster_key: bytes


class IdentifierOwners:
    """The owner of each identifier, among nodes.

    Pinned owners and those with a session stay. Of the others, the oldest is forgotten beyond `count_max`.
    """

    __slots__ = ("_count_max", "_known", "_live", "_pinned")

    def __init__(self, pinned: Iterable[bytes], count_max: int) -> None:
        self.pin(pinned)
        self._live: dict[int, bytes] = {}
        self._known: dict[int, bytes] = {}
        self._count_max = count_max

    def pin(self, keys: Iterable[bytes]) -> None:
        self._pinned = {identifier_of(key): key for key in keys}

    def owner(self, identifier: int) -> bytes | None:
        return self._pinned.get(identifier) or self._live.get(identifier) or self._known.get(identifier)

    def bind(self, peer: Peer) -> None:
        assert self.owner(peer.identifier) in (None, peer.key)
        self._known.pop(peer.identifier, None)
        self._live[peer.identifier] = peer.key

    def release(self, peer: Peer) -> None:
        """The node's session ended."""
        self._known[peer.identifier] = self._live.pop(peer.identifier)
        if len(self._known) > self._count_max:
            del self._known[next(iter(self._known))]


class HelloChecks:
    def __init__(self, tables: LinkTables, pinned: frozenset[bytes]) -> None:
        self._tables = tables
        self._pinned = pinned
        self.owners = IdentifierOwners(self._pinned_keys(), tables.settings.bindings_max)

    def pin(self, keys: frozenset[bytes], gone: frozenset[bytes]) -> None:
        """Accept these keys from now on, and no longer the `gone` ones."""
        self._pinned = (self._pinned | keys) - gone
        self.owners.pin(self._pinned_keys())

    def _pinned_keys(self) -> list[bytes]:
        return [*sorted(self._pinned), self._tables.identity.key]

    def check(self, channel: Channel, frame: bytes) -> CheckedHello:
        """Check a greeting. Raises `Malformed` or `GreetingRefused`."""
        envelope = codec.open_envelope(frame)
        cluster_key = self._check_prover(channel, envelope)
        claim, hello = codec.open_hello(envelope.hello)
        self._check_claim(channel, envelope, claim)
        if envelope.octet == GREETING_NODE and not codec.signature_holds(envelope, claim.key):
            raise GreetingRefused("wrong signature")
        self._check_self(claim)
        return CheckedHello(self._peer(claim, hello), claim, hello, cluster_key)

    def _check_prover(self, channel: Channel, envelope: Envelope) -> bytes:
        """Check the proof that needs no decoding of HELLO. Returns the cluster key, if one was used."""
        ring = self._tables.ring
        if ring is not None and envelope.octet == GREETING_NODE and isinstance(channel, bytes):
            key = ring.get(envelope.prover)
            if key is None:
                raise GreetingRefused("unknown cluster key", key=envelope.prover.hex())
            if not codec.mac_holds(envelope, key):
                raise GreetingRefused("wrong MAC")
            return key
        if envelope.octet != GREETING_CLIENT or isinstance(channel, bytes) is not (ring is not None):
            raise GreetingRefused("not a greeting for this channel")
        accepted_keys = self._pinned if ring is None else self._tables.clients
        if envelope.prover not in accepted_keys:
            raise GreetingRefused("key not pinned" if ring is None else "unknown client", key=envelope.prover.hex())
        if not codec.signature_holds(envelope, envelope.prover):
            raise GreetingRefused("wrong signature")
        return b""

    def _check_claim(self, channel: Channel, envelope: Envelope, claim: HelloClaims) -> None:
        settings = self._tables.settings
        if claim.version[0] != settings.version[0]:
            ours, theirs = (".".join(map(str, version)) for version in (settings.version, claim.version))
            raise GreetingRefused("other version", ours=ours, theirs=theirs)
        if claim.cluster != settings.cluster:
            raise GreetingRefused("other cluster", ours=settings.cluster, theirs=claim.cluster)
        if claim.seal != settings.seal:
            raise GreetingRefused("other seal", ours=settings.seal, theirs=claim.seal)
        if isinstance(channel, bytes) and not is_route_of(channel, claim.instance):
            raise GreetingRefused("instance is not the route's", claimed=claim.instance.hex())
        if claim.identifier != identifier_of(claim.key):
            raise GreetingRefused("identifier is not the key's", claimed=f"{claim.identifier:08x}")
        if envelope.octet == GREETING_CLIENT and claim.key != envelope.prover:
            raise GreetingRefused("key is not the envelope's")
        # Both directions between client and node use the client envelope. So the role depends on our side: a node
        # expects a client, a client expects a node.
        by_client = envelope.octet == GREETING_CLIENT and self._tables.ring is not None
        if claim.role != ("client" if by_client else "node"):
            raise GreetingRefused("other role", theirs=claim.role)

    def _check_self(self, claim: HelloClaims) -> None:
        if claim.instance == self._tables.instance:
            raise GreetingRefused("ourselves")
        if claim.key == self._tables.identity.key and claim.role == "node":
            raise GreetingRefused("our key in another instance", instance=claim.instance.hex())
        owner = self.owners.owner(claim.identifier)
        if owner not in (None, claim.key):
            raise GreetingRefused("identifier belongs to another key", identifier=f"{claim.identifier:08x}")
        session = self._tables.sessions.get(claim.instance)
        if session is not None and session.peer.key != claim.key:
            raise GreetingRefused("instance belongs to another key", instance=claim.instance.hex())

    def _peer(self, claim: HelloClaims, hello: Hello) -> Peer:
        if claim.role == "client":
            return Peer(claim.instance, claim.identifier, claim.key, client=self._tables.clients[claim.key])
        endpoint = f"tcp://{hello.ipaddress}:{hello.port}"
        if not is_endpoint(endpoint):
            raise Malformed("greeting: a node gives an address and a port")
        return Peer(claim.instance, claim.identifier, claim.key, endpoint)
