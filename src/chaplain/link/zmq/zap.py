"""The ZAP handler: asks the core whether a connection may be admitted.

ZeroMQ asks over an inproc socket (ZAP, https://rfc.zeromq.org/spec/27). A request becomes a `Knocked` input and waits
for `Admit` or `Refuse`, while further requests are processed. At most `KNOCKS_MAX` wait. A further one displaces the
oldest, whose connection ZeroMQ then ends at the handshake interval.
"""

from __future__ import annotations

from collections import Counter

import zmq

from chaplain.core import Admit, Knocked, Refuse

KNOCKS_MAX = 1024
_ENDPOINT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class ZapHandler:
    """The ZAP handler of one context."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], counts: Counter[str]) -> None:
        self._counts = counts
        self._waiting: dict[bytes, bytes] = {}
        # A ROUTER rather than a REP, so that a slow answer does not delay other requests.
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(_ENDPOINT)

    def take(self) -> Knocked | None:
        """Return the next request, or None if it was refused at once. Raises `zmq.Again` when no request waits."""
        asker, _, version, number, _domain, address, _identity, mechanism, *secrets = self.socket.recv_multipart(
            zmq.NOBLOCK
        )
        self._waiting[asker] = number
        if version != _VERSION or mechanism != b"PLAIN" or len(secrets) != 2:
            self.answer(Refuse(asker, "only PLAIN is spoken here"))
            return None
        if len(self._waiting) > KNOCKS_MAX:
            self._counts["link_tokens_crowded_out"] += 1
            del self._waiting[next(iter(self._waiting))]
        return Knocked(asker, secrets[0], secrets[1], address.decode("ascii", "replace"))

    def answer(self, answer: Admit | Refuse) -> None:
        number = self._waiting.pop(answer.request, None)
        if number is None:
            return
        if isinstance(answer, Admit):
            self._counts["link_admitted"] += 1
            verdict = [b"200", b"OK", answer.user.encode(), b""]
        else:
            self._counts["link_refused"] += 1
            verdict = [b"400", answer.reason.encode()[:255], b"", b""]
        self.socket.send_multipart([answer.request, b"", _VERSION, number, *verdict], zmq.NOBLOCK)
