"""Translates PostgreSQL errors: into a statement's result, in words that are the same for every server, or into a stop.

PostgreSQL has a code for each kind of error. Its messages depend on version and language; ours depend only on the code
and on the name of the constraint, which is the same on every executor.
"""

from __future__ import annotations

from typing import NoReturn

import psycopg

from chaplain.executor.statement import StatementError
from chaplain.runtime.databases.interface import EngineFailed
from chaplain.runtime.databases.postgres.connection import STATEMENT_SECONDS_MAX

RESULTS = ("0A", "21", "22", "23", "26", "2B", "42", "44", "54")
"""Classes of errors that follow from the statement and the existing rows."""
TOO_DEEP = "54001"
"""An exception in class 54: it depends on the server's stack size. The guard refuses statements that come near it."""
_CONSTRAINTS = {
    "23502": "NOT NULL constraint failed",
    "23503": "FOREIGN KEY constraint failed",
    "23505": "UNIQUE constraint failed",
    "23514": "CHECK constraint failed",
}
_WORDS = {
    "0A000": "not supported",
    "21000": "a subquery gives more than one row, or a row is to be changed twice",
    "22001": "text too long for its column",
    "22003": "number out of range",
    "22012": "division by zero",
    "22021": "octets that are not text",
    "22P02": "text that is no value of the type",
    "22P03": "octets that are no value of the type",
    "2BP01": "something else depends on it",
    "42601": "wrong grammar",
    "54000": "a value that is too long for an index, or that no text may hold",
    "54011": "too many columns",
    "42702": "a column's name that fits several",
    "42703": "no such column",
    "42701": "a column of this name twice",
    "42725": "a function or operator that fits several ways",
    "42803": "a column that is not grouped",
    "42804": "types that do not fit",
    "42830": "no unique key is referred to",
    "42883": "no such function or operator for these types",
    "42P01": "no such table",
    "42P02": "no such parameter",
    "42P07": "there is one of this name already",
    "42P10": "no unique key for ON CONFLICT",
    "42P18": "a parameter whose type is not clear: write a cast",
    "42704": "no such index",
}


def described(error: psycopg.Error, number: int) -> StatementError:
    """The error for the client; raises `EngineFailed` if it is not the statement's fault."""
    code = error.sqlstate or ""
    if code[:2] not in RESULTS or code == TOO_DEEP:
        stop(error)
    if code in _CONSTRAINTS:
        name = error.diag.constraint_name or error.diag.column_name or ""
        return StatementError("constraint", f"{_CONSTRAINTS[code]}: {name}", number)
    if code == "42501":
        return StatementError("refused", "not allowed: no right to do so", number)
    return StatementError("error", f"{_WORDS.get(code, 'the statement cannot be executed')} (SQLSTATE {code})", number)


def stop(error: psycopg.Error) -> NoReturn:
    """Stop the executor: the error is not the statement's fault. The server's message may contain rows; its code does
    not.
    """
    code = error.sqlstate
    if code is None or code.startswith(("08", "57P")):
        raise EngineFailed(
            "the connection to PostgreSQL is lost: see to the server, then start the node again"
        ) from error
    if code == "57014":
        raise EngineFailed(
            f"a statement took more than {STATEMENT_SECONDS_MAX} s: is the server as fast as the others?"
        )
    raise EngineFailed(f"PostgreSQL cannot go on: {type(error).__name__}, SQLSTATE {code}") from error
