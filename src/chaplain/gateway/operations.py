"""How an endpoint is declared: its parameters, its body, all its answers, and its handler.

The application routes requests by these declarations, and `openapi` describes them. An endpoint cannot give an answer
that it does not declare: `Answer` names its declaration, and undeclared problems become `internal`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from chaplain.client.aio import AsyncClient
from chaplain.core import Frozen
from chaplain.gateway import problems
from chaplain.gateway.problems import ProblemKind
from chaplain.gateway.tokens import TokenRecord

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENT_STREAM = "text/event-stream"
ANY_TYPE = "*/*"
HEADER = {"in": "header"}
"""For `Meta(extra=HEADER)`: the parameter is a header field. Others are in the path or in the query."""


class NoParameters(Frozen, frozen=True, forbid_unknown_fields=True):
    """An endpoint without parameters."""


@dataclass(frozen=True)
class Call:
    """One authenticated request, decoded."""

    parameters: Any
    body: bytes
    content_type: str
    """The media type of the body, without parameters and in lower case."""
    token: TokenRecord
    lend: Callable[[], AbstractAsyncContextManager[AsyncClient]]
    """The token's client of the cluster, for the duration of a block."""
    is_token_valid: Callable[[], bool]
    follow: Callable[[], AbstractContextManager[None]]
    """Counts a stream of server-sent events, for the duration of a block."""
    buffer: Callable[[int], AbstractContextManager[None]]
    """Reserves memory, for the duration of a block."""


@dataclass(frozen=True)
class Answer:
    """The result of a handler. A struct is encoded as JSON."""

    body: msgspec.Struct | str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EventStream:
    """An answer of server-sent events. The application calls `release` at its end, also if it was never begun."""

    chunks: AsyncIterator[bytes]
    release: Callable[[], Awaitable[None]]


Handler: TypeAlias = Callable[[Call], Awaitable[Answer | EventStream]]


@dataclass(frozen=True)
class Documented:
    """An answer without problem. Without a type, the body is text of this media type."""

    status: int
    description: str
    type: type[msgspec.Struct] | None = None
    media_type: str = JSON


@dataclass(frozen=True)
class Body:
    """The bodies that an endpoint accepts: their types by media type. None means any bytes."""

    media_types: Mapping[str, type[msgspec.Struct] | None]
    description: str = ""
    answer_bytes: Mapping[str, int] = field(default_factory=dict)
    """By media type: room for a long answer. It is reserved before the handler is called, because the answer to a
    committed write must not be refused.
    """


EVERY_ENDPOINT = (problems.INVALID, problems.RATE_LIMITED, problems.INTERNAL, problems.BUSY)
WITH_TOKEN = (problems.UNAUTHENTICATED,)
WITH_CLUSTER = (problems.FORBIDDEN, problems.REFUSED, problems.UNREACHABLE)
WITH_BODY = (problems.REQUEST_TIMEOUT, problems.TOO_LARGE, problems.UNSUPPORTED)


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    name: str
    method: str
    path: str
    summary: str
    handler: Handler
    answer: Documented
    parameters: type[msgspec.Struct] = NoParameters
    body: Body | None = None
    problems: tuple[ProblemKind, ...] = ()
    """Besides those that every endpoint has."""
    needs_token: bool = True
    needs_cluster: bool = True

    @property
    def all_problems(self) -> tuple[ProblemKind, ...]:
        return (
            *EVERY_ENDPOINT,
            *(WITH_TOKEN if self.needs_token else ()),
            *(WITH_CLUSTER if self.needs_cluster else ()),
            *(WITH_BODY if self.body is not None else ()),
            *self.problems,
        )


@dataclass(frozen=True)
class ParameterField:
    """One parameter of an endpoint."""

    name: str
    place: str
    """`path`, `query` or `header`."""
    type: Any
    required: bool
    default: Any = None


def parameters_of(operation: Operation) -> list[ParameterField]:
    """The parameters of an endpoint, with their places."""
    found = []
    for one in msgspec.structs.fields(operation.parameters):
        extra = getattr(msgspec.inspect.type_info(one.type), "extra", None) or {}
        place = "path" if f"{{{one.encode_name}}}" in operation.path else extra.get("in", "query")
        default = None if one.default is msgspec.NODEFAULT else one.default
        found.append(ParameterField(one.encode_name, place, one.type, one.required, default))
    return found
