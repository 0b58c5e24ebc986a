"""Which octets are whose messages: the codecs of all layers under one name each, for `chaplain wire`.

Two sorts: what is in the body and payload of a parcel, by the parcel's protocol number; and what is inside of such a
message as octets, comes before there are parcels, or is on disk, and is shown by naming it with `--layer`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, get_args

import msgspec

from chaplain.cli import wire_shapes as shapes
from chaplain.cli.wire_fields import COMMAND, make
from chaplain.desk import messages as desk
from chaplain.errors import Malformed
from chaplain.executor import messages as executor
from chaplain.executor.statement import Run, Statement
from chaplain.gossip import codec as gossip
from chaplain.graph import event as graph_event
from chaplain.graph import messages as graph
from chaplain.graph import requests as graph_requests
from chaplain.journal import (
    client_messages,
    cluster_message,
    config_message,
    ingest_message,
    node_message,
    order_message,
    peer_messages,
    request,
    transaction,
    verdict,
)
from chaplain.journal.decided import Verdict
from chaplain.link import knock
from chaplain.mesh import notes
from chaplain.sequence import messages as sequence
from chaplain.sequence import requests as sequence_requests
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel


class Carried(NamedTuple):
    """Messages that are carried in parcels."""

    kinds: Any
    decode: Callable[[bytes, bytes], msgspec.Struct]
    encode: Callable[[Any], tuple[bytes, bytes]]


class Whole(NamedTuple):
    """Messages that are so many octets."""

    kinds: Any
    decode: Callable[[bytes], msgspec.Struct]
    encode: Callable[[Any], bytes]


def _packed(kinds: Any, decode: Callable[[bytes], Any]) -> Carried:
    """A message in MessagePack; its parcel's payload is shown beside it."""
    return Carried(kinds, lambda body, payload: decode(body), lambda message: (msgspec.msgpack.encode(message), b""))


def _note_of(body: bytes, payload: bytes) -> msgspec.Struct:
    return notes.decode(parcel.encode(Parcel(0, Layer.MESH, body, payload)), 0)


CARRIED: dict[int, tuple[Carried, ...]] = {
    Layer.MESH: (Carried(notes.Note, _note_of, lambda note: (parcel.decode(notes.encode(0, note)).body, b"")),),
    Layer.GOSSIP: (Carried(gossip.Body, lambda body, payload: gossip.decode(body), lambda m: (gossip.encode(m), b"")),),
    Layer.GRAPH: (Carried(graph.GraphMessage, graph.decode, graph.encode),),
    Layer.SEQUENCE: (Carried(sequence.Message, sequence.decode, sequence.encode),),
    Layer.JOURNAL: (
        Carried(peer_messages.PeerMessage, peer_messages.decode, peer_messages.encode),
        _packed(client_messages.ClientMessage, client_messages.decode_client),
        _packed(client_messages.NodeMessage, client_messages.decode_node),
    ),
    Layer.CLIENT: (
        _packed(desk.ClientRequest, desk.decode_request),
        _packed(desk.NodeReply, desk.decode_reply),
    ),
    Layer.EXECUTOR: (
        _packed(executor.PeerMessage, executor.decode_peer),
        _packed(executor.ClientMessage, executor.decode_client),
    ),
}


WHOLE: dict[str, Whole] = {
    "order": Whole(order_message.OrderMessage, order_message.decode, order_message.encode),
    "cluster": Whole(cluster_message.Body, cluster_message.decode_body, cluster_message.encode_body),
    "config": Whole(cluster_message.ConfigEntry, shapes.read_config_entry, cluster_message.encode_entry),
    "verdict": Whole(Verdict, verdict.decode, verdict.encode),
    "ingest": Whole(
        shapes.Ingest, shapes.read_ingest, lambda message: ingest_message.encode(message.reference, message.entries)
    ),
    "request": Whole(request.Heading, request.read_heading, shapes.signed_only),
    "commit": Whole(transaction.Commit, transaction.decode, transaction.encode),
    "statement": Whole(Statement, shapes.read_statement, shapes.write_statement),
    "run": Whole(Run, shapes.read_run, shapes.write_run),
    "event": Whole(graph_event.Event, graph_event.decode, shapes.raw_of),
    "graph-request": Whole(graph_requests.GraphRequest, graph_requests.decode_request, graph_requests.encode),
    "sequence-request": Whole(
        sequence_requests.SequenceRequest, sequence_requests.decode_request, sequence_requests.encode
    ),
    "knock": Whole(knock.NodeKnock | knock.ClientKnock, knock.decode, knock.encode),
    "greeting": Whole(shapes.Greeting, shapes.read_greeting, shapes.write_greeting),
    "beacon": Whole(shapes.Datagram, shapes.read_beacon, shapes.write_beacon),
}


def read_carried(protocol: int, body: bytes, payload: bytes) -> msgspec.Struct | None:
    """The message in a parcel; nothing if it is of no layer that we know, or malformed."""
    for carried in CARRIED.get(protocol, ()):
        with suppress(Malformed):
            return carried.decode(body, payload)
    return None


def write_carried(protocol: int, shown: object) -> tuple[bytes, bytes]:
    """Body and payload of the message that is shown so."""
    names = []
    for carried in CARRIED.get(protocol, ()):
        kinds = {kind.__name__ for kind in get_args(carried.kinds)}
        if isinstance(shown, dict) and shown.get(COMMAND) in kinds:
            return carried.encode(make(shown, carried.kinds))
        names += sorted(kinds)
    raise Malformed(f'message: "{COMMAND}" must be one of {", ".join(names)}' if names else "message: no such protocol")


def read_config(entry: cluster_message.ConfigEntry) -> msgspec.Struct | None:
    """What a configuration entry of a cluster message says: what somebody asked for, or a master's own step."""
    for decode in (config_message.decode, node_message.decode_step):
        with suppress(Malformed):
            return decode(entry.entry_type, entry.stage, entry.data)
    return None
