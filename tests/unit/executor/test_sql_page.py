"""The examples in docs/protocol/sql.md are what the code reads and writes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from chaplain.errors import Malformed
from chaplain.executor.fingerprint import row_hash
from chaplain.executor.statement import (
    STATEMENT_BYTES_MAX,
    OutcomeRun,
    RequestOutcome,
    Statement,
    StatementResult,
    decode_run,
    decode_statement,
    encode_run,
    encode_statement,
)

PAGE = Path(__file__).parents[3] / "docs/protocol/sql.md"
EXAMPLES = {
    name: bytes.fromhex(octets) for name, octets in re.findall(r"```hex (\w+)\n([0-9a-f\s]+)```", PAGE.read_text())
}


def test_statement_example_matches_the_codec() -> None:
    statement = Statement("insert into t values (?)", (7,))
    assert decode_statement(EXAMPLES["statement"]) == statement
    assert encode_statement(statement) == EXAMPLES["statement"]


def test_run_example_matches_the_codec() -> None:
    run = OutcomeRun(3, 5, 9, 1, (RequestOutcome(7, (StatementResult(1),)),))
    assert decode_run(EXAMPLES["run"]) == run
    assert encode_run(run) == EXAMPLES["run"]


def test_row_hash_example_matches_the_code() -> None:
    assert EXAMPLES["key"] == msgspec.msgpack.encode(["t", 1])
    assert EXAMPLES["row"] == msgspec.msgpack.encode([1, "a"])
    assert row_hash(EXAMPLES["key"], EXAMPLES["row"]) == EXAMPLES["hash"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x01",
        b"\x02" + EXAMPLES["statement"][1:],
        EXAMPLES["statement"][:-1],
        EXAMPLES["statement"] + b"\x00",
        b"\x01" + msgspec.msgpack.encode(["select ?", [True]]),
        b"\x01" + msgspec.msgpack.encode(["select ?", [[1]]]),
        b"\x01" + msgspec.msgpack.encode(["select ?", {"a": {}}]),
        b"\x01" + msgspec.msgpack.encode([b"select 1", []]),
        b"\x01" + msgspec.msgpack.encode(["select 1", [], 5]),
        b"\x01" + msgspec.msgpack.encode(["x" * STATEMENT_BYTES_MAX, []]),
    ],
)
def test_invalid_statement_bytes_are_malformed(value: bytes) -> None:
    with pytest.raises(Malformed):
        decode_statement(value)
