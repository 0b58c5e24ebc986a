"""A client's write request: the name of a stream and a pack of `segment/`, signed together.

Decides which octets are a pack that readers of the log can decode, and what a signature covers. Refuses to know who may
write: `execution` decides that. The layout of journal.txt's fields in a pack, and byte tables:
docs/protocol/journal-requests.md.

Invariants: `segment.arrow` reads every pack that passes `check_pack` without an error. `check_pack` never looks at
single messages: it checks tables and sums.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import sha256

import numpy as np

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.segment import headers
from chaplain.segment.layout import HASH_BYTES, Bytes, Octets, octets, view_of
from chaplain.segment.pack import (
    ISOLATED,
    ISOLATED_MAX,
    NOTHING,
    PACK_HEAD_BYTES,
    PackHead,
    column_count,
    digest_of,
    read_head,
)
from chaplain.wire.limits import STRING_BYTES_MAX
from chaplain.wire.primitives import VCHAR, put_string

REQUEST_LABEL = b"chaplain request 1"
REQUEST_ID_MAX = 0xFFFFFFFF
_COUNT_AT = 4
_CLIENT_ID_AT = 8
_TYPE_AT = 21
COLUMNS_AT = 23
"""Position of the octet in a pack that lists its columns."""
RESERVED = "_"
"""Streams whose names begin with this prefix belong to the cluster itself."""


PYTHON_SUM_MAX = 64
"""Up to this many messages, `check_pack` adds up the sizes in Python: that is faster than numpy's first call."""

TYPE_MAX = 239
"""Larger types belong to the cluster: two-phase writes and commands to consumers."""
STATEMENTS = 1
"""Type of packs whose messages are statements for the stream's database."""
EXECUTED = (STATEMENTS, 0xF3)
"""Types of packs whose messages every node executes one by one: statements, and commands to consumers."""


class Heading(Frozen, frozen=True):
    """The first fields of a pack, before its signature is verified."""

    client_id: int
    first_id: int
    requests: int
    messages: int
    signature_type: int
    digest: bytes
    """Digest of the pack, as the pack states it."""
    size_bytes: int
    message_type: int = 0

    @property
    def last_id(self) -> int:
        return self.first_id + self.requests - 1


def client_id_of(raw: bytes) -> int:
    """The client id that the pack claims."""
    return int.from_bytes(raw[_CLIENT_ID_AT : _CLIENT_ID_AT + 4], "little")


def statements_in(raw: bytes) -> int:
    """The number of statements, or of commands to consumers, that the pack claims; 0 for a pack of anything else."""
    executed = len(raw) > _TYPE_AT and raw[_TYPE_AT] in EXECUTED
    return int.from_bytes(raw[_COUNT_AT : _COUNT_AT + 4], "little") if executed else 0


def read_heading(raw: Bytes) -> Heading:
    """Decode the heading of one pack: cheap, and enough to know its lane and its request ids."""
    head = _read_head(raw)
    ids = (head.client_id, head.first_id, head.requests, head.count)
    return Heading(*ids, head.signature_type, head.digest, head.end, head.message_type)


def _read_head(raw: Bytes) -> PackHead:
    """The head of a single pack. Raises `Malformed` if octets follow the pack, or if its ids are not possible on a
    lane.
    """
    head = read_head(raw, 0)
    if head.end != len(raw):
        raise Malformed(f"request: {len(raw) - head.end} octets too many")
    if not head.client_id or not head.first_id or head.first_id + head.requests - 1 > REQUEST_ID_MAX:
        raise Malformed(f"request: lane {head.client_id}, first id {head.first_id}: both count from 1, in 32 bits")
    return head


def check_pack(raw: Bytes) -> PackHead:
    """Check a pack and return its header.

    Raises `Malformed` unless the sizes in its tables add up and its digest is correct.
    """
    head = _read_head(raw)
    if head.columns & ISOLATED and head.count > ISOLATED_MAX:
        raise Malformed(f"request: an isolated pack has at most {ISOLATED_MAX} messages, not {head.count}")
    view = view_of(raw)
    end = _end_of_few(view, head) if head.count <= PYTHON_SUM_MAX else _end_of_many(octets(view), head)
    if end + 7 & -8 != head.end:
        raise Malformed("request: sizes do not add up")
    signature_end = PACK_HEAD_BYTES + head.signature_bytes
    if any(view[end:]) or any(view[signature_end : head.tables_at]):
        raise Malformed("request: padding that is not zero")
    if digest_of(view, head) != head.digest:
        raise Malformed("request: the digest is not that of the pack")
    return head


def _end_of_few(view: memoryview, head: PackHead) -> int:
    """The position where the data ends, after a check of the tables. For few messages this is faster than any use of
    numpy.
    """
    tabled = head.tabled_requests
    used = tabled + head.count * column_count(head.columns)
    words: tuple[int, ...] = struct.unpack_from(f"<{used}I", view, head.tables_at)
    if tabled and (min(words[:tabled]) < 1 or sum(words[:tabled]) != head.count):
        raise Malformed("request: the request table does not add up")
    if NOTHING in words[tabled : tabled + head.count]:
        raise Malformed("request: a value must be there")
    if used & 1 and any(view[head.data_at - 4 : head.data_at]):
        raise Malformed("request: padding that is not zero")
    sizes = words[tabled:]
    return head.data_at + sum(sizes) - NOTHING * sizes.count(NOTHING)


def _end_of_many(view: Octets, head: PackHead) -> int:
    """As `_end_of_few`, but numpy computes the sums."""
    tables = view[head.tables_at : head.data_at].view("<u4")
    requests = tables[: head.tabled_requests]
    if len(requests) and (int(requests.min()) < 1 or int(requests.sum(dtype=np.uint64)) != head.count):
        raise Malformed("request: the request table does not add up")
    used = head.tabled_requests + head.count * column_count(head.columns)
    sizes = tables[head.tabled_requests : used]
    if int(sizes[: head.count].max()) == NOTHING:
        raise Malformed("request: a value must be there")
    if tables[used:].any():
        raise Malformed("request: padding that is not zero")
    return head.data_at + int(sizes[sizes != NOTHING].sum(dtype=np.uint64))


def check_headers(raw: Bytes) -> None:
    """Raise `Malformed` if a reader could not decode the headers of one of the pack's messages.

    An ingest node calls this before it accepts a pack. Execution does not: its verdict on a message that was agreed
    under an earlier version must not change.
    """
    head = _read_head(raw)
    view = octets(view_of(raw))
    tables = view[head.tables_at : head.data_at].view("<u4")[head.tabled_requests :]
    stated = tables[: head.count * column_count(head.columns)].astype(np.int64)
    sizes = np.where(stated == NOTHING, 0, stated)
    ends = head.data_at + np.cumsum(sizes)
    if int(ends[-1]) > head.end:
        raise Malformed("request: sizes do not add up")
    there = np.flatnonzero(stated[-head.count :] != NOTHING)
    starts = (ends - sizes)[-head.count :]
    headers.check(view, starts[there], sizes[-head.count :][there])


@lru_cache(maxsize=1024)
def check_stream(stream: str) -> None:
    """Raise `Malformed` unless a client may give a stream this name. Exceptions are not cached, so invalid names that a
    client sends cannot fill the cache.
    """
    encoded = stream.encode()
    if not encoded or len(encoded) > STRING_BYTES_MAX or encoded.translate(None, VCHAR):
        raise Malformed(f"stream: 1 to {STRING_BYTES_MAX} visible ASCII characters, not {stream!r}")
    if stream.startswith(RESERVED):
        raise Malformed(f"stream: names beginning with {RESERVED!r} are the cluster's own, not {stream!r}")


def signed_octets(cluster: str, stream: str, digest: bytes) -> bytes:
    """The octets that a request's signature covers, after the label. They name cluster and stream: the same pack is not
    valid for another cluster or stream.
    """
    assert len(digest) == HASH_BYTES
    return put_string(cluster) + put_string(stream) + digest


def request_digest(cluster: str, stream: str, digest: bytes) -> bytes:
    """A permanent name of the request. Two requests have the same digest if and only if their signatures cover the same
    octets.
    """
    return sha256(b"%b\0%b" % (REQUEST_LABEL, signed_octets(cluster, stream, digest))).digest()
