"""The beacon: one UDP datagram that announces the endpoint of a node.

mesh.txt describes the beacon. Ours has a MAC by the cluster key, because any host can send a datagram. A holder of that
key can still forge a beacon of another node. This is harmless: a beacon only makes a node dial, and the signed greeting
decides whether there is a session.
Byte table and hex example: docs/protocol/mesh.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire.limits import DATAGRAM_BYTES_MAX
from chaplain.wire.primitives import ByteReader, put_number, put_string

MAGIC = b"CHPB"
VERSION = 1
CLUSTER_BYTES = 8
INSTANCE_BYTES = 16
MAC_BYTES = 32

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes], bool]


class BeaconKeys(Frozen, frozen=True):
    """Signs and verifies with HMAC-SHA256 by the cluster's key ring, without exposing the keys."""

    sign: Sign
    verify: Verify


class Beacon(Frozen, frozen=True):
    cluster: bytes
    instance: bytes
    identifier: int
    time_ns: int
    """Unix time in nanoseconds; unique among the beacons of an instance."""
    ipaddress: str
    port: int
    """0 means that the node is leaving."""

    @property
    def endpoint(self) -> str:
        return f"tcp://{self.ipaddress}:{self.port}"


def cluster_hash(name: str) -> bytes:
    """Identifies the cluster of a beacon without broadcasting its name."""
    return hashlib.sha256(name.encode()).digest()[:CLUSTER_BYTES]


def encode(beacon: Beacon, sign: Sign) -> bytes:
    signed = b"".join(
        (
            MAGIC,
            put_number(VERSION, 1),
            beacon.cluster,
            beacon.instance,
            put_number(beacon.identifier, 4),
            put_number(beacon.time_ns, 8),
            put_string(beacon.ipaddress),
            put_number(beacon.port, 2),
        )
    )
    datagram = signed + sign(signed)
    assert len(datagram) <= DATAGRAM_BYTES_MAX
    return datagram


def decode(datagram: bytes, verify: Verify) -> Beacon:
    """Decode a beacon. It checks the MAC before it trusts any field except magic and version."""
    if len(datagram) > DATAGRAM_BYTES_MAX:
        raise Malformed(f"beacon: {len(datagram)} octets, at most {DATAGRAM_BYTES_MAX}")
    cursor = ByteReader(datagram)
    if cursor.take(len(MAGIC), "magic") != MAGIC:
        raise Malformed("beacon: not one of ours")
    if (version := cursor.number(1, "version")) != VERSION:
        raise Malformed(f"beacon: version {version}, we read {VERSION}")
    if not verify(datagram[:-MAC_BYTES], datagram[-MAC_BYTES:]):
        raise Malformed("beacon: the MAC is wrong")
    beacon = Beacon(
        cluster=cursor.take(CLUSTER_BYTES, "cluster"),
        instance=cursor.take(INSTANCE_BYTES, "instance"),
        identifier=cursor.number(4, "identifier"),
        time_ns=cursor.number(8, "time"),
        ipaddress=cursor.string("ipaddress"),
        port=cursor.number(2, "port"),
    )
    cursor.take(MAC_BYTES, "mac")
    cursor.end("beacon")
    return beacon


class Sighting(Frozen, frozen=True):
    """The last beacon of an instance."""

    seen_ns: int
    time_ns: int
    endpoint: str
    """The endpoint that we dial for it; unchanged by a beacon that says the node is leaving."""
    leaving: bool
