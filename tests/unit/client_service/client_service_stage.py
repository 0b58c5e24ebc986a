"""A client service with two clients, a node that knows little, and one layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from chaplain.client_service import messages
from chaplain.client_service.core import ClientServiceCore
from chaplain.client_service.events import ClientServiceEffect, ClientServiceSettings, NodeViews
from chaplain.client_service.limits import Limits
from chaplain.client_service.messages import ClientRequest, NodeReply
from chaplain.costs import Charge
from chaplain.link.events import Peer
from chaplain.mesh.events import (
    Entered,
    Whisper,
    Whispered,
)
from chaplain.rights import RequiredRight, Right
from chaplain.wire import parcel

OWN = 7
LAYER = 4
ANN = Peer(b"a" * 16, 100, b"A" * 32, client="ann")
BOB = Peer(b"b" * 16, 200, b"B" * 32, client="bob")
NODE = Peer(b"n" * 16, 300, b"N" * 32, endpoint="tcp://127.0.0.1:1")


class CoreHost:
    """A client service with two clients; replies come back decoded, by client."""

    def __init__(
        self,
        settings: ClientServiceSettings | None = None,
        may: Callable[[bytes, RequiredRight], bool] | None = None,
        limits: Limits | None = None,
    ) -> None:
        views = NodeViews(
            status=lambda: b'{"id":1}',
            members=lambda: b'[{"id":1}]',
            node_id=lambda identifier: identifier,
            identifier=lambda number: {1: 4711}.get(number, number),
            layers=frozenset({LAYER}),
            required_right=lambda layer, body: (
                RequiredRight(Right.WRITE, body.decode()) if body.startswith(b"to-") else None
            ),
            has_right=may or (lambda key, want: True),
            is_admin=lambda key: key == ANN.key,
            limits=limits or Limits(),
        )
        self.core = ClientServiceCore(OWN, settings or ClientServiceSettings(), views)
        self.charges: Counter[bytes] = Counter()
        self.step(Entered(ANN, {}))
        self.step(Entered(BOB, {}))

    def step(self, event: object) -> list[ClientServiceEffect]:
        """The effects of this input. Charges are in `charges`, by key."""
        effects = self.core.step(0, event)  # type: ignore[arg-type]
        for charge in effects:
            if isinstance(charge, Charge):
                self.charges[charge.key] += charge.units
        return [effect for effect in effects if not isinstance(effect, Charge)]

    def ask(self, peer: Peer, request: ClientRequest, payload: bytes = b"") -> list[ClientServiceEffect]:
        return self.step(Whispered(peer, messages.encode(peer.identifier, request, payload)))


def reply(effect: ClientServiceEffect) -> tuple[bytes, NodeReply, bytes]:
    assert isinstance(effect, Whisper)
    opened = parcel.decode(effect.content)
    return effect.instance, messages.decode_reply(opened.body), opened.payload
