"""The cost of a client's request to the whole cluster, estimated from its kind and size.

The node that serves a request measures only its own step. An event, a question, an append to a graph or a petition
makes every node work, most of it later. This module estimates that work in units: a small write costs one unit. The
estimates decide only which clients are light (`fair_queue`); the host measures how busy the node really is.
"""

from __future__ import annotations

from chaplain.client_service import messages
from chaplain.errors import Malformed
from chaplain.journal.messages import client
from chaplain.wire.parcel import Layer, Parcel

REQUEST = 1
SPREAD = 10
"""An event, a question or a petition. Measured on three nodes: five to ten times a small write among others."""
APPEND = 20
"""An append to a graph: every node checks its signature and writes it to disk. Measured likewise: 17 times."""
READ = 20
"""A read of the journal: a thread reads and unpacks a span of the log. More credit for it costs as much as `SPREAD`."""
UNIT_BYTES = 4096
"""Octets of payload that cost as much as a request."""


def cost_of(opened: Parcel) -> int:
    """The cost of a client's request in units."""
    return _cost_of_kind(opened) + len(opened.payload) // UNIT_BYTES


def _cost_of_kind(opened: Parcel) -> int:
    try:
        if opened.layer == Layer.JOURNAL:
            told = client.decode_client(opened.body)
            if isinstance(told, client.Read):
                return READ
            return SPREAD if isinstance(told, client.SubmitPetition | client.Grant) else REQUEST
        request = messages.decode_request(opened.body)
    except Malformed:
        return REQUEST
    if isinstance(request, messages.Instruct) and request.layer == Layer.GRAPH:
        return APPEND
    return SPREAD if messages.is_spread(request) else REQUEST
