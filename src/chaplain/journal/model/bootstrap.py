"""What a cluster is founded with: its name, its nodes, its first clients, and the bounds of its state.

Every node is given the same; it is part of the state that executors compare, because whoever was founded otherwise
would decide otherwise. Refuses to know how it is stored or handed out.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from chaplain.core import Frozen
from chaplain.journal.messages.signing import SignatureType
from chaplain.journal.model.cluster_config import ClusterConfig, MemberRoles, index_only_config, initial_config
from chaplain.journal.model.epochs import EpochBounds
from chaplain.units import SECOND_NS

ALL_STREAMS = ("*",)


class Policy(Frozen, frozen=True, array_like=True):
    """Bounds that execution decides by: the same everywhere, or executors would part."""

    remembered_packs: int = 64
    """Packs of a lane whose receipts can be given again."""
    lane_idle_ns: int = 24 * 3600 * SECOND_NS
    """A lane unused for so long, by cluster time, is over."""
    lane_spare_ns: int = 600 * SECOND_NS
    """At a bound, a lane unused for so long makes room for a new one of its identity."""
    lanes_per_identity_max: int = 1024
    lanes_max: int = 8192
    identities_max: int = 4096
    """Removed ones count: their ids are never given again."""
    streams_max: int = 65536
    pack_bytes_max: int = 4 << 20
    checkpoint_bytes: int = 256 << 20
    """Behind so many octets of ingest messages there is a checkpoint, without anybody asking."""
    databases_max: int = 64
    """Streams with statements that are executed; the first ones that there were."""
    epochs: EpochBounds = EpochBounds()
    """For how long a signed configuration request is accepted."""


class BootstrapMember(Frozen, frozen=True, array_like=True):
    """A founding node. It has all roles, unless serializers are index-only: then those only take configuration."""

    node: int
    key: bytes
    uri: str
    disk: bytes


class BootstrapClient(Frozen, frozen=True, array_like=True):
    name: str
    key: bytes
    writes: tuple[str, ...] = ALL_STREAMS
    reads: tuple[str, ...] = ALL_STREAMS
    admin: bool = True
    signature_type: int = SignatureType.ED25519


class ClusterBootstrap(Frozen, frozen=True, array_like=True):
    cluster: str
    members: tuple[BootstrapMember, ...]
    clients: tuple[BootstrapClient, ...]
    policy: Policy = Policy()
    wrapping_id: bytes = b""
    """Names the key that HMAC secrets are wrapped with; empty: there are none."""
    serializers: tuple[int, ...] = ()
    """Those of the members that serialize; empty: all."""
    copies: int = 0
    """Serializers are index-only, and so many nodes hold a payload before it is ordered; 0: serializers hold all."""

    def cluster_config(self) -> ClusterConfig:
        nodes = initial_config(MemberRoles(one.node, one.key, one.uri, one.disk) for one in self.members)
        nodes = msgspec.structs.replace(nodes, serializers=self.serializers or nodes.serializers)
        return index_only_config(nodes) if self.copies else nodes

    def digest(self) -> bytes:
        fields = msgspec.structs.astuple(self)
        # A cluster that was founded before there were copies has the digest that it always had.
        said = fields if self.copies else fields[:-1]
        return sha256(b"chaplain founding\0" + msgspec.msgpack.encode(said)).digest()
