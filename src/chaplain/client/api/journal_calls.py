"""The journal's methods as data: what to ask and how to read the answer. Both faces are made of these.

What a caller got wrong is raised here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from chaplain.client.api.calls import PreparedCall, reader
from chaplain.client.protocol.journal.events import (
    AskCommand,
    Batch,
    ConfigRequestCommand,
    ReadCommand,
    ReceiptPlace,
    ResolveCommand,
    RetryCommand,
    WriteCommand,
)
from chaplain.client.protocol.journal.packing import PACK_BYTES, PACK_MESSAGES, REQUEST_BYTES_MAX, packed_bytes
from chaplain.client.protocol.journal.reader import FROM_HEAD, FROM_START
from chaplain.client.types import validation
from chaplain.client.types.equivocation_proof import EquivocationProof, read_proof
from chaplain.client.types.journal import ClientRecord, Receipt, StreamPage
from chaplain.client.types.receipts import Receipts, last_receipt
from chaplain.errors import Missing, Misused
from chaplain.journal.messages.client import AskProof, ListClients, ListStreams, WrapSecret
from chaplain.journal.messages.config import ACL_BYTES, AddIdentity, RemoveIdentity
from chaplain.journal.messages.signing import SECRET_BYTES, SignatureType
from chaplain.segment.headers import encode_headers

Headers: TypeAlias = Mapping[str, bytes]
Item: TypeAlias = bytes | tuple[bytes, bytes | None] | tuple[bytes, bytes | None, Headers | None]
"""A value, or a value with its key, or with its key and headers."""
ITEM_PARTS_MAX = 3

EARLIEST: Literal["earliest"] = "earliest"
Start: TypeAlias = int | Literal["earliest"] | None
"""Where a reading begins: an offset, the first one that is kept, or the head."""

CHUNK_BYTES = PACK_BYTES // 2
"""What a writer hands over at a time."""
CHUNK_MESSAGES = PACK_MESSAGES // 2
TABLE_ROWS_MAX = 1_000_000
"""Rows of a table that is read whole, unless a caller wants more."""
WRITER_BYTES_MAX = 8 * 1024 * 1024
"""What a writer has handed over without a receipt before it waits."""


def _encode(headers: Headers) -> bytes:
    if not isinstance(headers, Mapping):
        raise Misused(f"headers are a dictionary from names to bytes, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str):
            raise Misused(f"a header's name is a str, not {name!r}")
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Misused(f"the value of header {name!r} is bytes, not {type(value).__name__}: use .encode()")
    try:
        return encode_headers(headers)
    except ValueError as wrong:
        raise Misused(str(wrong)) from None


class Gathering:
    """Messages on their way to a batch; keys and headers are kept only once one was given."""

    __slots__ = ("_headers", "_keys", "_values", "size_bytes")

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._keys: list[bytes | None] | None = None
        self._headers: list[bytes | None] | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def full(self) -> bool:
        return self.size_bytes >= CHUNK_BYTES or len(self._values) >= CHUNK_MESSAGES

    def add(self, value: bytes, key: bytes | None = None, headers: Headers | None = None) -> None:
        """Whatever is wrong with a message is raised before any of it is taken in.

        Its value comes last. Who is interrupted before that has left at most a key or headers, which are thrown away.
        """
        if type(value) is not bytes:
            value = validation.octets(value)
        size, encoded = len(value), _encode(headers) if headers else None
        if key is not None or self._keys is not None:
            size += self._add_key(key)
        if encoded is not None or self._headers is not None:
            size += self._add_headers(encoded)
        self._values.append(value)
        self.size_bytes += size

    def extend(self, values: list[bytes]) -> None:
        """Values without keys and headers, to a gathering that has none yet."""
        assert self._keys is None
        assert self._headers is None
        self._values += values
        self.size_bytes += sum(map(len, values))

    def _add_key(self, key: bytes | None) -> int:
        taken = None if key is None else validation.octets(key)
        if self._keys is None:
            self._keys = [None] * len(self._values)
        del self._keys[len(self._values) :]
        self._keys.append(taken)
        return len(taken or b"")

    def _add_headers(self, encoded: bytes | None) -> int:
        if self._headers is None:
            self._headers = [None] * len(self._values)
        del self._headers[len(self._values) :]
        self._headers.append(encoded)
        return len(encoded or b"")

    def batches(self, stream: str, message_type: int) -> Iterator[Batch]:
        """As a writer hands them over: a large message, which is the last one, goes alone, or fails alone."""
        large = self._last_bytes() > CHUNK_BYTES
        last = self._split_last() if large and len(self) > 1 else None
        yield self.batch(stream, message_type=message_type)
        if last is not None:
            yield last.batch(stream, message_type=message_type)

    def _last_bytes(self) -> int:
        columns, last = (self._values, self._keys, self._headers), len(self) - 1
        return sum(len(column[last] or b"") for column in columns if column is not None)

    def _split_last(self) -> Gathering:
        last = Gathering()
        last.size_bytes = self._last_bytes()
        self.size_bytes -= last.size_bytes
        last._values = [self._values.pop()]
        last._keys = None if self._keys is None else [self._keys[len(self)]]
        last._headers = None if self._headers is None else [self._headers[len(self)]]
        return last

    def batch(self, stream: str, *, transaction: bool = False, message_type: int = 0) -> Batch:
        for column in (self._keys, self._headers):
            if column is not None:
                del column[len(self) :]
        batch = Batch(stream, self._values, self._keys, self._headers, transaction, self.size_bytes, message_type)
        needed = packed_bytes(batch)
        if needed > REQUEST_BYTES_MAX:
            raise Misused(
                f"{self.size_bytes} bytes in {len(self)} messages are too much for one request: with what belongs to"
                f" each they need {needed}, and it takes {REQUEST_BYTES_MAX}; write them in parts"
            )
        return batch


def single(stream: str, value: bytes, key: bytes | None, headers: Headers | None) -> Batch:
    if type(value) is bytes and key is None and not headers and len(value) <= CHUNK_BYTES:
        return Batch(stream, [value], size_bytes=len(value))  # what most are, without a look at the bound
    gathering = Gathering()
    gathering.add(value, key, headers)
    return gathering.batch(stream)


def many(stream: str, items: Iterable[Item]) -> Batch:
    gathering, taken = Gathering(), validation.several("messages", items)
    if set(map(type, taken)) == {bytes}:
        gathering.extend(taken)  # type: ignore[arg-type]
        taken = []
    for item in taken:
        if isinstance(item, tuple):
            if not 1 <= len(item) <= ITEM_PARTS_MAX:
                raise Misused(f"an item is a value, or one with its key, or with its key and headers, not {item!r:.40}")
            gathering.add(*item)
        else:
            gathering.add(item)
    if not len(gathering):
        raise Misused("write_many wants at least one message")
    return gathering.batch(stream, transaction=True)


def write(batch: Batch, retried: Sequence[int] | None = None) -> PreparedCall[Receipts]:
    """With the id of a request that is retried, unless that is written: then its receipts."""
    return PreparedCall(_writing(batch, retried), Receipts)


def write_one(batch: Batch, retried: Sequence[int] | None = None) -> PreparedCall[Receipt]:
    """The same for a batch of one request: its last receipt."""
    return PreparedCall(_writing(batch, retried), last_receipt)


def _writing(batch: Batch, retried: Sequence[int] | None) -> Callable[[int, int], WriteCommand | RetryCommand]:
    if retried is None:
        return lambda call, timeout_ns: WriteCommand(call, batch, timeout_ns)
    client_id, message_id = validation.request_id(retried)
    return lambda call, timeout_ns: RetryCommand(call, batch, client_id, message_id, timeout_ns)


def resolve(request: Sequence[int] | None) -> PreparedCall[Receipt | None]:
    client_id, message_id = validation.request_id(request)
    return PreparedCall(
        lambda call, timeout_ns: ResolveCommand(call, client_id, message_id, timeout_ns),
        lambda found: last_receipt(found) if isinstance(found, ReceiptPlace) else None,
    )


def read(stream: str, start: Start, stop: int | None, follow: bool) -> PreparedCall[Any]:
    follow, stop = bool(follow), None if stop is None else _offset(stop)
    if isinstance(start, str):
        if start != EARLIEST:
            raise Misused(f"a reading begins with an offset, {EARLIEST!r}, or None for the head, not {start!r}")
        return PreparedCall(
            lambda call, timeout_ns: ReadCommand(call, stream, FROM_START, stop, follow, timeout_ns), _as_it_is
        )
    begin = FROM_HEAD if start is None else _offset(start)
    return PreparedCall(lambda call, timeout_ns: ReadCommand(call, stream, begin, stop, follow, timeout_ns), _as_it_is)


def _offset(given: int) -> int:
    return validation.number("offsets", given, said="count from 0")


_streams = reader(StreamPage)
_clients = reader(list[ClientRecord])


def streams(after: str = "") -> PreparedCall[StreamPage]:
    """One page of them: those behind this name."""
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, ListStreams(0, after), timeout_ns), _streams)


def clients() -> PreparedCall[list[ClientRecord]]:
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, ListClients(0), timeout_ns), _clients)


def wrap_secret(key: str | bytes, secret: bytes) -> PreparedCall[bytes]:
    """Have a node wrap an HMAC secret for the holder of a key."""
    secret = validation.octets(secret)
    if len(secret) != SECRET_BYTES:
        raise Misused(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    question = WrapSecret(0, validation.key("a client's key", key))
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, question, timeout_ns, secret), _as_it_is)


def add_client(
    name: str, key: str | bytes, writes: Sequence[str], reads: Sequence[str], admin: bool, *, wrapped: bytes = b""
) -> PreparedCall[str]:
    """With a wrapped secret, one who signs by HMAC."""
    validation.name("a client's name", name)
    writes, reads = validation.several("patterns", writes), validation.several("patterns", reads)
    for pattern in (*writes, *reads):
        validation.name("a pattern of streams", pattern)
    kind = SignatureType.HMAC_SHA256 if wrapped else SignatureType.ED25519
    keys = validation.key("a client's key", key) + wrapped
    message = AddIdentity(name, kind, keys, tuple(writes), tuple(reads), bool(admin))
    return PreparedCall(lambda call, timeout_ns: ConfigRequestCommand(call, message, timeout_ns), bytes.hex)


def find_client(name: str, known: Sequence[ClientRecord]) -> bytes:
    """The ACL id of the client that has this name now."""
    for client in known:
        if client.name == name and client.status == "active":
            return bytes.fromhex(client.acl)
    names = ", ".join(sorted(client.name for client in known if client.status == "active"))
    raise Missing(f"there is no client {name!r}; there are {names}")


def find_compromised(name: str, known: Sequence[ClientRecord]) -> bytes:
    """The ACL id of the client that was compromised under this name last."""
    found = [bytes.fromhex(client.acl) for client in known if (client.name, client.status) == (name, "compromised")]
    if not found:
        raise Missing(f"nothing is proven against a client {name!r}")
    return found[-1]


def proof(acl: bytes) -> PreparedCall[EquivocationProof]:
    question = AskProof(0, acl)
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, question, timeout_ns), read_proof)


def remove_client(acl: bytes) -> PreparedCall[None]:
    assert len(acl) == ACL_BYTES
    message = RemoveIdentity(acl)
    return PreparedCall(lambda call, timeout_ns: ConfigRequestCommand(call, message, timeout_ns), _nothing)


def _as_it_is(payload: Any) -> Any:
    return payload


def _nothing(payload: bytes) -> None:
    return None
