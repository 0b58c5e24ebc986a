"""Rights by stream: what patterns cover, which right a request takes, and who a node thinks has it."""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from chaplain.graph.messages import client as graph
from chaplain.journal.model.records import ClientIdentity, IdentityStatus
from chaplain.node.authorization import Authorization
from chaplain.rights import RequiredRight, Right, covers, may, refusal
from chaplain.sequence.messages import client as sequence
from chaplain.wire.parcel import Layer

KEY = b"k" * 32
READER = ClientIdentity(b"A" * 15, "reader", KEY, 1, b"", ("own-*",), ("news", "own-*"), False, b"")


@pytest.mark.parametrize(
    ("patterns", "stream", "covered"),
    [
        (("*",), "anything", True),
        ((), "anything", False),
        (("news",), "news", True),
        (("news",), "news2", False),
        (("own-*",), "own-", True),
        (("*-a-*",), "x-a-y", True),
        (("n.ws",), "news", False),
        (("*",), "n" * 256, False),
    ],
)
def test_patterns_match_stream_names(patterns: tuple[str, ...], stream: str, covered: bool) -> None:
    assert covers(patterns, stream) is covered


def test_patterns_match_like_their_regular_expressions() -> None:
    """All short ones, held against what they mean as regular expressions."""
    names = ["".join(letters) for size in range(5) for letters in product("ab", repeat=size)]
    for size in range(6):
        for pattern in map("".join, product("ab*", repeat=size)):
            meant = re.compile(pattern.replace("*", ".*"))
            wrong = [name for name in names if covers((pattern,), name) is not bool(meant.fullmatch(name))]
            assert not wrong, pattern


def test_hostile_pattern_and_name_are_matched_in_linear_time() -> None:
    """Whoever tries all ways to fit these would not end."""
    assert not covers(("*a" * 20 + "*b",), "a" * 255)
    assert not covers(("*.*.*.*.*.*.*.*.orders",), "." * 255)


@pytest.mark.parametrize(
    ("layer", "body", "right"),
    [
        (Layer.GRAPH, graph.encode(graph.Append("news")), Right.WRITE),
        (Layer.GRAPH, graph.encode(graph.ReadSnapshot("news")), Right.READ),
        (Layer.GRAPH, graph.encode(graph.ReadArrivals("news")), Right.READ),
        (Layer.SEQUENCE, sequence.encode(sequence.PublishRequest("news", [1])), Right.WRITE),
        (Layer.SEQUENCE, sequence.encode(sequence.ReadRequest("news", 0, 0, 0)), Right.READ),
    ],
)
def test_required_right_follows_from_the_request(layer: Layer, body: bytes, right: Right) -> None:
    uppers: Any = {
        Layer.GRAPH: SimpleNamespace(required_right=graph.required_right),
        Layer.SEQUENCE: SimpleNamespace(required_right=sequence.required_right),
        Layer.EXECUTOR: SimpleNamespace(required_right=lambda _: None),
    }
    clearance = Authorization(None, uppers)
    assert clearance.required_right(layer, body) == RequiredRight(right, "news")
    assert clearance.required_right(layer, body[:-1]) is None  # no request: the layer says so
    assert clearance.required_right(Layer.EXECUTOR, body) is None  # it asks for itself
    assert clearance.may(KEY, RequiredRight(right, "news"))  # without a journal there is no list of rights


def test_rights_follow_from_the_sessions_key() -> None:
    known: dict[bytes, ClientIdentity] = {KEY: READER}
    journal: Any = SimpleNamespace(execution=SimpleNamespace(client_of_key=known.get))
    clearance = Authorization(journal, {})
    wants = [
        RequiredRight(right, stream) for stream in ("news", "own-1", "hidden") for right in (Right.READ, Right.WRITE)
    ]
    assert [clearance.may(KEY, want) for want in wants] == [True, False, True, True, False, False]
    assert not clearance.may(b"x" * 32, wants[0])
    for status in (IdentityStatus.REMOVED, IdentityStatus.COMPROMISED):
        known[KEY] = ClientIdentity(b"A" * 15, "reader", KEY, 1, b"", ("*",), ("*",), False, b"", status)
        assert not clearance.may(KEY, wants[0])


def test_refusal_names_the_stream_and_the_right() -> None:
    assert may(READER, RequiredRight(Right.READ, "news"))
    assert (
        refusal(RequiredRight(Right.WRITE, "news"))
        == "this client may not write stream 'news': ask an admin for the right"
    )
