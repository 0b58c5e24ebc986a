"""What the mesh remembers of one peer between its greeting and its parting. Only the mesh's core changes it."""

from __future__ import annotations

import struct

from chaplain.link.events import Peer, Say
from chaplain.mesh.numbering import Numbering
from chaplain.wire.command import SIGNATURE, Hello

_FRONT = struct.Struct(">2sBH")
NEVER_NS = -(1 << 62)
"""Longer ago than any interval."""


class MeshSession:
    __slots__ = (
        "asked_ns",
        "attended_ns",
        "beat_ns",
        "doubtful",
        "headers",
        "heard_ns",
        "is_node",
        "numbering",
        "peer",
        "pinged_ns",
        "pooled",
        "pools",
        "spoke_ns",
        "status",
        "told_ns",
    )

    def __init__(self, peer: Peer, hello: Hello) -> None:
        self.peer = peer
        self.is_node = not peer.client
        self.pooled = self.is_node
        """Whether it may be in pools: clients are not, nor nodes that were removed from the cluster."""
        self.headers = hello.headers
        self.numbering = Numbering(hello.sequence)
        self.pools: dict[str, None] = {}
        """The pools we believe the peer to be in, in the order it joined them."""
        self.status = hello.status
        self.doubtful = False
        """Something of this peer was lost or out of step, so `pools` may be wrong until its roll has come."""
        self.heard_ns = self.spoke_ns = self.attended_ns = NEVER_NS
        self.beat_ns = self.asked_ns = self.told_ns = NEVER_NS
        self.pinged_ns: int | None = None
        """When the first PING went out that no DECENACK has answered yet."""

    @property
    def name(self) -> str:
        """For reports."""
        return self.peer.client or f"{self.peer.identifier:08x}"

    def say(self, octet: int, fields: bytes = b"", urgent: bool = False) -> Say:
        """The next command to this peer."""
        front = _FRONT.pack(SIGNATURE, octet, self.numbering.next_number())
        return Say(self.peer.instance, front + fields, urgent)
