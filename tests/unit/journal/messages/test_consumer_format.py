"""The page about named consumers shows octets; here they are made and read back. Other octets are malformed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.journal.execution import consumers
from chaplain.journal.messages import client
from chaplain.journal.messages.client import AskConsumers
from chaplain.journal.messages.consumer import (
    CONSUMER,
    LATEST,
    Acknowledge,
    Challenge,
    Command,
    Fetch,
    Finish,
    Join,
    Leave,
    Mode,
    Release,
    Remove,
    Reset,
    Return,
    Touch,
    commands_of,
    decode,
    encode,
    encode_header,
    header_of,
)
from chaplain.segment.headers import encode_headers
from chaplain.segment.pack import Pack, encode_pack

PAGE = Path(__file__).parents[4] / "docs" / "protocol" / "consumers.md"
COMMANDS: dict[str, Command] = {
    "join": Join("billing", b"n" * 16, Mode.KEYED, 64, 10_000),
    "acknowledge": Acknowledge("billing", 7, 12, 1000, ((3, 2500),)),
    "finish": Finish("jobs", 9, ((4, 4), (7, 19))),
    "return": Return("jobs", 9, 5000, 0, ((5, 5),)),
}
OTHERS: list[Command] = [
    Join("a", b"n" * 16, Mode.QUEUE, 0, 1, 3, "dead", LATEST),
    Leave("a", 1),
    Touch("a", 2),
    Challenge("a", 1, 2),
    Release("a", 1, (0, 5)),
    Fetch("a", 1, 100),
    Reset("a", LATEST),
    Remove("a"),
]
TOGETHER = Acknowledge("billing", 7, 12, 0, ((3, 2501),))


def example(name: str) -> bytes:
    (block,) = re.findall(rf"```hex {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return bytes.fromhex(block)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_page_examples_match_the_codec(name: str) -> None:
    assert encode(COMMANDS[name]) == example(name)
    assert decode(example(name)) == COMMANDS[name]


def test_header_and_question_examples_match_the_codec() -> None:
    cell = encode_headers({"chaplain-consumer": example("header"), "trace": b"1"})
    raw = encode_pack(Pack(1, 1, (b"insert", b"update"), headers=(cell, None), request_counts=(2,)))
    assert header_of(raw) == ("orders", TOGETHER)
    assert encode_header("orders", TOGETHER) == example("header")
    question = AskConsumers(5, "orders", "billing")
    assert client.encode(question) == example("asked")
    assert client.decode_client(example("asked")) == question


@pytest.mark.parametrize("command", OTHERS, ids=lambda one: type(one).__name__)
def test_commands_are_decoded_as_they_were_encoded(command: Command) -> None:
    assert decode(encode(command)) == command
    assert commands_of(encode_pack(Pack(1, 1, (encode(command),), message_type=CONSUMER))) == [command]


@pytest.mark.parametrize(
    "command",
    [
        Join("a", b"n" * 16, Mode.SINGLE, 2, 1),
        Join("a", b"n" * 16, Mode.KEYED, 0, 1),
        Join("a", b"n" * 16, Mode.KEYED, 4, 0),
        Join("a", b"n" * 16, Mode.KEYED, 4, 1, 3),
        Join("a", b"n" * 16, Mode.QUEUE, 0, 1, 3, "_config"),
        Finish("a", 1, ((4, 3),)),
        Finish("a", 1, ((1, 3), (3, 4))),
        Finish("a", 1, ((1, LATEST),)),
        Acknowledge("a", 1, 1, 0, ((2, 1), (1, 1))),
        Release("a", 1, (1, 1)),
        Return("a", 1, 0, 2, ()),
    ],
)
def test_contradictory_commands_are_malformed(command: Command) -> None:
    with pytest.raises(Malformed):
        decode(encode(command))


@given(
    st.binary(max_size=80)
    | st.sampled_from([*COMMANDS.values(), *OTHERS])
    .map(encode)
    .flatmap(
        lambda data: st.tuples(st.integers(0, len(data)), st.binary(max_size=3)).map(
            lambda cut: data[: cut[0]] + cut[1] + data[cut[0] + len(cut[1]) :]
        )
    )
)
def test_hostile_bytes_are_commands_or_malformed(data: bytes) -> None:
    try:
        command = decode(data)
    except Malformed:
        return
    assert encode(command) == data


def test_page_names_every_bound() -> None:
    page = PAGE.read_text()
    for bound in (
        consumers.CONSUMERS_MAX,
        consumers.CONSUMERS_IDENTITY_MAX,
        consumers.WORKERS_MAX,
        consumers.SPANS_MAX,
        consumers.SPANS_FETCH_MAX,
        consumers.IN_HAND_MAX,
    ):
        assert f"{bound:,}" in page
