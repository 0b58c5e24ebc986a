"""The examples of docs/protocol/sequence.md are what the code reads and writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaplain.errors import Malformed
from chaplain.sequence.messages import client
from chaplain.sequence.messages.entry import (
    NO_HASH,
    Ballot,
    EntryKind,
    SeatedMember,
    SequenceEntry,
    WorkSetChange,
    decode_change,
    decode_entries,
    decode_members,
    encode_change,
    encode_members,
    encode_run,
    entry_hash,
    event_hashes,
    make_entry,
    run_hash,
)
from chaplain.sequence.messages.peer import (
    PEER_STATE_BYTES,
    Beat,
    LogLength,
    PeerState,
    Seq,
    SequenceState,
    decode,
    encode,
)

PAGE = (Path(__file__).parents[3] / "docs/protocol/sequence.md").read_text()
PEER_STATE = PeerState(
    SequenceState.WRK,
    0x1122334455667788,
    0xA1,
    wants=True,
    promised=Ballot(3, 0xB2),
    head=LogLength(Ballot(3, 0xB2), 7),
    decided=6,
    decided_hash=bytes(range(32)),
    events=41,
)
ENTRIES = {
    "EVENTS entry": make_entry(
        EntryKind.EVENTS, Ballot(3, 0xB2), 0x0A0B0C0D, 0xA1, encode_run("ticks", "ann", [b"one", b"to"])
    ),
    "CHANGE entry": make_entry(
        EntryKind.CHANGE,
        Ballot(3, 0xB2),
        0x0A0B0C0D,
        0xB2,
        encode_change(WorkSetChange(SeatedMember(5, 0xC3), joins=True)),
    ),
    "FOUND entry": make_entry(
        EntryKind.FOUND, Ballot(1, 0xA1), 1, 0xA1, encode_members([SeatedMember(1, 0xA1), SeatedMember(2, 0)])
    ),
}


def examples(name: str) -> list[bytes]:
    section = PAGE.split(f"### Example: {name}\n")[1].split("\n#")[0]
    blocks = re.findall(r"```hex\n(.*?)```", section, re.DOTALL)
    return [bytes.fromhex(re.sub(r"#.*", "", block)) for block in blocks]


def test_peer_state_example_matches_the_codec() -> None:
    [body] = examples("BEAT")
    assert len(body) == PEER_STATE_BYTES == 108
    assert decode(body, b"") == Beat(PEER_STATE)
    assert encode(Beat(PEER_STATE)) == (body, b"")


def test_seq_example_matches_the_codec() -> None:
    rest, payload = examples("SEQ")
    members = (SeatedMember(1, 0xA1), SeatedMember(2, 0xB2))
    told = Seq(PEER_STATE, 6, bytes(range(32)), Ballot(3, 0xB2), 0xB2, members, {"ticks": (41, bytes(32))})
    body, streams = encode(told)
    assert (body[PEER_STATE_BYTES:], streams) == (rest, payload)
    assert decode(body, streams) == told


@pytest.mark.parametrize("name", ENTRIES)
def test_entry_examples_match_the_codec(name: str) -> None:
    [octets] = examples(name)
    assert ENTRIES[name].encoded == octets
    assert decode_entries(octets) == [ENTRIES[name]]


def test_hash_examples_match_the_code() -> None:
    founded = entry_hash(NO_HASH, 1, ENTRIES["FOUND entry"].encoded)
    assert founded.hex() in PAGE
    [run] = ENTRIES["EVENTS entry"].runs
    assert list(run.values()) == [b"one", b"to"]
    assert list(run.values(skip=1)) == [b"to"]
    assert run_hash(NO_HASH, 1, run) != run_hash(NO_HASH, 2, run)
    first, second = event_hashes(NO_HASH, 1, run.values())
    assert list(event_hashes(first, 2, [b"to"])) == [second]


@pytest.mark.parametrize(
    "octets",
    [
        ENTRIES["EVENTS entry"].encoded[:-1],
        ENTRIES["EVENTS entry"].encoded[:20],
        b"\x09" + ENTRIES["FOUND entry"].encoded[1:],
        b"\x04" + ENTRIES["FOUND entry"].encoded[1:],
        ENTRIES["FOUND entry"].encoded[:1] + bytes(8) + ENTRIES["FOUND entry"].encoded[9:],
        ENTRIES["CHANGE entry"].encoded[:-8] + bytes(8),
    ],
)
def test_entries_that_cannot_be_applied_are_malformed(octets: bytes) -> None:
    with pytest.raises(Malformed):
        decode_entries(octets)


def test_wrong_bodies_are_malformed() -> None:
    for body in (b"", b"\x00", b"\x02" + bytes(24), b"\x01" + bytes(13)):
        with pytest.raises(Malformed):
            decode_members(body)
    with pytest.raises(Malformed):
        decode_change(b"\x02" + bytes(12))
    with pytest.raises(Malformed):
        client.decode_request(client.encode(client.ReadRequest("a b", 0, 0, 0)))
    with pytest.raises(Malformed):
        client.split([1, 2], b"ab")
    with pytest.raises(Malformed):
        client.decode_page(b"\x01")


def test_entry_decodes_from_its_own_octets() -> None:
    entry: SequenceEntry = ENTRIES["CHANGE entry"]
    assert decode_change(entry.body) == WorkSetChange(SeatedMember(5, 0xC3), joins=True)
