"""The methods of the journal as data: what to send and how to decode the answer.

Both clients are built from these calls. Wrong arguments raise `Misused` here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from chaplain.client.api.calls import PreparedCall, reader
from chaplain.client.protocol.journal.batch_builder import CHUNK_BYTES, BatchBuilder, Headers
from chaplain.client.protocol.journal.events import (
    AskCommand,
    Batch,
    ConfigRequestCommand,
    ReadCommand,
    ResolveCommand,
    RetryCommand,
    WriteCommand,
)
from chaplain.client.protocol.journal.reader import FROM_HEAD, FROM_START
from chaplain.client.types import validation
from chaplain.client.types.codecs import V
from chaplain.client.types.equivocation_proof import EquivocationProof, read_proof
from chaplain.client.types.journal import ClientRecord, Receipt, StreamPage
from chaplain.client.types.receipts import ReceiptPlace, ReceiptSequence, last_receipt
from chaplain.errors import Missing, Misused
from chaplain.journal.messages.client import AskProof, ListClients, ListStreams, WrapSecret
from chaplain.journal.messages.config import ACL_BYTES, AddIdentity, RemoveIdentity
from chaplain.journal.messages.signing import SECRET_BYTES, SignatureType
from chaplain.journal.messages.write_request import STATEMENTS, TYPE_MAX
from chaplain.segment.pack import ISOLATED_MAX

Item: TypeAlias = V | tuple[V, bytes | None] | tuple[V, bytes | None, Headers | None]
"""A value; or a tuple of value and key; or a tuple of value, key and headers."""
ITEM_PARTS_MAX = 3

EARLIEST: Literal["earliest"] = "earliest"
Start: TypeAlias = int | Literal["earliest"] | None
"""Where a read begins: an offset, `"earliest"` for the first retained offset, or None for the head."""

TABLE_ROWS_MAX = 1_000_000
"""Default limit for the rows of a table."""
WRITER_BYTES_MAX = 8 * 1024 * 1024
"""A writer waits while more bytes than this have no receipt yet."""


def single(
    stream: str,
    value: bytes,
    key: bytes | None,
    headers: Headers | None,
    *,
    isolated: bool = False,
    message_type: int = 0,
) -> Batch:
    """A batch of one message."""
    message_type = check_type(message_type)
    if type(value) is bytes and key is None and not headers and len(value) <= CHUNK_BYTES and not isolated:
        # The common case: small enough without a size check.
        return Batch(stream, [value], size_bytes=len(value), message_type=message_type)
    builder = BatchBuilder()
    builder.add(value, key, headers)
    return with_isolation(builder.batch(stream, message_type=message_type), isolated)


def check_type(message_type: int) -> int:
    """Check the type that a program gives its messages."""
    if validation.number("a type", message_type, 0, TYPE_MAX, f"is 0 or 2 to {TYPE_MAX}") == STATEMENTS:
        raise Misused(f"type {STATEMENTS} is for statements of sql(); a program's own types are 2 to {TYPE_MAX}")
    return message_type


def check_types(types: Iterable[int]) -> frozenset[int]:
    """Check the types that a reader selects. Every octet is allowed: the log has types of the cluster, too."""
    several = validation.several("types", types)
    return frozenset(validation.number("a type", one, 0, 255, "is 0 to 255") for one in several)


def with_isolation(batch: Batch, isolated: bool) -> Batch:
    """The batch, with every message as a group of its own if `isolated` is true."""
    if isolated and len(batch.values) > ISOLATED_MAX:
        raise Misused(f"at most {ISOLATED_MAX} isolated messages fit into one request, not {len(batch.values)}")
    return replace(batch, isolated=True) if isolated else batch


def many(stream: str, items: Iterable[Item[bytes]], *, isolated: bool = False, message_type: int = 0) -> Batch:
    """A batch of several messages that are one request."""
    message_type = check_type(message_type)
    builder, taken = BatchBuilder(), validation.several("messages", items)
    if set(map(type, taken)) == {bytes}:
        builder.extend(taken)  # type: ignore[arg-type]
        taken = []
    for item in taken:
        if isinstance(item, tuple):
            if not 1 <= len(item) <= ITEM_PARTS_MAX:
                raise Misused(f"an item is a value, or one with its key, or with its key and headers, not {item!r:.40}")
            builder.add(*item)
        else:
            builder.add(item)
    if not len(builder):
        raise Misused("write_many wants at least one message")
    return with_isolation(builder.batch(stream, transaction=True, message_type=message_type), isolated)


def write(batch: Batch, retried: Sequence[int] | None = None) -> PreparedCall[ReceiptSequence]:
    """Write a batch. With the id of a request that raised `Unknown`: return its receipts if it is written."""
    return PreparedCall(_writing(batch, retried), ReceiptSequence)


def write_one(batch: Batch, retried: Sequence[int] | None = None) -> PreparedCall[Receipt]:
    """Write a batch of one request and return its last receipt."""
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
    return validation.number("offsets", given, requirement="count from 0")


_streams = reader(StreamPage)
_clients = reader(list[ClientRecord])


def streams(after: str = "") -> PreparedCall[StreamPage]:
    """One page of the list of streams: the names after `after`."""
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, ListStreams(0, after), timeout_ns), _streams)


def clients() -> PreparedCall[list[ClientRecord]]:
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, ListClients(0), timeout_ns), _clients)


def wrap_secret(key: str | bytes, secret: bytes) -> PreparedCall[bytes]:
    """Have a node encrypt an HMAC secret for the holder of a key."""
    secret = validation.octets(secret)
    if len(secret) != SECRET_BYTES:
        raise Misused(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    question = WrapSecret(0, validation.key("a client's key", key))
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, question, timeout_ns, secret), _as_it_is)


def add_client(
    name: str, key: str | bytes, writes: Sequence[str], reads: Sequence[str], admin: bool, *, wrapped: bytes = b""
) -> PreparedCall[str]:
    """Register a client. With a wrapped secret, it signs by HMAC."""
    validation.name("a client's name", name)
    writes, reads = validation.several("patterns", writes), validation.several("patterns", reads)
    for pattern in (*writes, *reads):
        validation.name("a pattern of streams", pattern)
    kind = SignatureType.HMAC_SHA256 if wrapped else SignatureType.ED25519
    keys = validation.key("a client's key", key) + wrapped
    message = AddIdentity(name, kind, keys, tuple(writes), tuple(reads), bool(admin))
    return PreparedCall(lambda call, timeout_ns: ConfigRequestCommand(call, message, timeout_ns), bytes.hex)


def find_client(name: str, known: Sequence[ClientRecord]) -> bytes:
    """The ACL id of the active client of this name."""
    for client in known:
        if client.name == name and client.status == "active":
            return bytes.fromhex(client.acl)
    names = ", ".join(sorted(client.name for client in known if client.status == "active"))
    raise Missing(f"there is no client {name!r}; there are {names}")


def find_compromised(name: str, known: Sequence[ClientRecord]) -> bytes:
    """The ACL id of the client of this name that was compromised last."""
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
