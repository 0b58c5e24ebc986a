"""The gateway as an ASGI application: who may send a request, how it is decoded, and how its answer is sent.

Order for each request: token, rates and counts, path and method, parameters, body, handler. Nothing of a body is read
before the token is accepted. Every refusal is a problem document. The application logs no header and no body.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from chaplain import __version__
from chaplain.errors import ChaplainError, ConfigError
from chaplain.gateway import problems
from chaplain.gateway.clients import ClientPool
from chaplain.gateway.cluster import ClusterEndpoints
from chaplain.gateway.idempotency import IdempotencyKeys
from chaplain.gateway.journal import JournalEndpoints, Written
from chaplain.gateway.limits import InUse, TokenBucket
from chaplain.gateway.openapi import describe
from chaplain.gateway.operations import (
    ANY_TYPE,
    EVENT_STREAM,
    Answer,
    Body,
    Call,
    EventStream,
    Operation,
    ParameterField,
    parameters_of,
)
from chaplain.gateway.problems import Problem, problem_of
from chaplain.gateway.settings import GatewaySettings
from chaplain.gateway.tokens import TOKENS_MAX, TokenRecord, TokenStore

PIECE_BYTES = 64 * 1024
"""Answers are sent in pieces of this size, so that a slow client has at most two of them in a buffer."""
OPENAPI_PATH = "/openapi.json"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
"""Types that curl and browsers send by default. A value of such a type is usually a mistake, so it is refused."""
HEADERS = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
CLOSE = {"connection": "close"}
_TOKEN, _NO_NAME = "chaplain.token", ""
Report: TypeAlias = Callable[[str], object]


class _Disconnected(Exception):
    """The client has disconnected, so no answer is sent."""


class Gateway:
    """Everything that requests share."""

    def __init__(
        self,
        settings: GatewaySettings,
        tokens: TokenStore,
        pool: ClientPool,
        *,
        policy: Callable[[], str],
        clock_s: Callable[[], float],
        report: Report,
    ) -> None:
        self.settings = settings
        self.tokens = tokens
        self.pool = pool
        self.report = report
        self._clock_s = clock_s
        busy, limited = problems.BUSY, problems.RATE_LIMITED
        self.buffered = InUse(settings.buffered_bytes_max, Problem(busy, "the gateway's buffers are full"))
        self.followers = InUse(
            settings.followers_max,
            Problem(busy, f"{settings.followers_max} followers are connected"),
            settings.followers_per_token_max,
            Problem(limited, f"{settings.followers_per_token_max} followers use this token"),
        )
        self.requests = InUse(
            settings.connections_max,
            Problem(busy, "the gateway serves as many requests as it can"),
            settings.token_requests_max,
            Problem(limited, f"{settings.token_requests_max} requests of this token are being served"),
        )
        self._public = self._bucket_without_token()
        self._rejected = self._bucket_without_token()
        self._by_token: dict[str, TokenBucket] = {}
        keys: IdempotencyKeys[Written] = IdempotencyKeys(
            settings.idempotency_seconds, settings.idempotency_keys_max, settings.idempotency_keys_per_token_max
        )
        self.operations = [*JournalEndpoints(settings, keys).operations(), *ClusterEndpoints(policy).operations()]
        self.public_paths = {OPENAPI_PATH, *(one.path for one in self.operations if not one.needs_token)}

    @cached_property
    def openapi(self) -> bytes:
        """The OpenAPI document."""
        return msgspec.json.encode(describe(self.operations, __version__))

    def admit(self, path: str, authorization: str) -> TokenRecord | None:
        """The token of a request; None for public paths. Raises `Problem` if it may not be served."""
        token = self.tokens.find(authorization) if authorization else None
        now_s = self._clock_s()
        if token is not None:
            if not self._bucket(token).take(now_s):
                raise Problem(problems.RATE_LIMITED, f"a token may send {self.settings.token_per_second:g} a second")
            return token
        public = path in self.public_paths
        if not (self._public if public else self._rejected).take(now_s):
            raise Problem(problems.RATE_LIMITED, "too many requests without a valid token", headers=CLOSE)
        if public:
            return None
        raise Problem(
            problems.UNAUTHENTICATED,
            "send a header `Authorization: Bearer` with a token of `chaplain token new`",
            headers={"www-authenticate": "Bearer", **CLOSE},
        )

    def _bucket(self, token: TokenRecord) -> TokenBucket:
        if len(self._by_token) > TOKENS_MAX:  # most of them are of removed tokens
            self._by_token.clear()
        found = self._by_token.get(token.id)
        if found is None:
            found = self._by_token[token.id] = TokenBucket(self.settings.token_per_second, self.settings.token_burst)
        return found

    def _bucket_without_token(self) -> TokenBucket:
        return TokenBucket(self.settings.unauthenticated_per_second, self.settings.unauthenticated_burst)


def make_app(gateway: Gateway) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The application, ready for a server."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in gateway.operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation

    async def openapi(request: Request) -> Response:
        return Response(gateway.openapi, media_type="application/json", headers=HEADERS)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(gateway.pool.run())
        yield
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping
        await gateway.pool.close()

    routes = [Route(OPENAPI_PATH, openapi, methods=["GET"])]
    routes += [Route(path, _Endpoint(gateway, operations)) for path, operations in by_path.items()]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _framework_refusal})
    app.router.redirect_slashes = False
    return _Gate(gateway, app)


async def _framework_refusal(request: Request, error: Exception) -> Response:
    """404 and 405 of the framework."""
    assert isinstance(error, HTTPException)
    kind = {404: problems.NOT_FOUND, 405: problems.METHOD_NOT_ALLOWED}.get(error.status_code, problems.INVALID)
    return _problem_response(Problem(kind, headers=error.headers))


class _Gate:
    """The outermost part: checks the token and counts requests."""

    def __init__(self, gateway: Gateway, app: Starlette) -> None:
        self._gateway = gateway
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Names of streams may contain slashes, which are encoded in the raw path. Endpoints decode each parameter.
        path = scope["raw_path"].decode("ascii", "replace")
        try:
            token = self._gateway.admit(path, Headers(scope=scope).get("authorization", ""))
            owner = _NO_NAME if token is None else token.id
            with self._gateway.requests.hold(owner):
                await self._app({**scope, "path": path, _TOKEN: token}, receive, send)
        except Problem as problem:
            await _problem_response(problem)(scope, receive, send)


class _Endpoint:
    """All methods of one path."""

    def __init__(self, gateway: Gateway, operations: Mapping[str, Operation]) -> None:
        self._gateway = gateway
        self._operations = {method: (one, parameters_of(one)) for method, one in operations.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._operations.get(scope["method"])
        if found is None:
            allowed = ", ".join(sorted(self._operations))
            problem = Problem(problems.METHOD_NOT_ALLOWED, f"use {allowed}", headers={"allow": allowed})
            await _problem_response(problem)(scope, receive, send)
            return
        operation, parameters = found
        with contextlib.suppress(_Disconnected):
            try:
                await self._serve(operation, parameters, scope, receive, send)
            except Problem as problem:
                await _problem_response(self._declared(operation, problem))(scope, receive, send)

    async def _serve(
        self, operation: Operation, parameters: Sequence[ParameterField], scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = Headers(scope=scope)
        given = _parameters(operation, parameters, scope, headers)
        content_type = "" if operation.body is None else _content_type(operation.body, headers)
        length = 0 if operation.body is None else self._body_bytes(headers)
        reserved = length + (0 if operation.body is None else operation.body.answer_bytes.get(content_type, 0))
        with self._gateway.buffered.hold(amount=reserved) if reserved else nullcontext():
            body = await self._body(receive, length) if operation.body is not None else b""
            call = self._call(given, body, content_type, scope[_TOKEN])
            answer = await self._handled(operation, call)
            if isinstance(answer, Answer):
                response = _encoded(operation, answer)
                size = len(response.body) if operation.body is None else 0
                with self._gateway.buffered.hold(amount=size) if size > PIECE_BYTES else nullcontext():
                    await _send(response, scope, receive, send)
                return
        try:
            streaming = StreamingResponse(answer.chunks, headers=HEADERS, media_type=EVENT_STREAM)
            await streaming(scope, receive, send)
        finally:
            await answer.release()

    def _call(self, given: Any, body: bytes, content_type: str, token: TokenRecord | None) -> Call:
        gateway = self._gateway
        known = token or TokenRecord(name=_NO_NAME, id=_NO_NAME, sha256="", identity="")
        return Call(
            parameters=given,
            body=body,
            content_type=content_type,
            token=known,
            lend=lambda: gateway.pool.lend(known.identity),
            is_token_valid=lambda: gateway.tokens.is_valid(known),
            follow=lambda: gateway.followers.hold(known.id),
            buffer=lambda amount: gateway.buffered.hold(amount=amount),
        )

    async def _handled(self, operation: Operation, call: Call) -> Answer | EventStream:
        """Call the handler, and turn its errors into problems."""
        try:
            return await operation.handler(call)
        except Problem:
            raise
        except ConfigError as error:  # the file of the identity is missing or unreadable, and its path is not for users
            self._gateway.report(f"{operation.name}: {error}")
            raise Problem(problems.INTERNAL, "the gateway cannot use the identity of this token") from None
        except ChaplainError as error:
            raise problem_of(error) from None
        except Exception:
            self._gateway.report(f"{operation.name}: {traceback.format_exc()}")
            raise Problem(problems.INTERNAL, "the gateway's log has the reason") from None

    def _declared(self, operation: Operation, problem: Problem) -> Problem:
        """The problem, if the endpoint declares it."""
        if problem.kind in operation.all_problems:
            return problem
        self._gateway.report(f"{operation.name}: undeclared problem {problem.kind.name}: {problem.detail}")
        return Problem(problems.INTERNAL, problem.detail)

    def _body_bytes(self, headers: Headers) -> int:
        """How many bytes to reserve for the body: its length, or the most if it is not known."""
        most = self._gateway.settings.body_bytes_max
        length = headers.get("content-length")
        if length is None:
            return most if "transfer-encoding" in headers else 0
        if int(length) > most:  # the server has checked that it is a number
            raise _too_large(most)
        return int(length)

    async def _body(self, receive: Receive, length: int) -> bytes:
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._gateway.settings.body_seconds):
                while True:
                    message: Message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Disconnected
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    if size > max(length, 0):
                        raise _too_large(self._gateway.settings.body_bytes_max)
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            detail = f"a body has to arrive within {self._gateway.settings.body_seconds:g} s"
            raise Problem(problems.REQUEST_TIMEOUT, detail, headers=CLOSE) from None


def _too_large(most: int) -> Problem:
    return Problem(problems.TOO_LARGE, f"a body has at most {most} bytes", headers=CLOSE)


def _content_type(body: Body, headers: Headers) -> str:
    found = headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise Problem(problems.UNSUPPORTED, f"send the body without content-encoding {encoding[:40]!r}", headers=CLOSE)
    accepted = found in body.media_types or (ANY_TYPE in body.media_types and found not in FORMS)
    if not found or not accepted:
        names = [name for name in body.media_types if name != ANY_TYPE]
        others = " or the type of the value" if ANY_TYPE in body.media_types else ""
        raise Problem(problems.UNSUPPORTED, f"send a content-type: {', '.join(names)}{others}", headers=CLOSE)
    return found


def _parameters(operation: Operation, fields: Sequence[ParameterField], scope: Scope, headers: Headers) -> Any:
    """Decode the parameters. Raises `Problem` for unknown, repeated and wrong ones."""
    places = {one.name: one.place for one in fields}
    given: dict[str, str] = {}
    try:
        query = parse_qsl(
            scope["query_string"].decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict"
        ) if scope["query_string"] else []  # fmt: skip
        for name, value in query:
            if places.get(name) != "query":
                raise Problem(problems.INVALID, f"there is no parameter {name[:40]!r}")
            if name in given:
                raise Problem(problems.INVALID, f"{name!r} is given twice")
            given[name] = value
        for name, value in scope.get("path_params", {}).items():
            given[name] = unquote(value, errors="strict")
    except ValueError as error:
        raise Problem(problems.INVALID, f"the URL is malformed: {error}") from None
    given |= {name: headers[name] for name, place in places.items() if place == "header" and name in headers}
    try:
        return msgspec.convert(given, operation.parameters, strict=False)
    except msgspec.ValidationError as error:
        raise Problem(problems.INVALID, str(error)) from None


def _encoded(operation: Operation, answer: Answer) -> Response:
    assert answer.status == operation.answer.status, "an answer has the declared status"
    body = answer.body.encode() if isinstance(answer.body, str) else msgspec.json.encode(answer.body)
    headers = {**HEADERS, **answer.headers}
    return Response(body, answer.status, headers, operation.answer.media_type)


def _problem_response(problem: Problem) -> Response:
    headers = {**HEADERS, **problem.headers}
    return Response(problem.document(), problem.kind.status, headers, problems.MEDIA_TYPE)


async def _send(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send in pieces: the server waits after each one until the client has read most of it."""

    async def send_pieces(message: Message) -> None:
        body = message.get("body", b"")
        if message["type"] != "http.response.body" or len(body) <= PIECE_BYTES:
            await send(message)
            return
        for piece in _pieces(body):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    await response(scope, receive, send_pieces)


def _pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]
