"""Refusals as problem documents (RFC 9457), and which error of the client library becomes which problem.

The type of a problem is stable; title and detail are for people. Every answer with a status of 400 or more is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from chaplain.core import Frozen
from chaplain.errors import (
    Busy,
    ChaplainError,
    Closed,
    DiskFull,
    Dropped,
    Forbidden,
    Missing,
    Misused,
    NotExecutor,
    Refused,
    StatementFailed,
    Unknown,
    Unreachable,
)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:chaplain:problem:"
RETRY_AFTER_S = 1
"""Pause that answers with status 429 and 503 ask for."""


class ProblemDocument(Frozen, frozen=True, omit_defaults=True):
    """Why a request was refused. `type` is stable, and the only field for programs besides `request`."""

    type: str
    title: str
    status: int
    detail: str = ""
    request: str = ""
    """Unknown outcome: the id of the write, for a retry or to resolve it."""


class ProblemKind(Frozen, frozen=True):
    """One kind of problem."""

    name: str
    status: int
    title: str

    @property
    def type(self) -> str:
        return TYPE_PREFIX + self.name


INVALID = ProblemKind("invalid-request", 400, "The request is malformed")
UNAUTHENTICATED = ProblemKind("unauthenticated", 401, "The request has no valid token")
FORBIDDEN = ProblemKind("forbidden", 403, "The client of this token lacks a right")
NOT_FOUND = ProblemKind("not-found", 404, "There is no such path")
MISSING = ProblemKind("missing", 404, "There is no such stream, offset or request")
METHOD_NOT_ALLOWED = ProblemKind("method-not-allowed", 405, "The path does not support this method")
REQUEST_TIMEOUT = ProblemKind("request-timeout", 408, "The body did not arrive in time")
REFUSED = ProblemKind("refused", 409, "The cluster refused the request")
IN_PROGRESS = ProblemKind("in-progress", 409, "A request with this idempotency key is being executed")
DROPPED = ProblemKind("dropped", 410, "Retention deleted the message")
TOO_LARGE = ProblemKind("too-large", 413, "The body or a message is too large")
UNSUPPORTED = ProblemKind("unsupported-media-type", 415, "The path does not accept this content type")
KEY_REUSED = ProblemKind("key-reused", 422, "The idempotency key was used for a different request")
STATEMENT_FAILED = ProblemKind("statement-failed", 422, "The statement failed and changed nothing")
RATE_LIMITED = ProblemKind("rate-limited", 429, "Too many requests")
HEADER_TOO_LARGE = ProblemKind("header-too-large", 431, "The header of the request is too large")
INTERNAL = ProblemKind("internal", 500, "The gateway failed")
BUSY = ProblemKind("busy", 503, "A bound of the gateway or the cluster is reached")
UNREACHABLE = ProblemKind("unreachable", 503, "No node answered in time; nothing was written")
UNKNOWN_OUTCOME = ProblemKind("unknown-outcome", 504, "The write may or may not have happened")
DISK_FULL = ProblemKind("disk-full", 507, "The nodes have no disk space left; nothing was written")

_BY_ERROR: tuple[tuple[type[ChaplainError], ProblemKind], ...] = (
    (Misused, INVALID),
    (Forbidden, FORBIDDEN),
    (StatementFailed, STATEMENT_FAILED),
    (NotExecutor, UNREACHABLE),
    (Refused, REFUSED),
    (Dropped, DROPPED),
    (Missing, MISSING),
    (Busy, BUSY),
    (DiskFull, DISK_FULL),
    (Unknown, UNKNOWN_OUTCOME),
    (Unreachable, UNREACHABLE),
    (Closed, UNREACHABLE),
)
"""The first class that matches counts: subclasses come before their bases."""


class Problem(Exception):
    """Ends a request with a problem document."""

    def __init__(self, kind: ProblemKind, detail: str = "", *, headers: Mapping[str, str] | None = None,
                 request: str = "") -> None:  # fmt: skip
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.request = request
        self.headers = dict(headers or {})
        if kind.status in (RATE_LIMITED.status, BUSY.status):
            self.headers.setdefault("retry-after", str(RETRY_AFTER_S))

    def document(self) -> bytes:
        found = ProblemDocument(self.kind.type, self.kind.title, self.kind.status, self.detail, self.request)
        return msgspec.json.encode(found)


def problem_of(error: ChaplainError) -> Problem:
    """The problem that an error of the client library becomes."""
    for kind_of_error, kind in _BY_ERROR:
        if isinstance(error, kind_of_error):
            found: Any = getattr(error, "id", None)
            return Problem(kind, str(error), request="" if found is None else format_request_id(found))
    return Problem(INTERNAL, str(error))


def format_request_id(request: tuple[int, int]) -> str:
    """The id of a write as one word: the number of its lane and its number on the lane."""
    return f"{request[0]}-{request[1]}"
