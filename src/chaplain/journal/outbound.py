"""What a journal says to nodes and clients: as parcels, on the session by which each is reached.

Decides nothing: whoever is not reached now hears nothing, and whoever cares says it again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from chaplain.journal.consensus.events import Tell
from chaplain.journal.events import JournalEffect, ToClient, ToPeer
from chaplain.journal.messages import client
from chaplain.journal.messages import peer as peer_messages
from chaplain.journal.messages.client import NodeMessage
from chaplain.journal.messages.peer import ConsensusFrame, PeerMessage
from chaplain.journal.peers import PeerTable
from chaplain.link.events import Peer
from chaplain.mesh.events import Whisper
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel


class JournalOutbound:
    def __init__(self, out: list[JournalEffect], identifier: int, nodes: PeerTable, clients: Container[bytes]) -> None:
        self._out = out
        self._identifier = identifier
        self._nodes = nodes
        self._clients = clients
        self._said: tuple[object, bytes] = (None, b"")
        """What was said to a peer last, and its parcel: mostly the next one is told the same."""

    def to_peer(self, effect: ToPeer) -> None:
        self._to_node(effect.node, effect.message, effect.message, urgent=False)

    def order(self, tell: Tell) -> None:
        self._to_node(tell.node, tell.message, ConsensusFrame(tell.message), urgent=True)

    def _to_node(self, node: int, said: object, message: PeerMessage, *, urgent: bool) -> None:
        """`said` is what the message is made of, and is the same for all who are told the same."""
        instance = self._nodes.instance(node)
        if instance is None:
            return
        if self._said[0] is not said:
            self._said = (said, self._parcel(*peer_messages.encode(message)))
        self._out.append(Whisper(instance, self._said[1], urgent))

    def to_session(self, peer: Peer, message: PeerMessage) -> None:
        """To a node that is no member, and hence has no id here."""
        self._whisper(peer.instance, *peer_messages.encode(message))

    def to_client(self, effect: ToClient) -> None:
        if effect.instance in self._clients:
            self._whisper(effect.instance, client.encode(effect.message), effect.payload)

    def to_clients(self, news: Iterable[tuple[bytes, NodeMessage]]) -> None:
        for instance, message in news:
            self.to_client(ToClient(instance, message))

    def _whisper(self, instance: bytes, body: bytes, payload: bytes) -> None:
        self._out.append(Whisper(instance, self._parcel(body, payload), urgent=False))

    def _parcel(self, body: bytes, payload: bytes) -> bytes:
        return parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, payload))
