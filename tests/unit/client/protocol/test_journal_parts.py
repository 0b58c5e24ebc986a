"""Packing, unpacking, lanes, headers and identity files, each by itself."""

from __future__ import annotations

import contextlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaplain import AsyncClient, Client
from chaplain.client.aio.journal import AsyncJournal, AsyncReader, AsyncWriter
from chaplain.client.api import journal_calls, sql_calls
from chaplain.client.api.journal_calls import many, single
from chaplain.client.connect.identity_file import IdentityFile, format_identity_file, parse_identity_file
from chaplain.client.connect.options import prepare
from chaplain.client.protocol.journal import packing
from chaplain.client.protocol.journal.batch_builder import BatchBuilder
from chaplain.client.protocol.journal.events import Batch, ReadChunk
from chaplain.client.protocol.journal.lane import Packed, ProducerLane
from chaplain.client.protocol.journal.packing import make_pack
from chaplain.client.protocol.journal.signer import PackSigner
from chaplain.client.protocol.journal.unpacking import messages_of
from chaplain.client.sync.journal import Journal, Reader, Writer
from chaplain.client.types import validation
from chaplain.client.types.equivocation_proof import pack_proof, read_proof
from chaplain.client.types.journal import PLACE_UNKNOWN, ClientRecord
from chaplain.client.types.receipts import ReceiptPlace, ReceiptSequence, last_receipt
from chaplain.client.types.results import Member
from chaplain.errors import ConfigError, Malformed, Missing, Misused
from chaplain.journal.messages.client import ProofIs, Run
from chaplain.journal.messages.signing import PackCheck, SignatureType, holds
from chaplain.journal.messages.write_request import check_pack
from chaplain.link.auth.identity import Identity, to_text
from chaplain.segment.headers import decode_headers, encode_headers, split
from chaplain.segment.pack import decode_pack

ME = Identity(b"m" * 32)
SIGNER = PackSigner(ME, "cluster")
DOCS = Path(__file__).parents[4] / "docs"

octets = st.binary(max_size=40)
headers = st.dictionaries(st.text(min_size=1, max_size=8), octets, max_size=4)
items = st.tuples(octets, st.none() | octets, st.none() | headers)


def portion(raw: bytes, start: int, stop: int, first: int = 0) -> ReadChunk:
    return ReadChunk(1, start, stop, first, 7, 3, 99, 2, raw)


@given(st.lists(st.tuples(st.booleans(), st.lists(items, min_size=1, max_size=6)), min_size=1, max_size=5), st.data())
def test_packed_messages_are_unpacked_unchanged(groups, data) -> None:
    batches = []
    wanted = []
    request = 10
    for transaction, group in groups:
        gathering = BatchBuilder()
        for number, (value, key, named) in enumerate(group):
            gathering.add(value, key, named)
            wanted.append((value, key, named or {}, request, number if transaction else 0))
            request += not transaction
        request += transaction
        batches.append(gathering.batch("s", transaction=transaction))
    raw = make_pack(5, 10, batches, SIGNER)
    check_pack(raw)
    assert holds(PackCheck(SignatureType.ED25519, ME.key, "cluster", "s", raw))
    start = data.draw(st.integers(0, len(wanted)))
    stop = data.draw(st.integers(start, len(wanted)))
    found = messages_of("s", portion(raw, 100 + start, 100 + stop, 100)) if start < stop else []
    assert [(m.value, m.key, m.headers, m.client_message_id, m.message_no) for m in found] == wanted[start:stop]
    assert [m.offset for m in found] == list(range(100 + start, 100 + stop))
    assert {(m.client_id, m.regime, m.index, m.ingest_node, m.timestamp) for m in found} <= {(5, 3, 7, 2, 99)}


def test_packs_of_a_chunk_without_consecutive_ids_are_malformed() -> None:
    packs = [make_pack(1, first, [Batch("s", [b"%d" % n for n in range(3)])], SIGNER) for first in (1, 4, 7)]
    found = messages_of("s", portion(b"".join(packs), 2, 8))
    assert [(m.offset, m.client_message_id) for m in found] == [(n, n + 1) for n in range(2, 8)]
    with pytest.raises(Malformed):
        messages_of("s", portion(b"".join(packs), 2, 10))


@given(st.binary(max_size=300), st.data())
def test_hostile_chunks_raise_only_malformed(noise, data) -> None:
    raw = bytearray(make_pack(1, 1, [many("s", [(b"a", b"k", {"h": b"v"}), b"b"])], SIGNER))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at : at + len(noise)] = noise
    with contextlib.suppress(Malformed):
        messages_of("s", portion(bytes(raw), 0, 2))


def test_malformed_headers_are_shown_under_the_empty_name() -> None:
    raw = make_pack(1, 1, [Batch("s", [b"v"], None, [b"whatever"])], SIGNER)
    assert messages_of("s", portion(raw, 0, 1))[0].headers == {"": b"whatever"}


def test_messages_and_members_compare_and_hash_by_value() -> None:
    raw = make_pack(1, 1, [Batch("s", [b"v", b"v"], None, [encode_headers({"a": b"1"})] * 2)], SIGNER)
    first, second = messages_of("s", portion(raw, 0, 2))
    assert len({first, messages_of("s", portion(raw, 0, 2))[0], second}) == 2
    here, gone = Member(1, "tcp://x:1", "alive", 1, headers={"a": "b"}), Member(1, "tcp://x:1", "left", 1)
    assert len({here, Member(1, "tcp://x:1", "alive", 1, headers={"a": "b"}), gone}) == 2


def test_messages_are_selected_by_their_type() -> None:
    raws = [make_pack(1, n + 1, [single("s", b"%d" % n, None, None, message_type=n % 3 * 2)], SIGNER) for n in range(6)]
    chunk = portion(b"".join(raws), 0, 6)
    assert [(m.value, m.type) for m in messages_of("s", chunk)] == [(b"%d" % n, n % 3 * 2) for n in range(6)]
    assert [(m.offset, m.type) for m in messages_of("s", chunk, {2, 4})] == [(1, 2), (2, 4), (4, 2), (5, 4)]
    assert messages_of("s", chunk, {7}) == []


def test_messages_of_different_types_share_no_pack() -> None:
    batches = [single("s", b"x", None, None, message_type=kind) for kind in (2, 2, 3, 2)]
    assert packing.choose(batches, 100) == 2


@pytest.mark.parametrize(
    ("message_type", "problem"),
    [(1, "type 1 is for statements"), (240, "is 0 or 2 to 239"), (-1, "is 0 or 2 to 239"), ("2", "is 0 or 2 to 239")],
)
def test_types_of_the_cluster_are_refused(message_type, problem) -> None:
    for call in (
        lambda: single("s", b"x", None, None, message_type=message_type),
        lambda: many("s", [b"x"], message_type=message_type),
    ):
        with pytest.raises(Misused, match=problem):
            call()


def test_neighbouring_messages_share_a_pack_up_to_its_bounds() -> None:
    small = Batch("s", [b"x"], size_bytes=1)
    large = Batch("s", [b"x"], size_bytes=packing.PACK_BYTES)
    assert packing.choose([small] * 10, 100) == 10
    assert packing.choose([small, small, Batch("t", [b"x"], size_bytes=1)], 100) == 2
    assert packing.choose([small, large, small], 100) == 1
    assert packing.choose([large, large], 100) == 1
    assert packing.choose([small] * 10, 4) == 4
    assert packing.choose([Batch("s", [b"x"] * 5, size_bytes=5)], 4) == 0
    assert packing.choose([Batch("s", [b"x"] * 5, transaction=True, size_bytes=5)], 4) == 1
    assert packing.choose([], 4) == 0


@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=50), st.booleans())
def test_packed_size_never_exceeds_the_estimate(values, transaction) -> None:
    gathering = BatchBuilder()
    for value in values:
        gathering.add(value, value, {"h": value})
    batch = gathering.batch("s", transaction=transaction)
    assert len(make_pack(1, 1, [batch], SIGNER)) <= packing.packed_bytes(batch)


def test_unwritable_values_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(TypeError, match=r"bytes are wanted, not str"):
        single("s", "text", None, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes are wanted"):
        single("s", b"", "key", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in parts"):
        single("s", bytes(packing.REQUEST_BYTES_MAX), None, None)
    with pytest.raises(ValueError, match="at least one"):
        many("s", [])
    with pytest.raises(ValueError, match="names of 1 to"):
        single("s", b"", None, {"": b"x"})
    for headers, sentence in (
        ({"a": "1"}, "the value of header 'a' is bytes, not str"),
        ({"a": None}, "the value of header 'a' is bytes, not NoneType"),
        ({1: b"x"}, "a header's name is a str, not 1"),
        ([("a", b"1")], "headers are a dictionary"),
    ):
        with pytest.raises(TypeError, match=sentence):
            single("s", b"", None, headers)  # type: ignore[arg-type]
    for request in ("bogus", (1,), None, (0, 1), (1, 2, 3), (1, "2")):
        with pytest.raises(ValueError, match="a request's id is two numbers"):
            journal_calls.resolve(request)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="parameters are a list or a mapping"):
        sql_calls.statement("select ?", 1)  # type: ignore[arg-type]
    for name in ("", "a b", "_config", "é", "x" * 256):
        with pytest.raises(ValueError, match="stream"):
            validation.journal_stream(name)
    assert single("s", memoryview(b"ab"), bytearray(b"k"), None).values == [b"ab"]  # type: ignore[arg-type]


def test_receipts_of_a_run_have_consecutive_offsets_and_ids() -> None:
    moment = (9, 2, 77, b"h" * 32)
    each = ReceiptSequence(ReceiptPlace(4, 10, 3, "s", 100, 3, *moment))
    assert [(r.offset, r.client_message_id, r.id) for r in each] == [(100 + n, 10 + n, (4, 10 + n)) for n in range(3)]
    together = ReceiptSequence(ReceiptPlace(4, 10, 1, "s", 100, 3, *moment))
    assert [(r.offset, r.client_message_id) for r in together] == [(100, 10), (101, 10), (102, 10)]
    assert [r.offset for r in ReceiptSequence(ReceiptPlace(4, 10, 2, "s", PLACE_UNKNOWN, 2))] == [PLACE_UNKNOWN] * 2
    last = each[2]
    assert last == each[-1] == [*each][-1]
    assert each[1:] == [*each][1:]
    assert each == [*each]
    assert each == ReceiptSequence(ReceiptPlace(4, 10, 3, "s", 100, 3, *moment)) != together
    assert (len(each), repr(each)) == (3, repr([*each]))
    assert each + together == [*each, *together]
    assert [*each].__add__(together[:]) == together.__radd__([*each])
    with pytest.raises(IndexError):
        each[3]
    assert (dict(last)["offset"], last.timestamp, last.hash) == (102, 77, b"h" * 32)


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("base_offset", [0, 100, PLACE_UNKNOWN])
def test_single_receipt_equals_the_receipt_in_its_run(requests: int, base_offset: int) -> None:
    place = ReceiptPlace(4, 10, requests, "s", base_offset, 3, 9, 2, 77, b"h" * 32)
    receipts = ReceiptSequence(place)
    assert [receipts[number] for number in range(3)] == [*receipts]
    assert last_receipt(place) == [*receipts][-1]


# Lanes.


def lane_with(*sizes: int) -> ProducerLane[str]:
    """Packs of one request with so many messages each."""
    lane: ProducerLane[str] = ProducerLane(1)
    for number, messages in enumerate(sizes, 1):
        lane.add(Packed(number, requests=1, messages=messages, stream="s", raw=b"x", items=[str(number)]))
    return lane


def run(first_id: int, requests: int, base: int, messages: int, stream: str = "s") -> Run:
    return Run(1, first_id, requests, stream, base, messages, 5, 1, 9, b"h")


def test_run_that_overlaps_settled_packs_places_the_remaining_packs() -> None:
    lane = lane_with(2, 3, 4)
    assert [place.base_offset for _, place in lane.settle(run(1, 1, 10, 2))] == [10]
    assert [place.base_offset for _, place in lane.settle(run(1, 3, 10, 9))] == [12, 15]
    assert lane.settle(run(1, 3, 10, 9)) == []
    assert not lane.in_flight
    assert lane.in_flight_bytes == 0


def test_settled_through_distinguishes_written_and_unwritten_packs() -> None:
    lane: ProducerLane[str] = ProducerLane(1)
    for first in (1, 4, 7):
        lane.add(Packed(first, requests=3, messages=3, stream="s", raw=b"x", items=[str(first)]))
    assert [(packed.first_id, place.base_offset) for packed, place in lane.settle_through(5)] == [(1, PLACE_UNKNOWN)]
    assert [packed.first_id for packed in lane.take_after(6)] == [7]
    assert list(lane.in_flight) == [4]


def test_going_back_neither_skips_nor_repeats_settled_packs() -> None:
    lane = lane_with(1, 1, 1, 1)
    for packed in list(lane.unsent()):
        lane.sent(packed)
    assert not list(lane.unsent())
    lane.settle(run(1, 2, 0, 2))
    lane.rewind(1)
    assert [packed.first_id for packed in lane.unsent()] == [3, 4]
    lane.rewind(4)
    assert [packed.first_id for packed in lane.unsent()] == [3, 4], "further forward is no going back"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=20), st.data())
def test_every_pack_is_settled_once_at_its_offset(sizes, data) -> None:
    lane = lane_with(*sizes)
    offsets = [sum(sizes[:number]) for number in range(len(sizes))]
    answered: dict[str, int] = {}
    for _ in range(data.draw(st.integers(0, 30))):
        first = data.draw(st.integers(1, len(sizes)))
        count = data.draw(st.integers(1, len(sizes) - first + 1))
        answer = run(first, count, offsets[first - 1], sum(sizes[first - 1 : first - 1 + count]))
        for packed, place in lane.settle(answer):
            [name] = packed.items
            assert name not in answered
            answered[name] = place.base_offset
    assert answered == {name: offsets[int(name) - 1] for name in answered}
    assert {*answered} | {packed.items[0] for packed in lane.in_flight.values()} == {
        str(number) for number in range(1, len(sizes) + 1)
    }


# Headers.


def test_headers_page_example_matches_the_codec() -> None:
    page = (DOCS / "protocol/headers.md").read_text()
    example = re.search(r"```hex\n(.*?)```", page, re.DOTALL)
    assert example is not None
    raw = bytes.fromhex(re.sub(r"#.*", "", example[1]))
    assert decode_headers(raw) == {"a": b"1", "trace": b"\x00\xff"}
    assert encode_headers({"trace": b"\x00\xff", "a": b"1"}) == raw


@given(st.lists(headers, max_size=10), octets)
def test_headers_decode_equally_one_by_one_and_by_column(cells, before) -> None:
    encoded = [encode_headers(cell) for cell in cells]
    assert [decode_headers(cell) for cell in encoded] == cells
    sizes = np.array([len(cell) for cell in encoded], np.int64)
    data = before + b"".join(encoded)
    parts = split(data, len(before) + np.cumsum(sizes) - sizes, sizes)
    assert parts.counts.tolist() == [len(cell) for cell in cells]
    names = [data[a : a + n].decode() for a, n in zip(parts.name_starts, parts.name_sizes, strict=True)]
    values = [data[a : a + n] for a, n in zip(parts.value_starts, parts.value_sizes, strict=True)]
    assert list(zip(names, values, strict=True)) == [
        pair for cell in cells for pair in sorted(cell.items(), key=lambda pair: pair[0].encode())
    ]


@given(octets)
def test_hostile_headers_raise_only_malformed(raw) -> None:
    with contextlib.suppress(Malformed):
        assert encode_headers(decode_headers(raw)) == raw
    with contextlib.suppress(Malformed):
        split(raw, [0], [len(raw)])


# Identity files.


def test_identity_file_with_hmac_secret_is_read_and_hides_it_in_repr() -> None:
    passport = parse_identity_file(format_identity_file(ME, "c", "aes-256-gcm", (), b"s" * 32))
    assert passport.secret == b"s" * 32
    assert to_text(b"s" * 32) not in repr(passport)
    with pytest.raises(Malformed, match="identity: hmac"):
        parse_identity_file(format_identity_file(ME, "c", "aes-256-gcm", (), b"short"))


# Proof.


def signed(first_id: int, value: bytes, count: int = 1, lane: int = 7, signer: Identity = ME) -> bytes:
    return make_pack(lane, first_id, [Batch("orders", [value] * count)], PackSigner(signer, "c"))


@pytest.mark.parametrize(
    ("first", "second", "proves"),
    [
        (signed(1, b"a"), signed(1, b"b"), True),
        (signed(1, b"a", 3), signed(3, b"b", 2), True),
        (signed(1, b"a", 2), signed(3, b"b"), False),
        (signed(1, b"a"), signed(1, b"a"), False),
        (signed(1, b"a"), signed(1, b"b", lane=8), False),
        (signed(1, b"a"), signed(1, b"b", signer=Identity(b"o" * 32)), False),
        (signed(1, b"a"), make_pack(7, 1, [Batch("orders", [b"b"])], PackSigner(ME, "c", b"s" * 32)), False),
    ],
)
def test_proof_is_valid_only_for_two_different_requests_of_one_id(first: bytes, second: bytes, proves: bool) -> None:
    said = ProofIs(1, "c", ME.key, "orders", len(first), "orders")
    assert read_proof(pack_proof(said, first + second)).holds is proves


@given(st.binary(max_size=400), st.integers(-(2**63), 2**63 - 1))
def test_malformed_proof_is_invalid(packs: bytes, first_bytes: int) -> None:
    said = ProofIs(1, "c", ME.key, "orders", first_bytes, "orders")
    with contextlib.suppress(Malformed):
        assert not read_proof(pack_proof(said, packs)).holds


def test_identity_file_with_cluster_data_is_sufficient_to_connect(tmp_path) -> None:
    keys = [Identity(bytes([number]) * 32).key for number in (1, 2)]
    text = format_identity_file(ME, "the-cluster", "aes-256-gcm", keys)
    passport = parse_identity_file(text)
    assert (passport.identity.key, passport.cluster, passport.seal, passport.node_keys) == (
        ME.key,
        "the-cluster",
        "aes-256-gcm",
        tuple(keys),
    )
    assert to_text(b"m" * 32) not in repr(passport)
    old = parse_identity_file(ME.text())
    assert (old.identity.key, old.cluster, old.node_keys) == (ME.key, "", ())
    file = tmp_path / "me"
    file.write_text(text)
    how = {"cluster": None, "node_keys": None, "name": None, "node": None, "timeout_s": 1.0}
    opening = prepare(endpoints=["tcp://127.0.0.1:1"], identity=file, **how)
    assert (opening.cluster, opening.node_keys) == ("the-cluster", frozenset(keys))
    file.write_text(ME.text())
    with pytest.raises(ConfigError, match="nothing to connect to"):
        prepare(endpoints=["tcp://127.0.0.1:1"], identity=file, **how)


@pytest.mark.parametrize(
    "tail", ["cluster a", "cluster a\ncluster b\n", "nonsense x\n", "node short\n", "seal \n", "\n"]
)
def test_invalid_identity_file_is_malformed(tail) -> None:
    with pytest.raises(Malformed):
        parse_identity_file(ME.text() + tail)


@given(st.text(max_size=200))
def test_hostile_identity_files_raise_only_malformed(tail) -> None:
    with contextlib.suppress(Malformed):
        assert isinstance(parse_identity_file(ME.text() + tail), IdentityFile)


# Faces.


@pytest.mark.parametrize(
    ("one", "other"), [(Client, AsyncClient), (Journal, AsyncJournal), (Writer, AsyncWriter), (Reader, AsyncReader)]
)
def test_sync_and_async_classes_have_equal_methods_and_arguments(one, other) -> None:
    def shape(face: type) -> dict[str, list[str]]:
        found = inspect.getmembers(face, inspect.isroutine)
        return {name: [*inspect.signature(method).parameters] for name, method in found if not name.startswith("_")}

    assert shape(one) == shape(other)


def test_client_is_found_by_its_current_name() -> None:
    def record(acl: str, status: str) -> ClientRecord:
        return ClientRecord("eve", acl * 15, "00", status, False, (), ())

    assert journal_calls.find_client("eve", [record("01", "removed"), record("02", "active")]) == b"\2" * 15
    with pytest.raises(Missing, match="there is no client 'eve'"):
        journal_calls.find_client("eve", [record("01", "compromised")])


def test_isolated_batches_share_no_pack_with_others():
    plain, isolated = Batch("orders", [b"a"], size_bytes=1), Batch("orders", [b"b"], size_bytes=1, isolated=True)
    assert packing.choose([plain, plain, isolated], 10) == 2
    assert packing.choose([isolated, isolated, plain], 10) == 2
    pack = decode_pack(make_pack(1, 1, [isolated, isolated], SIGNER))
    assert (pack.isolated, pack.values) == (True, (b"b", b"b"))
    assert not decode_pack(make_pack(1, 1, [plain], SIGNER)).isolated
    assert single("orders", b"a", None, None, isolated=True).isolated
    assert many("orders", [b"a"], isolated=True).isolated
