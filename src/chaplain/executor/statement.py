"""Encoding of SQL requests and of their outcomes.

    value   = protocol 1 | MessagePack [sql, parameters]            one message of a request of type SQL_TYPE
    run     = MessagePack [lane, first id, index, timestamp, outcomes]
    outcome = [offset, answers, error]

A request is one transaction; each of its messages is one statement. This module does not know what a statement means.
Byte tables and hex examples: docs/protocol/sql.md.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.wire.packed import unpack

SQL_TYPE = 1
"""The message type of a pack whose messages are statements; 0 is data."""
PROTOCOL = 1
STATEMENT_BYTES_MAX = 256 * 1024
"""Size of one encoded statement with its parameters."""

Value: TypeAlias = Any
"""None, int, float, str or bytes. The type is Any because msgspec distinguishes str from bytes only then."""
Parameters: TypeAlias = tuple[Value, ...] | dict[str, Value]
_KINDS = frozenset((type(None), int, float, str, bytes))


class Statement(Frozen, frozen=True, array_like=True, forbid_unknown_fields=True):
    sql: str
    parameters: Parameters = ()


class StatementError(Frozen, frozen=True, array_like=True):
    """Why a request changed nothing. It is the same on every executor."""

    kind: str
    """For programs: refused, limit, constraint, error."""
    message: str
    statement: int = 0
    """Index of the failed statement in the request, from 0."""


class StatementResult(Frozen, frozen=True, array_like=True):
    """The result of one statement."""

    changes: int = 0
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Value, ...], ...] = ()


class RequestOutcome(Frozen, frozen=True, array_like=True):
    """The outcome of one request."""

    offset: int
    """Offset of its first message in the stream."""
    answers: tuple[StatementResult, ...] = ()
    error: StatementError | None = None


class OutcomeRun(Frozen, frozen=True, array_like=True):
    """Outcomes of consecutive requests of one lane in one cluster message."""

    client_id: int
    first_id: int
    index: int
    timestamp_ns: int
    outcomes: tuple[RequestOutcome, ...]

    @property
    def last_id(self) -> int:
        return self.first_id + len(self.outcomes) - 1


class Rows(Frozen, frozen=True, array_like=True):
    """The result of a query, and the position of the database."""

    index: int
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


_HEAD = bytes([PROTOCOL])
_encoder = msgspec.msgpack.Encoder()
encode_any = _encoder.encode
_statement = msgspec.msgpack.Decoder(Statement)
_run = msgspec.msgpack.Decoder(OutcomeRun)
_rows = msgspec.msgpack.Decoder(Rows)


def encode_statement(statement: Statement) -> bytes:
    return _HEAD + _encoder.encode(statement)


def decode_statement(value: bytes) -> Statement:
    if not value.startswith(_HEAD) or len(value) > STATEMENT_BYTES_MAX:
        raise Malformed(f"statement: protocol {PROTOCOL} and at most {STATEMENT_BYTES_MAX} octets")
    statement = unpack(_statement, value[1:], "statement")
    parameters = statement.parameters
    if not _KINDS.issuperset(map(type, parameters.values() if isinstance(parameters, dict) else parameters)):
        raise Malformed("statement: a parameter is null, a number, text or octets")
    return statement


def encode_run(run: OutcomeRun) -> bytes:
    return _encoder.encode(run)


def decode_run(data: bytes) -> OutcomeRun:
    return unpack(_run, data, "run of outcomes")


def decode_rows(data: bytes) -> Rows:
    return unpack(_rows, data, "rows")
