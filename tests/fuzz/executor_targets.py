"""Bytes that a client or another executor may give to an executor."""

from __future__ import annotations

from contextlib import suppress

from chaplain.errors import Malformed
from chaplain.executor import messages
from chaplain.executor.messages import AskReach, AskResults, Print, Query, Reach, ReadThrough, WereRead
from chaplain.executor.statement import (
    OutcomeRun,
    RequestOutcome,
    Rows,
    Statement,
    StatementError,
    StatementResult,
    decode_rows,
    decode_run,
    decode_statement,
    encode_any,
    encode_run,
    encode_statement,
)

ACL = b"A" * 15
STATEMENTS = [
    encode_statement(Statement("insert into t values (?, ?)", (1, "two"))),
    encode_statement(Statement("select :a", {"a": b"\x00", "b": None, "c": 1.5})),
]
RUNS = [
    encode_run(OutcomeRun(1, 2, 3, 4, (RequestOutcome(5, (StatementResult(1, ("a",), ((1, "x", None),)),)),))),
    encode_run(OutcomeRun(1, 2, 3, 4, (RequestOutcome(5, (), StatementError("limit", "too much", 1)),))),
]
CLIENT = [AskResults("main", 1, 1, 9, 5), ReadThrough("main", ((1, 5), (2, 6))), Query("main", 7, True)]
PEER = [AskReach(1), Reach(1, 9), Print("main", 5, bytes(32)), WereRead("main", ACL, ((1, 2),))]

SEEDS = {
    "target_statement": STATEMENTS,
    "target_run": RUNS,
    "target_rows": [encode_any(Rows(5, ("a", "b"), ((1, 2), (None, "x"))))],
    "target_runs": [messages.encode_runs(RUNS)],
    "target_client_message": [messages.encode(message) for message in CLIENT],
    "target_peer_message": [messages.encode(message) for message in PEER],
}


def target_statement(data: bytes) -> None:
    with suppress(Malformed):
        decode_statement(data)


def target_run(data: bytes) -> None:
    with suppress(Malformed):
        decode_run(data)


def target_rows(data: bytes) -> None:
    with suppress(Malformed):
        decode_rows(data)


def target_runs(data: bytes) -> None:
    with suppress(Malformed):
        messages.decode_runs(data)


def target_client_message(data: bytes) -> None:
    with suppress(Malformed):
        message = messages.decode_client(data)
        assert messages.decode_client(messages.encode(message)) == message


def target_peer_message(data: bytes) -> None:
    with suppress(Malformed):
        message = messages.decode_peer(data)
        assert messages.decode_peer(messages.encode(message)) == message
