"""The seven commands of the mesh, octet for octet. The hex was written by hand from the grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.wire.command import (
    ALIVE,
    BROADCAST,
    HEADER_BYTES,
    Alive,
    Broadcast,
    DecenAck,
    Hello,
    Join,
    Leave,
    Ping,
    assemble,
    broadcast_content_at,
    decode,
    encode,
    read_header,
)
from chaplain.wire.primitives import put_string

GOLDEN = [
    (
        Hello(1, "10.0.0.1", 7171, ("chat", "b"), 2, {"name": "ann"}),
        # signature, command, sequence; ipaddress; port; pools; status; headers
        "aaa1 01 0001 08 31302e302e302e31 1c03 02 04 63686174 01 62 02 01 08 6e616d653d616e6e",
    ),
    (Hello(65535, "", 0, (), 255, {}), "aaa1 01 ffff 00 0000 00 ff 00"),
    (Alive(2, b"\x00\x01hi"), "aaa1 02 0002 0001 6869"),
    (Alive(0, b""), "aaa1 02 0000"),
    (Broadcast(3, "chat", b"hi"), "aaa1 03 0003 04 63686174 6869"),
    (Broadcast(256, "", b""), "aaa1 03 0100 00"),
    (Join(4, "chat", 1), "aaa1 04 0004 04 63686174 01"),
    (Leave(5, "chat", 255), "aaa1 05 0005 04 63686174 ff"),
    (Ping(6), "aaa1 06 0006"),
    (DecenAck(7), "aaa1 07 0007"),
]


@pytest.mark.parametrize(("command", "octets"), GOLDEN)
def test_golden_commands_encode_and_decode(command, octets):
    assert encode(command).hex() == octets.replace(" ", "")
    assert decode(bytes.fromhex(octets)) == command


@pytest.mark.parametrize(
    ("octets", "complaint"),
    [
        ("", "signature: 2 octets wanted"),
        ("aaa2 06 0006", "not AA A1"),
        ("aaa1 00 0006", "command: 0x00"),
        ("aaa1 08 0006", "command: 0x08"),
        ("aaa1 06 00", "sequence: 2 octets wanted, 1 left"),
        ("aaa1 06 0006 00", "1 octets too many"),
        ("aaa1 04 0004 04 63686174", "status: 1 octets wanted"),
        ("aaa1 04 0004 04 63686120 01", "pool: only visible ASCII"),
        ("aaa1 04 0004 01 80 01", "pool: only visible ASCII"),
        ("aaa1 03 0003 05 63686174", "pool: 5 octets wanted, 4 left"),
        ("aaa1 01 0001 00 0000 ff", "pools: 1 octets wanted, 0 left"),
        ("aaa1 01 0001 00 0000 00 00 01 03 6e3d61 00", "1 octets too many"),
        ("aaa1 01 0001 00 0000 00 00 01 01 6e", "each entry must be a new name=value"),
        ("aaa1 01 0001 00 0000 00 00 01 02 3d61", "each entry must be a new name=value"),
        ("aaa1 01 0001 00 0000 00 00 02 03 6e3d61 03 6e3d62", "each entry must be a new name=value"),
    ],
)
def test_malformed_commands_are_refused_with_the_reason(octets, complaint):
    with pytest.raises(Malformed, match=complaint):
        decode(bytes.fromhex(octets))


@pytest.mark.parametrize(
    "command",
    [
        Ping(-1),
        Ping(65536),
        Join(1, "with space", 1),
        Join(1, "x" * 256, 1),
        Join(1, "chat", 256),
        Hello(1, "ä", 1, (), 0, {}),
        Hello(1, "", 65536, (), 0, {}),
        Hello(1, "", 1, ("p",) * 256, 0, {}),
        Hello(1, "", 1, (), 0, {"": "value"}),
        Hello(1, "", 1, (), 0, {"a=b": "value"}),
    ],
)
def test_invalid_field_values_raise_value_error_when_encoding(command):
    with pytest.raises(ValueError, match=r".") as caught:
        encode(command)
    assert not isinstance(caught.value, Malformed)


sequences = st.integers(0, 65535)
octets = st.integers(0, 255)
visible = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=255)
names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="="), min_size=1, max_size=100)
values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=154)
pools = st.lists(visible, max_size=20).map(tuple)
hellos = st.builds(
    Hello, sequences, visible, st.integers(0, 65535), pools, octets, st.dictionaries(names, values, max_size=9)
)
commands = st.one_of(
    hellos,
    st.builds(Alive, sequences, st.binary(max_size=300)),
    st.builds(Broadcast, sequences, visible, st.binary(max_size=300)),
    st.builds(Join, sequences, visible, octets),
    st.builds(Leave, sequences, visible, octets),
    st.builds(Ping, sequences),
    st.builds(DecenAck, sequences),
)


@given(commands)
def test_any_command_round_trips(command):
    assert decode(encode(command)) == command


@given(commands, st.data())
def test_truncated_command_is_malformed_or_another_complete_command(command, data):
    whole = encode(command)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        found = decode(part)
    except Malformed:
        return
    assert encode(found) == part
    assert isinstance(found, Alive | Broadcast)


@given(commands)
def test_fast_path_reads_and_assembles_the_header_of_every_command(command):
    whole = encode(command)
    octet, sequence = read_header(whole)
    assert sequence == command.sequence
    assert assemble(octet, sequence, whole[HEADER_BYTES:]) == whole


@given(sequences, visible, st.binary(max_size=300))
def test_fast_path_encodes_and_splits_content_like_the_codec(sequence, pool, content):
    assert assemble(ALIVE, sequence, content) == encode(Alive(sequence, content))
    broadcast = encode(Broadcast(sequence, pool, content))
    assert assemble(BROADCAST, sequence, put_string(pool) + content) == broadcast
    at = broadcast_content_at(broadcast)
    assert broadcast[HEADER_BYTES:at] == put_string(pool)
    assert broadcast[at:] == content


@pytest.mark.parametrize("octets", ["", "aaa1", "aaa1 02 00", "aaa2 02 0002", "00a1 02 0002 00"])
def test_fast_path_refuses_data_without_a_header(octets):
    with pytest.raises(Malformed, match="no signature and number"):
        read_header(bytes.fromhex(octets))


@given(st.binary(max_size=600))
def test_fast_path_never_fails_on_a_broadcast_that_is_cut_short(fields):
    assert broadcast_content_at(assemble(BROADCAST, 1, fields)) > HEADER_BYTES
