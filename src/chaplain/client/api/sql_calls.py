"""SQL calls as data: what to ask of a stream's database and how to decode the answer. Both clients use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from chaplain.client.api.calls import PreparedCall
from chaplain.client.protocol.events import TRY_AGAIN, ClientCall
from chaplain.client.protocol.journal.batch_builder import BatchBuilder
from chaplain.client.protocol.journal.events import Batch
from chaplain.client.types import validation
from chaplain.client.types.journal import Receipt
from chaplain.client.types.sql import Result, Row, results_of, rows_of
from chaplain.client_service.messages import LookUp
from chaplain.errors import Missing, Misused, NotExecutor, Unknown
from chaplain.executor.messages import AskResults, ClientMessage, Query, ReadThrough, decode_runs, encode
from chaplain.executor.statement import (
    SQL_TYPE,
    STATEMENT_BYTES_MAX,
    Statement,
    Value,
    decode_rows,
    decode_run,
    encode_statement,
)
from chaplain.wire.parcel import Layer

Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
Item: TypeAlias = str | tuple[str, Parameters]
"""A statement, or a tuple of a statement and its parameters."""
ITEM_PARTS_MAX = 2
_NO_QUORUM = (
    "a query that must see everything committed needs a majority of the serializers: `chaplain cluster status` shows"
    " which nodes are down; start them, or read the state of this node with local=True (--local)"
)


def statement(sql: str, parameters: Parameters | None) -> bytes:
    """Encode a statement. Raises `Misused` for values that SQL cannot represent."""
    if not isinstance(sql, str):
        raise Misused(f"a statement is a str, not {type(sql).__name__}")
    taken: Any = ()
    if isinstance(parameters, Mapping):
        taken = {str(name): _value(value) for name, value in parameters.items()}
    elif parameters is not None and (isinstance(parameters, str | bytes) or not isinstance(parameters, Iterable)):
        raise Misused("parameters are a list or a mapping: write [value] for a single one")
    elif parameters is not None:
        taken = tuple(map(_value, parameters))
    try:
        encoded = encode_statement(Statement(sql, taken))
    except UnicodeEncodeError as wrong:
        raise Misused(f"a statement is text that UTF-8 has octets for: {wrong}") from None
    if len(encoded) > STATEMENT_BYTES_MAX:
        raise Misused(f"a statement with its parameters has at most {STATEMENT_BYTES_MAX} bytes, not {len(encoded)}")
    return encoded


def _value(value: Any) -> Value:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if value is None or isinstance(value, float | str | bytes):
        return value
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise Misused(f"a whole number in SQL has 64 bits: {value} does not fit")
        return value
    raise Misused(f"SQL knows None, int, float, str and bytes, not {type(value).__name__}")


def transaction(stream: str, items: Iterable[Item]) -> Batch:
    """One request of several statements."""
    builder = BatchBuilder()
    for item in validation.several("statements", items):
        builder.add(_statement_of(item))
    if not len(builder):
        raise Misused("a transaction has at least one statement")
    return replace(builder.batch(stream, transaction=True, message_type=SQL_TYPE), check=True)


def _statement_of(item: Item) -> bytes:
    if isinstance(item, str):
        return statement(item, None)
    if not isinstance(item, tuple | list) or not 1 <= len(item) <= ITEM_PARTS_MAX:
        raise Misused(f"an item is a statement, or one with its parameters, not {item!r:.40}")
    return statement(*item, *[None] * (ITEM_PARTS_MAX - len(item)))


def _look(message: ClientMessage, read: Any, payload: bytes = b"", advice: str = TRY_AGAIN) -> PreparedCall[Any]:
    body = encode(message)
    return PreparedCall(
        lambda call, timeout_ns: ClientCall(LookUp(call, Layer.EXECUTOR, body), payload, timeout_ns, advice), read
    )


def results_of_lane(stream: str, receipts: Sequence[Receipt]) -> PreparedCall[dict[int, Result]]:
    """Results of acknowledged requests of one lane, by id. A long answer may contain only the first ones."""
    lane = receipts[0].client_id
    assert all(receipt.client_id == lane for receipt in receipts)
    ids = [receipt.client_message_id for receipt in receipts]

    def read(payload: bytes) -> dict[int, Result]:
        found = [one for raw in decode_runs(payload) for one in results_of(stream, decode_run(raw))]
        return {one.client_message_id: one for one in found}

    index = max(receipt.index for receipt in receipts)
    return _look(AskResults(stream, lane, min(ids), max(ids), index), read)


def lost() -> Missing:
    """The error for a result that was already read or is no longer retained."""
    return Missing("the result was already read, or is no longer retained; the request itself is written")


def untold(receipt: Receipt, why: NotExecutor) -> Unknown:
    """The error for a committed request whose result no reachable executor can return.

    Writing it again would execute it twice, so the error carries the id for a retry elsewhere.
    """
    reason = f"{why}; request {tuple(receipt.id)} is written: execute it with this id at another node for its result"
    return Unknown(reason, receipt.id)


def result(stream: str, receipt: Receipt) -> PreparedCall[Result]:
    """The result of an acknowledged request."""
    prepared = results_of_lane(stream, [receipt])

    def read(payload: bytes) -> Result:
        found = prepared.read(payload).get(receipt.client_message_id)
        if found is None:
            raise lost()
        return found

    return PreparedCall(prepared.build, read)


def span(through: Sequence[int] | None, part: Iterable[Result] = ()) -> tuple[int, int, int] | None:
    """The lane and the ids to ask for next, after the results in `part`; None when done. Without `through`, all lanes.

    Results that arrived are not asked for again: their deletion may not have reached the node yet.
    """
    if through is None:
        return 0, 0, 0
    lane, last_id = validation.request_id(through)
    first_id = 1 + max((one.client_message_id for one in part), default=0)
    return (lane, first_id, last_id) if first_id <= last_id else None


def unread(stream: str, index: int, wanted: tuple[int, int, int]) -> PreparedCall[list[Result]]:
    """Stored results of this identity's requests, oldest first."""

    def read(payload: bytes) -> list[Result]:
        return [one for raw in decode_runs(payload) for one in results_of(stream, decode_run(raw))]

    return _look(AskResults(stream, *wanted, index), read)


def read_through(stream: str, results: Iterable[Result]) -> PreparedCall[None]:
    """Allow nodes to delete these results."""
    through: dict[int, int] = {}
    for one in results:
        through[one.client_id] = max(one.client_message_id, through.get(one.client_id, 0))
    body = encode(ReadThrough(stream, tuple(through.items())))

    def build(call: int, timeout_ns: int) -> ClientCall:
        return ClientCall(LookUp(call, Layer.EXECUTOR, body), b"", timeout_ns)

    return PreparedCall(build, lambda payload: None)


def check_executed(stream: str) -> PreparedCall[None]:
    """Fails if no node would execute a statement. Asked before the first write."""
    return read_through(stream, ())


def query(stream: str, sql: str, parameters: Parameters | None, index: int, local: bool) -> PreparedCall[list[Row]]:
    def read(payload: bytes) -> list[Row]:
        rows = decode_rows(payload)
        return rows_of(rows.columns, rows.rows)

    return _look(Query(stream, index, not local), read, statement(sql, parameters), TRY_AGAIN if local else _NO_QUORUM)
