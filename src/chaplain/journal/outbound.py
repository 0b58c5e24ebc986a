"""Outbound messages of the journal: encodes them as parcels for the session of each node or client.

Decides nothing. A message to a node or client without a session is dropped; the sending part repeats it if necessary.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from chaplain.journal.consensus.events import SendMessage
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
    """Appends whispers to the effects of the journal core."""

    def __init__(self, out: list[JournalEffect], identifier: int, peers: PeerTable, clients: Container[bytes]) -> None:
        self._out = out
        self._identifier = identifier
        self._peers = peers
        self._clients = clients
        self._last_encoded: tuple[object, bytes] = (None, b"")
        """The last message to a peer, and its parcel: the same message usually goes to several peers in a row."""

    def to_peer(self, effect: ToPeer) -> None:
        self._to_node(effect.node, effect.message, effect.message, urgent=False)

    def send_consensus(self, effect: SendMessage) -> None:
        """Send a message of the serializer, ahead of other traffic."""
        self._to_node(effect.node, effect.message, ConsensusFrame(effect.message), urgent=True)

    def _to_node(self, node: int, source: object, message: PeerMessage, *, urgent: bool) -> None:
        """`source` identifies the message: if it is the same object as last time, the parcel is used again."""
        instance = self._peers.instance(node)
        if instance is None:
            return
        if self._last_encoded[0] is not source:
            self._last_encoded = (source, self._parcel(*peer_messages.encode(message)))
        self._out.append(Whisper(instance, self._last_encoded[1], urgent))

    def to_session(self, peer: Peer, message: PeerMessage) -> None:
        """Send to a node that is not a member, and so has no node id here."""
        self._whisper(peer.instance, *peer_messages.encode(message))

    def to_client(self, effect: ToClient) -> None:
        if effect.instance in self._clients:
            self._whisper(effect.instance, client.encode(effect.message), effect.payload)

    def to_clients(self, messages: Iterable[tuple[bytes, NodeMessage]]) -> None:
        for instance, message in messages:
            self.to_client(ToClient(instance, message))

    def _whisper(self, instance: bytes, body: bytes, payload: bytes) -> None:
        self._out.append(Whisper(instance, self._parcel(body, payload), urgent=False))

    def _parcel(self, body: bytes, payload: bytes) -> bytes:
        return parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, payload))
