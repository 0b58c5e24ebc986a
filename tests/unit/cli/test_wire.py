from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from chaplain.cli.main import cli
from chaplain.cli.wire_format.json_form import COMMANDS, from_json, to_json
from chaplain.errors import Malformed

HELLO = {
    "layer": "mesh",
    "command": "HELLO",
    "sequence": 1,
    "ipaddress": "127.0.0.1",
    "port": 49152,
    "pools": ["chat", "ops"],
    "status": 2,
    "headers": {"version": "1.0"},
}
PARCEL = {
    "layer": "parcel",
    "node": 16909060,
    "version": 1,
    "protocol": 2,
    "flags": 0,
    "size": 3,
    "body": "0a0b0c",
    "payload": "ff",
}
OTHERS = [
    {"layer": "mesh", "command": "ALIVE", "sequence": 2, "content": "0102"},
    {"layer": "mesh", "command": "BROADCAST", "sequence": 3, "pool": "chat", "content": ""},
    {"layer": "mesh", "command": "JOIN", "sequence": 4, "pool": "chat", "status": 1},
    {"layer": "mesh", "command": "LEAVE", "sequence": 5, "pool": "chat", "status": 2},
    {"layer": "mesh", "command": "PING", "sequence": 65535},
    {"layer": "mesh", "command": "DECENACK", "sequence": 0},
]


@pytest.mark.parametrize("shape", [HELLO, PARCEL, *OTHERS], ids=lambda shape: shape.get("command", "parcel"))
def test_mesh_messages_round_trip_through_wire_decode_and_encode(shape):
    run = CliRunner()
    encoded = run.invoke(cli, ["wire", "encode", json.dumps(shape)], catch_exceptions=False)
    decoded = run.invoke(cli, ["wire", "decode", encoded.output.strip()], catch_exceptions=False)
    assert json.loads(decoded.output) == shape
    assert run.invoke(cli, ["wire", "decode", "-"], input=encoded.output).output == decoded.output


def test_mesh_examples_have_the_documented_bytes():
    assert from_json(OTHERS[4]).hex() == "aaa106ffff"
    assert from_json(PARCEL).hex() == "01020304120000030a0b0cff"
    assert {shape["command"] for shape in [HELLO, *OTHERS]} == set(COMMANDS)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([], "a JSON object"),
        ({}, '"layer" must be'),
        ({"layer": "mesh"}, '"command" must be one of'),
        ({"layer": "mesh", "command": "PING"}, "sequence"),
        ({"layer": "mesh", "command": "PING", "sequence": 65536}, "does not fit"),
        ({"layer": "mesh", "command": "PING", "sequence": 1, "pool": "x"}, "'pool' is no field"),
        ({"layer": "mesh", "command": "ALIVE", "sequence": 1, "content": "x"}, '"content" must be'),
        ({"layer": "mesh", "command": "JOIN", "sequence": 1, "pool": "a b", "status": 1}, "visible ASCII"),
        (PARCEL | {"size": 4}, "size is 4, but body has 3"),
        (PARCEL | {"node": 1 << 32}, "32 bits"),
        (PARCEL | {"version": 16}, "four bits"),
        (PARCEL | {"more": 1}, "unknown field"),
    ],
)
def test_invalid_json_object_is_refused_in_one_sentence(value, sentence):
    with pytest.raises(Malformed, match=sentence):
        from_json(value)


@pytest.mark.parametrize("text", ["zz", "abc"])
def test_text_that_is_not_hexadecimal_is_wrong_usage(text):
    assert CliRunner().invoke(cli, ["wire", "decode", text]).exit_code == 2
    assert CliRunner().invoke(cli, ["wire", "encode", text]).exit_code == 2


@given(st.binary(max_size=64), st.sampled_from([None, "mesh", "parcel"]))
def test_any_bytes_decode_and_encode_to_the_same_bytes_or_are_malformed(data, layer):
    try:
        shown = to_json(data, layer)
    except Malformed:
        return
    assert from_json(json.loads(json.dumps(shown))) == data


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.dictionaries(st.text(max_size=9), x)))
def test_any_json_object_is_encoded_or_malformed(value):
    for extra in ({}, {"layer": "mesh", "command": "HELLO"}, {"layer": "parcel"}):
        with pytest.raises(Malformed):
            from_json(extra | value if isinstance(value, dict) else value)
