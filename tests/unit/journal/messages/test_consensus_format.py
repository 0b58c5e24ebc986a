"""Bytes: the examples in the document, and whatever else may come."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chaplain.errors import Malformed
from chaplain.journal.consensus.hard_state import (
    HardState,
    VotingState,
    decode_hard_state,
    encode_hard_state,
    load_hard_state,
)
from chaplain.journal.messages import consensus as om
from chaplain.journal.messages.cluster import (
    Body,
    ConfigEntry,
    DataEntry,
    Reference,
    chain_hash,
    decode_body,
    encode_body,
    genesis,
)
from chaplain.journal.storage.records import SyncHint, decode_sync_hint, encode_sync_hint

DOCUMENT = Path(__file__).parents[4] / "docs" / "protocol" / "journal-order.md"
EXAMPLES = {
    name: bytes.fromhex("".join(text.split()))
    for name, text in re.findall(r"```hex (\w+)\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
}
BODY = Body(
    2,
    7,
    3,
    1_700_000_000 * 10**9,
    b"\x11" * 32,
    (DataEntry(Reference(1, 2, 9), b"\x22" * 32), ConfigEntry(4, 1, b"\x05")),
)
HASH = b"\x33" * 32
MESSAGES: dict[str, om.OrderMessage] = {
    "propose": om.Propose(3, 7, b"\x01\x02\x03"),
    "acknowledge": om.ProposalAck(3, 7, HASH, 0, {2: 1}),
    "mark": om.AgreedMark(3, 7, HASH),
    "heard": om.MarkHeard(3, 8, 7),
    "canvass": om.Canvass(4, 8, 3),
    "canvassed": om.Canvassed(4, True, 3),
    "askvote": om.AskVote(4, 8, 3, False),
    "vote": om.Vote(4, True, 4, 0, {2: 1}, b"\x44" * 64),
    "fetch": om.Fetch(5, True),
    "supply": om.Supply(5, 5, (om.Supplied(b"\xb0\xd1", (b"\xaa\xbb",)), om.Supplied(b"\xb2", ())), 3),
    "question": om.RecoveryQuestion(0x1122334455667788, 1),
    "answer": om.RecoveryAnswer(0x1122334455667788, 3, 8, 3, VotingState.SOUND, 1, {2: 1}),
    "handover": om.Handover(3, 9),
    "recall": om.Recall(5, 256),
    "proof": om.ElectionProof(4, {1: b"\x44" * 64, 2: b"\x55" * 64}),
    "recalled": om.Recalled(
        5, (om.RecalledMessage(b"\xb0\xd1", b"\xe1\xe2\xe3", (b"\xaa\xbb",)), om.RecalledMessage(b"\xb2", b"\xe4", ()))
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_message_examples_match_the_codec(name: str) -> None:
    assert om.decode(EXAMPLES[name]) == MESSAGES[name]
    assert om.encode(MESSAGES[name], 2) == EXAMPLES[name]


def test_body_hard_state_and_hint_examples_match_the_codec() -> None:
    assert decode_body(EXAMPLES["body"]) == BODY
    assert encode_body(BODY) == EXAMPLES["body"]
    standing = HardState(bytes(range(16)), VotingState.SOUND, 3, 2, True, 0, {2: 1})
    assert decode_hard_state(EXAMPLES["standing"]) == standing
    assert encode_hard_state(standing) == EXAMPLES["standing"]
    assert decode_sync_hint(EXAMPLES["jot"]) == SyncHint(b"0123456789abcdef", 81920, 6)
    assert encode_sync_hint(SyncHint(b"0123456789abcdef", 81920, 6)) == EXAMPLES["jot"]
    assert set(EXAMPLES) == {*MESSAGES, "body", "standing", "jot"}


def test_every_cluster_has_its_own_hash_chain() -> None:
    assert genesis("one") != genesis("two")
    assert chain_hash(genesis("one"), b"body") != chain_hash(genesis("two"), b"body")


numbers = st.integers(0, 0xFFFF)
hashes = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
lives = st.dictionaries(st.integers(1, 255), numbers, max_size=5)
entries = st.one_of(
    st.builds(DataEntry, st.builds(Reference, st.integers(0, 255), numbers, numbers), hashes),
    st.builds(ConfigEntry, st.integers(2, 255), st.integers(0, 255), st.binary(max_size=20)),
)
bodies = st.builds(
    Body,
    st.integers(1, 0xFFFFFFFF),
    st.integers(1, 1 << 60),
    st.integers(1, 255),
    numbers,
    hashes,
    st.lists(entries, max_size=5).map(tuple),
    st.booleans(),
)
supplied = st.builds(om.Supplied, st.binary(max_size=9), st.lists(st.binary(max_size=9), max_size=3).map(tuple))
kept = st.builds(
    om.RecalledMessage,
    st.binary(max_size=9),
    st.binary(max_size=9),
    st.lists(st.binary(max_size=9), max_size=3).map(tuple),
)
messages = st.one_of(
    st.builds(om.Propose, numbers, numbers, st.binary(max_size=40)),
    st.builds(om.ProposalAck, numbers, numbers, hashes, numbers, lives),
    st.builds(om.Vote, numbers, st.just(False), numbers, numbers, lives),
    st.builds(om.Vote, numbers, st.just(True), numbers, numbers, lives, signatures),
    st.builds(om.ElectionProof, numbers, st.dictionaries(st.integers(1, 255), signatures, max_size=5)),
    st.builds(om.AskVote, numbers, numbers, numbers, st.booleans()),
    st.builds(om.Supply, numbers, numbers, st.lists(supplied, min_size=1, max_size=3).map(tuple), numbers),
    st.builds(om.RecoveryAnswer, numbers, numbers, numbers, numbers, st.integers(1, 3), numbers, lives),
    st.builds(om.Recalled, numbers, st.lists(kept, max_size=3).map(tuple)),
)


@given(bodies)
def test_cluster_message_bodies_round_trip(body: Body) -> None:
    assert decode_body(encode_body(body)) == body


@given(messages)
def test_consensus_messages_round_trip(message: om.OrderMessage) -> None:
    assert om.decode(om.encode(message)) == message


@settings(max_examples=300)
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_hostile_bytes_raise_only_malformed(name: str, data: st.DataObject) -> None:
    raw = bytearray(EXAMPLES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    for decode in (om.decode, decode_body, decode_hard_state, decode_sync_hint):
        try:
            decode(cut)
        except Malformed:
            continue


def test_proof_with_a_repeated_voter_is_malformed() -> None:
    raw = om.encode(om.ElectionProof(4, {1: b"\x44" * 64, 2: b"\x55" * 64}), 2)
    twice = raw[:82] + b"\x01" + raw[83:]
    assert raw[82] == 2
    with pytest.raises(Malformed, match="voters must rise"):
        om.decode(twice)


def test_message_of_protocol_one_is_refused_by_its_number() -> None:
    raw = om.encode(om.MarkHeard(3, 8, 7), 2)
    with pytest.raises(Malformed, match="protocol 1, this program speaks 2"):
        om.decode(b"\x01" + raw[1:])


def test_huge_counts_are_refused_before_allocation() -> None:
    head = b"\x02\x0a" + bytes(14) + bytes(8) + bytes(4)
    with pytest.raises(Malformed):
        om.decode(head + b"\xff\xff" + b"\xff" * 8)
    with pytest.raises(Malformed):
        decode_body(encode_body(BODY)[:55] + b"\xff\xff\xff")


def test_only_a_founder_that_never_ran_may_lack_a_hard_state() -> None:
    disk, other = bytes(range(16)), bytes(16)
    assert load_hard_state(None, disk, disk, log_empty=True).state is VotingState.SOUND
    assert load_hard_state(None, disk, disk, log_empty=False).state is VotingState.WIPED
    assert load_hard_state(None, disk, other, log_empty=True).state is VotingState.WIPED
    kept = encode_hard_state(HardState(disk, VotingState.SOUND, 4, 1))
    assert load_hard_state(kept, disk, other, log_empty=False).regime == 4
    assert load_hard_state(kept, other, other, log_empty=False).state is VotingState.WIPED
    assert load_hard_state(kept[:-1] + b"x", disk, disk, log_empty=False).state is VotingState.WIPED
