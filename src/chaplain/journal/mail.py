"""What a journal says to nodes and clients: as parcels, on the session by which each is reached.

Decides nothing: whoever is not reached now hears nothing, and whoever cares says it again.
"""

from __future__ import annotations

from chaplain.journal import client_messages, peer_messages
from chaplain.journal.clientele import Clientele
from chaplain.journal.journal_events import JournalEffect, ToClient, ToPeer
from chaplain.journal.nodes import Nodes
from chaplain.journal.peer_messages import Order, PeerMessage
from chaplain.link.events import Peer
from chaplain.mesh.events import Whisper
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel


class Mail:
    def __init__(self, out: list[JournalEffect], identifier: int, nodes: Nodes, clientele: Clientele) -> None:
        self._out = out
        self._identifier = identifier
        self._nodes = nodes
        self._clientele = clientele

    def to_peer(self, effect: ToPeer) -> None:
        instance = self._nodes.instance(effect.node)
        if instance is not None:
            body, payload = peer_messages.encode(effect.message)
            self._whisper(instance, body, payload, urgent=isinstance(effect.message, Order))

    def to_session(self, peer: Peer, message: PeerMessage) -> None:
        """To a node that is no member, and hence has no id here."""
        self._whisper(peer.instance, *peer_messages.encode(message), urgent=False)

    def to_client(self, effect: ToClient) -> None:
        if effect.instance in self._clientele:
            self._whisper(effect.instance, client_messages.encode(effect.message), effect.payload, urgent=False)

    def _whisper(self, instance: bytes, body: bytes, payload: bytes, *, urgent: bool) -> None:
        content = parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, payload))
        self._out.append(Whisper(instance, content, urgent))
