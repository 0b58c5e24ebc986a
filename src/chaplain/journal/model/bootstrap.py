"""The initial configuration of a cluster: its name, its nodes, its first clients, and the bounds of its state.

Every node gets the same initial configuration. The state that executors compare contains its digest, because nodes with
different initial configurations would decide differently. Refuses to know how it is stored or distributed.
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


class ExecutionPolicy(Frozen, frozen=True, array_like=True):
    """Bounds that affect decisions of execution. They must be the same on every node, or the executors' states would
    diverge.
    """

    remembered_packs: int = 64
    """Number of packs of a lane whose receipts execution retains."""
    lane_idle_ns: int = 24 * 3600 * SECOND_NS
    """Execution ends a lane that was not used for this long, by cluster time."""
    lane_spare_ns: int = 600 * SECOND_NS
    """At a bound, a new lane replaces a lane of the same identity that was not used for this long."""
    lanes_per_identity_max: int = 1024
    lanes_max: int = 8192
    identities_max: int = 4096
    """Removed identities count, because their ids are never reused."""
    streams_max: int = 65536
    pack_bytes_max: int = 4 << 20
    checkpoint_bytes: int = 256 << 20
    """Execution makes a checkpoint after this many octets of ingest messages, without a request."""
    databases_max: int = 64
    """Number of streams whose statements are executed. The first streams with statements get the databases."""
    epochs: EpochBounds = EpochBounds()
    """How long a signed configuration request is accepted."""


class BootstrapMember(Frozen, frozen=True, array_like=True):
    """A node of the initial cluster. It has all roles, unless serializers are index-only: then a serializer only has
    the config role.
    """

    node: int
    key: bytes
    uri: str
    disk: bytes


class BootstrapClient(Frozen, frozen=True, array_like=True):
    """A client identity that exists from the start."""

    name: str
    key: bytes
    writes: tuple[str, ...] = ALL_STREAMS
    reads: tuple[str, ...] = ALL_STREAMS
    admin: bool = True
    signature_type: int = SignatureType.ED25519


class ClusterBootstrap(Frozen, frozen=True, array_like=True):
    """The complete initial configuration."""

    cluster: str
    members: tuple[BootstrapMember, ...]
    clients: tuple[BootstrapClient, ...]
    policy: ExecutionPolicy = ExecutionPolicy()
    wrapping_id: bytes = b""
    """Names the key with which HMAC secrets are wrapped; empty if the cluster has no such key."""
    serializers: tuple[int, ...] = ()
    """The members that serialize; empty if all do."""
    copies: int = 0
    """If not 0, serializers are index-only, and this many nodes have a payload on disk before it is ordered. If 0,
    every serializer stores all payloads.
    """

    def cluster_config(self) -> ClusterConfig:
        """The cluster configuration before the first message."""
        nodes = initial_config(MemberRoles(one.node, one.key, one.uri, one.disk) for one in self.members)
        nodes = msgspec.structs.replace(nodes, serializers=self.serializers or nodes.serializers)
        return index_only_config(nodes) if self.copies else nodes

    def digest(self) -> bytes:
        """SHA-256 of all fields."""
        fields = msgspec.structs.astuple(self)
        # The digest of a cluster without `copies` must stay what it was before that field existed.
        covered = fields if self.copies else fields[:-1]
        return sha256(b"chaplain founding\0" + msgspec.msgpack.encode(covered)).digest()
