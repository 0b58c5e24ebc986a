"""What a journal says to nodes and clients: as parcels, on the session by which each is reached.

Decides nothing: whoever is not reached now hears nothing, and whoever cares says it again.
"""

from __future__ import annotations

from chaplain.journal import client_messages, peer_messages
from chaplain.journal.clientele import Clientele
from chaplain.journal.journal_events import JournalEffect, ToClient, ToPeer
from chaplain.journal.nodes import Nodes
from chaplain.journal.order_events import Tell
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
        self._said: tuple[object, bytes] = (None, b"")
        """What was said to a peer last, and its parcel: mostly the next one is told the same."""

    def to_peer(self, effect: ToPeer) -> None:
        instance = self._nodes.instance(effect.node)
        if instance is None:
            return
        if self._said[0] is not effect.message:
            body, payload = peer_messages.encode(effect.message)
            self._said = (effect.message, parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, payload)))
        self._out.append(Whisper(instance, self._said[1], urgent=False))

    def order(self, tell: Tell) -> None:
        instance = self._nodes.instance(tell.node)
        if instance is None:
            return
        if self._said[0] is not tell.message:
            body, payload = peer_messages.encode(Order(tell.message))
            self._said = (tell.message, parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, payload)))
        self._out.append(Whisper(instance, self._said[1], urgent=True))

    def to_session(self, peer: Peer, message: PeerMessage) -> None:
        """To a node that is no member, and hence has no id here."""
        self._whisper(peer.instance, *peer_messages.encode(message))

    def to_client(self, effect: ToClient) -> None:
        if effect.instance in self._clientele:
            self._whisper(effect.instance, client_messages.encode(effect.message), effect.payload)

    def _whisper(self, instance: bytes, body: bytes, payload: bytes) -> None:
        content = parcel.encode(Parcel(self._identifier, Layer.JOURNAL, body, payload))
        self._out.append(Whisper(instance, content, urgent=False))
