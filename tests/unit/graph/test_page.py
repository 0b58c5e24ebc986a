"""The page about the graph shows octets; here they are read back. And bytes at large."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.graph.messages import peer
from chaplain.graph.messages.event import (
    CONTENT_BYTES_MAX,
    EventDraft,
    ParentLink,
    confirm_label,
    decode,
    event_label,
    sign,
    signed_part,
)
from chaplain.graph.messages.peer import (
    Confirmation,
    EventBatch,
    Fetched,
    FetchMissing,
    GetData,
    Inv,
    Item,
    Leaves,
    SyncEvent,
)
from chaplain.link.auth.identity import Identity, verify
from tests.unit.graph.graph_stage import identity

PAGE = (Path(__file__).parents[3] / "docs" / "protocol" / "graph.md").read_text()
NODE = Identity(bytes(range(32)))


def examples(heading: str) -> list[bytes]:
    section = re.split(rf"\n##+ {heading}\n", PAGE)[1].split("\n## ")[0].split("\n### ")[0]
    return [bytes.fromhex(block) for block in re.findall(r"```hex\n(.*?)```", section, re.DOTALL)]


FIRST, SECOND_EVENT = map(decode, examples("Event"))
WORD = NODE.sign(confirm_label("demo"), FIRST.id)
MESSAGES = {
    "EVENTS": EventBatch((Item(FIRST.raw, ((NODE.key, WORD),)),), peer.FIRST),
    "INV": Inv("notes", (Confirmation(NODE.key, FIRST.id, WORD),)),
    "GETDATA": GetData("notes", (FIRST.id,)),
    "SYNC": SyncEvent((Leaves("notes", 0, 1, (FIRST.id,)),)),
    "FETCH": FetchMissing("notes", 7, 0, (FIRST.id,)),
    "FETCHED": Fetched("notes", 7, 1, True, 0, ()),
}


def test_event_examples_match_the_codec():
    assert (FIRST.stream, FIRST.writer, FIRST.content, FIRST.height, FIRST.links) == ("notes", "ann", b"hello", 0, ())
    assert SECOND_EVENT.previous == ParentLink(FIRST.id, 0)
    assert SECOND_EVENT.height == 5
    for event in (FIRST, SECOND_EVENT):
        assert event.id == hashlib.sha256(event.raw).digest()
        assert event.head + event.content == event.raw
        assert verify(NODE.key, event_label("demo"), signed_part(event), event.signature)
        assert not verify(NODE.key, event_label("other"), signed_part(event), event.signature)


@pytest.mark.parametrize("name", MESSAGES)
def test_message_examples_match_the_codec(name):
    found = examples(name)
    body, payload = found[0], found[1] if len(found) > 1 else b""
    assert peer.decode(body, payload) == MESSAGES[name]
    assert peer.encode(MESSAGES[name]) == (body, payload)


links = st.builds(ParentLink, st.binary(min_size=32, max_size=32).filter(any), st.integers(0, 2**32 - 2))
drafts = st.builds(
    EventDraft,
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20),
    st.binary(max_size=50),
    st.integers(0, 2**64 - 1),
    st.none() | links,
    st.lists(links, max_size=5, unique_by=lambda link: link.id).map(tuple),
)


@given(drafts)
def test_signed_event_decodes_to_its_draft(draft):
    if draft.previous is not None and draft.previous.id in {link.id for link in draft.parents}:
        return
    event = sign(draft, identity(1), "demo")
    assert (event.stream, event.content, event.timestamp_ns) == (draft.stream, draft.content, draft.timestamp_ns)
    assert event.previous == draft.previous
    assert set(event.parents) == set(draft.parents)
    assert all(link.height < event.height for link in event.links)


@given(st.integers(0, 2**20), st.integers(1, 255))
def test_changed_octet_is_malformed_or_breaks_the_signature(place, mask):
    raw = bytearray(SECOND_EVENT.raw)
    raw[place % len(raw)] ^= mask
    try:
        event = decode(bytes(raw))
    except Malformed:
        return
    assert event.id != SECOND_EVENT.id
    assert not verify(event.author, event_label("demo"), signed_part(event), event.signature)


def test_content_above_the_bound_is_malformed():
    with pytest.raises(Malformed, match="bound"):
        sign(EventDraft("notes", bytes(CONTENT_BYTES_MAX + 1), 0), identity(1), "demo")
