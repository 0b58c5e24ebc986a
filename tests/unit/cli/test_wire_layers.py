"""`chaplain wire` with the messages of every layer: bytes to JSON and back, whole and from their fields alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from click.testing import CliRunner

from chaplain.cli.commands.wire import LAYERS
from chaplain.cli.main import cli
from chaplain.cli.wire_format.fields import COMMAND
from chaplain.cli.wire_format.json_form import from_json, to_json
from chaplain.cli.wire_format.layers import CARRIED, WHOLE
from chaplain.client_service.messages import Done
from chaplain.errors import Malformed
from chaplain.executor.statement import (
    OutcomeRun,
    RequestOutcome,
    Statement,
    StatementResult,
    encode_run,
    encode_statement,
)
from chaplain.gossip import codec as gossip
from chaplain.gossip.codec import EventId
from chaplain.graph.messages import peer as graph
from chaplain.graph.messages.event import EventDraft, ParentLink, sign
from chaplain.journal.messages import cluster, consensus, ingest, peer
from chaplain.journal.messages.client import Open
from chaplain.journal.messages.cluster import Body, ConfigEntry, DataEntry, Reference
from chaplain.journal.messages.config import FenceLane
from chaplain.journal.messages.config import sign as sign_config
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.membership import EntryType
from chaplain.link.auth.identity import Identity
from chaplain.mesh import control_messages
from chaplain.sequence.messages import peer as sequence
from chaplain.sequence.messages.entry import Ballot, SeatedMember
from chaplain.sequence.messages.peer import PeerState, SequenceState
from chaplain.wire import parcel
from chaplain.wire.parcel import Layer, Parcel

HASH, WHO = bytes(range(32)), Identity(b"s" * 32)
PEER_STATE = PeerState(SequenceState.WRK, 7, 3, promised=Ballot(2, 3))
BODY = Body(
    regime=2,
    index=9,
    master=1,
    timestamp_ns=5,
    previous=HASH,
    entries=(
        DataEntry(Reference(1, 2, 3), HASH),
        ConfigEntry(
            EntryType.FENCE_CLIENT, 0, sign_config(FenceLane(7), "c", bytes(15), bytes(16), WHO, epoch=bytes(16))
        ),
    ),
)
CARRIED_MESSAGES = [
    (Layer.MESH, control_messages.PoolList(("chat", "ops"), 2)),
    (Layer.GOSSIP, gossip.Have((EventId(1, 2, 3),))),
    (Layer.GOSSIP, gossip.Compare(16, 3, True, (gossip.ListEntry(1, 2, gossip.EntryStanding.LOST),))),
    (Layer.GRAPH, graph.Inv("notes", (graph.Confirmation(HASH, HASH, bytes(64)),))),
    (Layer.GRAPH, graph.EventBatch((graph.Item(b"raw", ((HASH, bytes(64)),)),), graph.FIRST)),
    (Layer.SEQUENCE, sequence.DscReq(PEER_STATE, {4: "127.0.0.1:5"})),
    (Layer.SEQUENCE, sequence.Seq(PEER_STATE, 5, HASH, Ballot(1, 2), 6, (SeatedMember(4, 9),), {"ids": (3, HASH)})),
    (Layer.JOURNAL, peer.Ack((Reference(1, 2, 3),))),
    (Layer.JOURNAL, peer.Payload(b"octets")),
    (Layer.JOURNAL, Open(5)),
    (Layer.CLIENT, Done(3)),
]
WHOLE_MESSAGES = {
    "order": consensus.encode(consensus.Vote(3, True, 3, 1, {1: 4}, b"s" * 64), 2),
    "cluster": cluster.encode_body(BODY),
    "ingest": ingest.encode(Reference(1, 2, 3), [IngestEntry("orders", b"pack"), IngestEntry("x", b"")]),
    "config": cluster.encode_entry(BODY.entries[1]),
    "statement": encode_statement(Statement("insert into t values (?, ?)", (b"\x00\xff", "00ff"))),
    "run": encode_run(
        OutcomeRun(3, 5, 9, 1, (RequestOutcome(7, (StatementResult(1, ("a",), ((b"\x01", None, 2.5),)),)),))
    ),
    "event": sign(EventDraft("notes", b"hello", 5, parents=(ParentLink(HASH, 4),)), WHO, "c").raw,
}
PAGES = [
    ("statement", "protocol/sql.md", "hex statement"),
    ("run", "protocol/sql.md", "hex run"),
    ("commit", "protocol/journal-requests.md", "hex commit"),
    ("verdict", "protocol/journal-requests.md", "hex verdict"),
    ("beacon", "protocol/mesh.md", "hex\n43 48 50 42"),
    ("knock", "connection.md", "knock-node"),
    ("knock", "connection.md", "knock-client"),
    ("greeting", "connection.md", "greeting-node"),
    ("greeting", "connection.md", "greeting-client"),
]
PROOFS = {"knock-node": 32, "knock-client": 64}
"""What stands behind the message in the example, and travels beside it."""


def example(page: str, begins: str) -> bytes:
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    (block,) = [block for block in re.findall(r"^```(.+?)^```$", text, re.M | re.S) if block.startswith(begins)]
    lines = [line.partition("#")[0] for line in block.split("\n")[1:]]
    data = bytes.fromhex("".join("".join(lines).split()))
    return data[: len(data) - PROOFS.get(begins, 0)]


def carried(layer: Layer, message: msgspec.Struct) -> bytes:
    codec = next(each for each in CARRIED[layer] if type(message) in get_args(each.kinds))
    return parcel.encode(Parcel(9, layer, *codec.encode(message)))


@pytest.mark.parametrize(("layer", "message"), CARRIED_MESSAGES, ids=lambda one: type(one).__name__)
def test_parcel_is_decoded_with_its_message_and_encoded_from_either(layer: Layer, message: msgspec.Struct) -> None:
    data = carried(layer, message)
    shown = json.loads(json.dumps(to_json(data)))
    assert shown["message"][COMMAND] == type(message).__name__
    assert from_json(shown) == data
    fields = {name: value for name, value in shown.items() if name not in ("body", "payload", "size")}
    assert from_json(fields) == data


@pytest.mark.parametrize(("layer", "data"), WHOLE_MESSAGES.items())
def test_inner_messages_are_decoded_by_their_layer_option(layer: str, data: bytes) -> None:
    shown = CliRunner().invoke(cli, ["wire", "decode", "--layer", layer, data.hex()], catch_exceptions=False)
    made = CliRunner().invoke(cli, ["wire", "encode", shown.output], catch_exceptions=False)
    assert made.output.strip() == data.hex()


@pytest.mark.parametrize(("layer", "page", "begins"), PAGES)
def test_examples_of_protocol_pages_round_trip_through_json(layer: str, page: str, begins: str) -> None:
    data = example(page, begins)
    shown = json.loads(json.dumps(to_json(data, layer)))
    assert from_json(shown) == data


def test_beacon_with_a_field_of_wrong_size_is_malformed() -> None:
    shown = to_json(example("protocol/mesh.md", "hex\n43 48 50 42"), "beacon")
    with pytest.raises(Malformed, match="8, 16 and 32 octets"):
        from_json({**shown, "mac": "00"})


def test_statement_with_named_parameters_round_trips() -> None:
    data = encode_statement(Statement("select :a, :b", {"a": b"\x07", "b": "text"}))
    shown = json.loads(json.dumps(to_json(data, "statement")))
    assert shown["parameters"] == {"a": {COMMAND: "Octets", "octets": "07"}, "b": "text"}
    assert from_json(shown) == data


def test_cluster_message_is_decoded_with_its_configuration_entries() -> None:
    entries = to_json(WHOLE_MESSAGES["cluster"], "cluster")["entries"]
    assert entries[0]["reference"] == {COMMAND: "Reference", "node": 1, "journal": 2, "index": 3}
    said = {COMMAND: "FenceLane", "client_id": 7}
    assert entries[1]["message"]["message"] == said
    assert to_json(WHOLE_MESSAGES["config"], "config")["message"]["message"] == said


def test_no_message_has_a_field_named_like_the_json_tag() -> None:
    inside = [kind for sort in CARRIED.values() for each in sort for kind in get_args(each.kinds)]
    whole = [kind for each in WHOLE.values() for kind in get_args(each.kinds) or (each.kinds,)]
    assert len(inside + whole) > 60
    assert not [kind for kind in inside + whole if COMMAND in kind.__struct_fields__]
    assert not [kind for kind in whole if "layer" in kind.__struct_fields__]
    assert set(LAYERS) == {"mesh", "parcel", *WHOLE}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"command": "Ink"}, '"command" must be one of EventBatch, FetchMissing, Fetched, GetData, Inv, SyncEvent'),
        ({"command": "GetData", "stream": 5}, "stream: Expected `str`, got `int`"),
        ({"command": "GetData", "stream": "s", "ids": "00"}, "ids: a list is needed"),
        ({"command": "GetData", "stream": "s", "ids": ["0"]}, '"ids" must be a text of hexadecimal digits'),
        ({"command": "GetData", "stream": "s", "other": 1}, "'other' is no field of GetData"),
        ({"command": "GetData", "stream": "s"}, "Missing required argument 'ids'"),
    ],
)
def test_malformed_inner_message_is_reported_in_one_sentence(value: dict, sentence: str) -> None:
    with pytest.raises(Malformed) as wrong:
        from_json({"layer": "parcel", "node": 1, "protocol": 3, "message": value})
    assert sentence in str(wrong.value)
