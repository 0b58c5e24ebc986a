"""The mesh's state of one peer, from its greeting to the end of its session. Only the mesh core changes it."""

from __future__ import annotations

from chaplain.link.events import Peer, Say
from chaplain.mesh.numbering import Numbering
from chaplain.wire.command import Hello, assemble

NEVER_NS = -(1 << 62)
"""A time before every interval that the mesh measures."""


class MeshSession:
    __slots__ = (
        "headers",
        "heard_ns",
        "heard_or_pinged_ns",
        "heartbeat_sent_ns",
        "is_node",
        "may_join_pools",
        "numbering",
        "peer",
        "pinged_ns",
        "pool_list_asked_ns",
        "pool_list_sent_ns",
        "pools",
        "pools_uncertain",
        "sent_ns",
        "status",
    )

    def __init__(self, peer: Peer, hello: Hello) -> None:
        self.peer = peer
        self.is_node = not peer.client
        self.may_join_pools = self.is_node
        """False for clients, and for nodes that were removed from the cluster."""
        self.headers = hello.headers
        self.numbering = Numbering(hello.sequence)
        self.pools: dict[str, None] = {}
        """The pools that the peer is in, as far as we know, in the order in which it joined them."""
        self.status = hello.status
        self.pools_uncertain = False
        """A command of this peer was lost, or its status octet did not match.
        `pools` may be wrong until its pool list arrives."""
        self.heard_ns = self.sent_ns = self.heard_or_pinged_ns = NEVER_NS
        self.heartbeat_sent_ns = self.pool_list_asked_ns = self.pool_list_sent_ns = NEVER_NS
        self.pinged_ns: int | None = None
        """The time of the first PING that no DECENACK has answered yet."""

    @property
    def name(self) -> str:
        """The peer's name in reports."""
        return self.peer.client or f"{self.peer.identifier:08x}"

    def say(self, octet: int, fields: bytes = b"", urgent: bool = False) -> Say:
        """Build the next command to this peer."""
        return Say(self.peer.instance, assemble(octet, self.numbering.next_number(), fields), urgent)
