"""The page about gossip shows octets; here they are read back. And bytes at large."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.gossip import codec, payloads
from chaplain.gossip.codec import (
    Accuse,
    Action,
    Body,
    Cards,
    Compare,
    DiscoveredAck,
    EntryStanding,
    Have,
    LeaveMessage,
    ListEntry,
    MessageType,
    OtherVersion,
    WantMessages,
)
from chaplain.gossip.events import EventId, KeyStep
from chaplain.gossip.payloads import Health, KeyRotationStep, LastHeard, QueryPayload, Response, UserEvent
from chaplain.link.auth.identity import verify
from tests.unit.gossip.gossip_stage import Partner

PAGE = (Path(__file__).parents[3] / "docs" / "protocol" / "gossip.md").read_text()
A, B = Partner(1), Partner(2)
ID = EventId(A.identifier, 7, 1)
USER = UserEvent("hi", b"you")
BODIES: dict[str, Body] = {
    "LEAVE": codec.sign_leave(A.identity, ID, A.identifier, 9),
    "MESSAGE": codec.sign_message(
        A.identity, ID, MessageType.USER, payloads.put_user(USER), action=Action.NONE, target=0
    ),
    "ACKNOWLEDGE": DiscoveredAck(ID, B.card(3)),
    "CARDS": Cards((B.card(3),)),
    "COMPARE": Compare(
        1, 0, True, (ListEntry(A.identifier, 7, EntryStanding.PRESENT), ListEntry(B.identifier, 3, EntryStanding.LOST))
    ),
    "HAVE": Have((ID,)),
    "WANT": WantMessages((ID,)),
    "ACCUSE": Accuse(9),
}
CONTENTS = {
    "HEALTH": (payloads.take_health, payloads.put_health, Health(B.identifier, 3)),
    "STATUS": (payloads.take_status, payloads.put_status, LastHeard(B.identifier, 3, 1500)),
    "QUERY": (payloads.take_query, payloads.put_query, QueryPayload("load", b"cpu")),
    "ANSWER": (payloads.take_response, payloads.put_response, Response(ID, 1, True, b"0.7")),
    "USER": (payloads.take_user, payloads.put_user, USER),
    "KEY": (payloads.take_key, payloads.put_key, KeyRotationStep(KeyStep.REMOVE, b"old!", b"new!")),
}


def example(heading: str) -> bytes:
    section = re.split(rf"\n##+ {heading}\n", PAGE)[1].split("\n## ")[0]
    block = re.findall(r"```hex\n(.*?)```", section, re.DOTALL)[0]
    return bytes.fromhex(block)


@pytest.mark.parametrize("name", BODIES)
def test_body_examples_match_the_codec(name: str) -> None:
    assert codec.decode(example(name)) == BODIES[name]
    assert codec.encode(BODIES[name]) == example(name)


@pytest.mark.parametrize("name", CONTENTS)
def test_content_examples_match_the_codec(name: str) -> None:
    take, put, value = CONTENTS[name]
    assert take(example(name)) == value
    assert put(value) == example(name)  # type: ignore[operator]


def test_example_signatures_hold_and_break_with_any_changed_octet() -> None:
    for name in ("LEAVE", "MESSAGE"):
        body = codec.decode(example(name))
        assert isinstance(body, LeaveMessage | codec.GossipMessage)
        assert codec.is_genuine(body, verify)
        for place in range(4, len(example(name))):
            octets = bytearray(example(name))
            octets[place] ^= 1
            try:
                changed = codec.decode(bytes(octets))
            except OtherVersion:
                continue
            assert isinstance(changed, LeaveMessage | codec.GossipMessage)
            assert not codec.is_genuine(changed, verify), f"{name}: octet {place} is not covered"


def test_leave_of_any_major_version_is_read_and_other_bodies_are_refused() -> None:
    for name, body in BODIES.items():
        octets = b"\x02" + example(name)[1:]
        if name == "LEAVE":
            assert codec.decode(octets + b"more") == body
        else:
            with pytest.raises(OtherVersion, match=r"version 2\.0, we speak 1\.0"):
                codec.decode(octets)


def test_message_whose_origin_speaks_another_major_is_refused() -> None:
    octets = bytearray(example("MESSAGE"))
    octets[4] = 3
    with pytest.raises(OtherVersion):
        codec.decode(bytes(octets))


@given(st.sampled_from(sorted(BODIES)), st.integers(0, 300), st.binary(max_size=8))
def test_hostile_bodies_raise_only_malformed(name: str, place: int, scratch: bytes) -> None:
    octets = example(name)
    broken = octets[:place] + scratch + octets[place + len(scratch) :]
    try:
        body = codec.decode(broken)
    except Malformed:
        return
    if not isinstance(body, LeaveMessage):
        assert codec.encode(body)[2:] == broken[2:], "each body has one encoding"


@given(st.binary(max_size=80), st.sampled_from([take for take, _, _ in CONTENTS.values()]))
def test_hostile_contents_raise_only_malformed(octets: bytes, take: object) -> None:
    try:
        take(octets)  # type: ignore[operator]
    except Malformed:
        return


@pytest.mark.parametrize(("text", "is_one"), [("a", True), ("", False), ("ü" * 128, False), ("\ud800", False)])
def test_names_of_questions_and_events_are_validated(text: str, is_one: bool) -> None:
    assert payloads.is_name(text) is is_one
