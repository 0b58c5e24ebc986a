"""The codecs of all layers by name, for `chaplain wire`.

`CARRIED` contains the messages in the body and payload of a parcel, by the parcel's protocol number. `WHOLE` contains
byte strings that are no parcel: they are fields of other messages, precede the session, or are on disk. The user names
them with `--layer`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, get_args

import msgspec

from chaplain.cli.wire_format import shapes
from chaplain.cli.wire_format.fields import COMMAND, make
from chaplain.client_service import messages as client_service
from chaplain.errors import Malformed
from chaplain.executor import messages as executor
from chaplain.executor.statement import OutcomeRun, Statement
from chaplain.gossip import codec as gossip
from chaplain.graph.messages import client as graph_requests
from chaplain.graph.messages import event as graph_event
from chaplain.graph.messages import peer as graph
from chaplain.journal.execution import two_phase
from chaplain.journal.messages import client, cluster, config, consensus, ingest, membership, peer, write_request
from chaplain.journal.model.results import ExecutionVerdict
from chaplain.journal.storage import verdict
from chaplain.link.auth import connect_token
from chaplain.mesh import control_messages
from chaplain.sequence.messages import client as sequence_requests
from chaplain.sequence.messages import peer as sequence
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel


class Carried(NamedTuple):
    """Codec of messages that parcels carry: body and payload."""

    kinds: Any
    decode: Callable[[bytes, bytes], msgspec.Struct]
    encode: Callable[[Any], tuple[bytes, bytes]]


class Whole(NamedTuple):
    """Codec of messages that are one byte string."""

    kinds: Any
    decode: Callable[[bytes], msgspec.Struct]
    encode: Callable[[Any], bytes]


def _packed(kinds: Any, decode: Callable[[bytes], Any]) -> Carried:
    """Return the codec of a MessagePack body. The parcel's payload is not part of such a message."""
    return Carried(kinds, lambda body, payload: decode(body), lambda message: (msgspec.msgpack.encode(message), b""))


def _note_of(body: bytes, payload: bytes) -> msgspec.Struct:
    return control_messages.decode(parcel.encode(Parcel(0, Layer.MESH, body, payload)), 0)


CARRIED: dict[int, tuple[Carried, ...]] = {
    Layer.MESH: (
        Carried(
            control_messages.ControlMessage,
            _note_of,
            lambda note: (parcel.decode(control_messages.encode(0, note)).body, b""),
        ),
    ),
    Layer.GOSSIP: (Carried(gossip.Body, lambda body, payload: gossip.decode(body), lambda m: (gossip.encode(m), b"")),),
    Layer.GRAPH: (Carried(graph.GraphMessage, graph.decode, graph.encode),),
    Layer.SEQUENCE: (Carried(sequence.Message, sequence.decode, sequence.encode),),
    Layer.JOURNAL: (
        Carried(peer.PeerMessage, peer.decode, peer.encode),
        _packed(client.ClientMessage, client.decode_client),
        _packed(client.NodeMessage, client.decode_node),
    ),
    Layer.CLIENT: (
        _packed(client_service.ClientRequest, client_service.decode_request),
        _packed(client_service.NodeReply, client_service.decode_reply),
    ),
    Layer.EXECUTOR: (
        _packed(executor.PeerMessage, executor.decode_peer),
        _packed(executor.ClientMessage, executor.decode_client),
    ),
}


WHOLE: dict[str, Whole] = {
    "order": Whole(consensus.OrderMessage, consensus.decode, consensus.encode),
    "cluster": Whole(cluster.Body, cluster.decode_body, cluster.encode_body),
    "config": Whole(cluster.ConfigEntry, shapes.read_config_entry, cluster.encode_entry),
    "verdict": Whole(ExecutionVerdict, verdict.decode, verdict.encode),
    "ingest": Whole(
        shapes.Ingest, shapes.read_ingest, lambda message: ingest.encode(message.reference, message.entries)
    ),
    "request": Whole(write_request.Heading, write_request.read_heading, shapes.signed_only),
    "commit": Whole(two_phase.Commit, two_phase.decode, two_phase.encode),
    "statement": Whole(Statement, shapes.read_statement, shapes.write_statement),
    "run": Whole(OutcomeRun, shapes.read_run, shapes.write_run),
    "event": Whole(graph_event.SignedEvent, graph_event.decode, shapes.raw_of),
    "graph-request": Whole(graph_requests.GraphRequest, graph_requests.decode_request, graph_requests.encode),
    "sequence-request": Whole(
        sequence_requests.SequenceRequest, sequence_requests.decode_request, sequence_requests.encode
    ),
    "knock": Whole(connect_token.NodeKnock | connect_token.ClientKnock, connect_token.decode, connect_token.encode),
    "greeting": Whole(shapes.GreetingShape, shapes.read_greeting, shapes.write_greeting),
    "beacon": Whole(shapes.Datagram, shapes.read_beacon, shapes.write_beacon),
}


def read_carried(protocol: int, body: bytes, payload: bytes) -> msgspec.Struct | None:
    """Decode the message in a parcel; return None if its protocol is unknown or the message is malformed."""
    for carried in CARRIED.get(protocol, ()):
        with suppress(Malformed):
            return carried.decode(body, payload)
    return None


def write_carried(protocol: int, shown: object) -> tuple[bytes, bytes]:
    """Return body and payload of the message that this JSON object describes."""
    names = []
    for carried in CARRIED.get(protocol, ()):
        kinds = {kind.__name__ for kind in get_args(carried.kinds)}
        if isinstance(shown, dict) and shown.get(COMMAND) in kinds:
            return carried.encode(make(shown, carried.kinds))
        names += sorted(kinds)
    raise Malformed(f'message: "{COMMAND}" must be one of {", ".join(names)}' if names else "message: no such protocol")


def read_config(entry: cluster.ConfigEntry) -> msgspec.Struct | None:
    """Decode a configuration entry of a cluster message: a client's request, or a step that the master proposed."""
    for decode in (config.decode, membership.decode_step):
        with suppress(Malformed):
            return decode(entry.entry_type, entry.stage, entry.data)
    return None
