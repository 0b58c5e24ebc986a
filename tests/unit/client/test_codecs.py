"""Codecs of journals, decoded messages, and the headers of CloudEvents."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain import Message, cloudevents
from chaplain.client.types.codecs import codec_of, encoded_items
from chaplain.client.types.journal import decoded
from chaplain.errors import Misused, Undecodable


class Order(msgspec.Struct):
    item: str
    count: int = 1


@dataclass
class Plain:
    item: str


class Reversed:
    def encode(self, value: str, /) -> bytes:
        return value[::-1].encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()[::-1]


def message(value: bytes) -> Message:
    return Message("orders", 7, b"k", value, {}, 1, 2, 3, 4, 5, 6, 7)


def read(value: bytes, codec: Any) -> Message[Any]:
    chosen = codec_of(codec)
    assert chosen is not None
    return decoded([message(value)], chosen)[0]


@pytest.mark.parametrize(
    ("codec", "value", "data"),
    [
        ("json", {"item": "äpfel", "count": 2}, '{"item":"äpfel","count":2}'.encode()),
        ("json", None, b"null"),
        (Order, Order("apples", 2), b'{"item":"apples","count":2}'),
        (Plain, Plain("apples"), b'{"item":"apples"}'),
        (list[int], [1, 2], b"[1,2]"),
        (Reversed(), "abc", b"cba"),
    ],
)
def test_value_is_encoded_and_decoded(codec: Any, value: object, data: bytes) -> None:
    chosen = codec_of(codec)
    assert chosen is not None
    assert chosen.encode(value) == data
    assert read(data, codec).value == value


def test_table_of_arrow_is_encoded_and_decoded() -> None:
    chosen = codec_of("arrow")
    assert chosen is not None
    table = pyarrow.table({"a": [1, 2]})
    assert read(chosen.encode(table), "arrow").value == table
    assert read(chosen.encode(table.to_batches()[0]), "arrow").value == table
    with pytest.raises(Misused, match="tables of pyarrow"):
        chosen.encode([1])


@pytest.mark.parametrize(
    ("codec", "value", "says"),
    [
        ("json", object(), "no JSON"),
        ("json", {1j: 2}, "no JSON"),
        (Order, {"item": "apples"}, "of type Order, not dict"),
        (Plain, Order("apples"), "of type Plain, not Order"),
    ],
)
def test_value_that_the_codec_does_not_take_is_misused(codec: Any, value: object, says: str) -> None:
    chosen = codec_of(codec)
    assert chosen is not None
    with pytest.raises(Misused, match=says):
        chosen.encode(value)


@pytest.mark.parametrize("codec", ["xml", 5, object(), int | complex])
def test_other_codecs_are_misused(codec: object) -> None:
    with pytest.raises(Misused, match="a codec is 'json'"):
        codec_of(codec)


def test_undecodable_message_raises_only_when_its_value_is_used() -> None:
    found = read(b'{"item":5}', Order)
    assert (found.offset, found.key, found.raw) == (7, b"k", b'{"item":5}')
    assert "item" in repr(found)
    for _ in range(2):
        with pytest.raises(Undecodable, match=r"message 7 of stream 'orders' is not json of Order: Expected `str`"):
            _ = found.value
    assert issubclass(Undecodable, ValueError)


@given(st.binary(max_size=64), st.sampled_from(["json", Order, "arrow", Reversed()]))
def test_any_bytes_have_a_value_or_are_undecodable(data: bytes, codec: Any) -> None:
    found = read(data, codec)
    try:
        _ = found.value
    except Undecodable:
        assert found.raw == data


def test_value_is_decoded_once() -> None:
    found = read(b"[1]", "json")
    assert found.value is found.value


def test_decoded_message_is_a_record_that_compares_and_pickles_like_others() -> None:
    found, other = read(b"[1]", "json"), read(b"[1]", "json")
    assert found.value == [1]
    assert found == other
    assert hash(found) == hash(other)
    assert found != read(b"[2]", "json")
    assert {**dict(found), "value": b"[1]"} == dict(message(b"[1]"))
    assert found["value"] == [1]
    assert pickle.loads(pickle.dumps(read(b'{"item":"a"}', Order))).value == Order("a")
    assert repr(found) == repr(message(b"[1]"))
    typed = Message("orders", 7, b"k", b"[1]", {}, 1, 2, 3, 4, 5, 6, 7, type=9)
    assert decoded([typed], codec_of("json"))[0].type == 9  # type: ignore[arg-type]


def test_message_without_codec_has_its_bytes_as_value_and_raw() -> None:
    assert message(b"x").value is message(b"x").raw


def test_items_with_keys_have_their_values_encoded() -> None:
    items = [1, (2, b"k"), (3, None, {"a": b"1"}), [4]]
    assert [*encoded_items(codec_of("json"), items)] == [b"1", (b"2", b"k"), (b"3", None, {"a": b"1"}), b"[4]"]
    assert [*encoded_items(None, [b"1", (b"2", b"k")])] == [b"1", (b"2", b"k")]


def test_cloudevents_attributes_survive_as_headers() -> None:
    headers = cloudevents.headers_of(
        "com.example.ordered",
        "/shop",
        id="1",
        time=datetime(2026, 1, 2, tzinfo=UTC),
        datacontenttype="application/json",
        tenant="ä",
    )
    assert headers["ce_type"] == b"com.example.ordered"
    assert headers["content-type"] == b"application/json"
    assert cloudevents.attributes_of({**headers, "other": b"x"}) == {
        "specversion": "1.0",
        "id": "1",
        "type": "com.example.ordered",
        "source": "/shop",
        "time": "2026-01-02T00:00:00+00:00",
        "tenant": "ä",
        "datacontenttype": "application/json",
    }
    assert cloudevents.attributes_of({"other": b"x"}) is None


def test_cloudevents_without_an_id_have_different_ids() -> None:
    first, second = (cloudevents.headers_of("t", "s") for _ in range(2))
    assert first["ce_id"] != second["ce_id"]


@pytest.mark.parametrize("wrong", [{"trace_id": "x"}, {"subject": ""}, {"subject": 5}, {"datacontenttype": 5}])
def test_attributes_that_cloudevents_does_not_allow_are_misused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misused, match="attribute"):
        cloudevents.headers_of("t", "s", **wrong)
    with pytest.raises(Misused, match="time zone"):
        cloudevents.headers_of("t", "s", time=datetime(2026, 1, 2))  # noqa: DTZ001
