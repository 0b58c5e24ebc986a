"""The parcel: a 64-bit header, a body, a payload. The hex of the document is decoded here."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.wire.parcel import Layer, Parcel, decode, encode

PAGE = Path(__file__).parents[3] / "docs" / "protocol" / "parcel.md"

GOLDEN = [
    (Parcel(0x01020304, Layer.GOSSIP, b"ab", b"xyz", flags=0x81), "01020304 1281 0002 6162 78797a"),
    (Parcel(0, Layer.MESH, b""), "00000000 1100 0000"),
    (Parcel(0xFFFFFFFF, 15, b"\0", b"", 255, 15), "ffffffff ffff 0001 00"),
    (Parcel(7, Layer.SEQUENCE, b"", b"payload alone"), "00000007 1400 0000 7061796c6f616420616c6f6e65"),
]


@pytest.mark.parametrize(("parcel", "octets"), GOLDEN)
def test_golden_parcels_encode_and_decode(parcel, octets):
    assert encode(parcel).hex() == octets.replace(" ", "")
    assert decode(bytes.fromhex(octets)) == parcel


def test_parcel_example_matches_the_codec():
    hexadecimal = re.search(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    octets = bytes.fromhex("".join(line.partition("#")[0] for line in hexadecimal.splitlines()))
    example = decode(octets)
    assert example == Parcel(0x0A0B0C0D, Layer.GOSSIP, b"\x01hi", b"all", flags=0x01)
    assert encode(example) == octets


def test_documented_layers_match_the_codes():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {int(number): name for number, name in rows} == {layer.value: layer.name for layer in Layer}


@pytest.mark.parametrize(
    ("octets", "complaint"),
    [
        ("", "a header has 8 octets, not 0"),
        ("00000000 1100 00", "a header has 8 octets, not 7"),
        ("00000000 1100 0003 6162", "body of 3 octets, 2 left"),
        ("00000000 1100 ffff", "body of 65535 octets, 0 left"),
    ],
)
def test_malformed_parcels_are_refused_with_the_reason(octets, complaint):
    with pytest.raises(Malformed, match=complaint):
        decode(bytes.fromhex(octets))


@pytest.mark.parametrize(
    "parcel",
    [
        Parcel(1, 1, bytes(65536)),
        Parcel(1, 16, b""),
        Parcel(1, 1, b"", version=16),
        Parcel(1, 1, b"", flags=256),
        Parcel(1, -1, b""),
    ],
)
def test_invalid_field_values_raise_value_error_when_encoding(parcel):
    with pytest.raises(ValueError, match=r".") as caught:
        encode(parcel)
    assert not isinstance(caught.value, Malformed)


@given(
    st.builds(
        Parcel,
        st.integers(0, 2**32 - 1),
        st.integers(0, 15),
        st.binary(max_size=200),
        st.binary(max_size=200),
        st.integers(0, 255),
        st.integers(0, 15),
    )
)
def test_any_parcel_round_trips(parcel):
    assert decode(encode(parcel)) == parcel


def test_largest_body_round_trips():
    parcel = Parcel(1, 1, bytes(65535), b"rest")
    assert decode(encode(parcel)) == parcel
