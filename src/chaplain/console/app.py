"""The console's web application: the page, its style sheet and script, and snapshots of the cluster as JSON.

`/api/state` returns one snapshot; `/api/live` sends each new one as a server-sent event. The application is read-only.
On an address other than loopback it requires a token and TLS. The Content-Security-Policy lets the browser load
nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from chaplain.console.watch import Watcher
from chaplain.errors import ConfigError
from chaplain.runtime.http.host_header import is_host_allowed, is_loopback

TOKEN_COOKIE = "chaplain-token"  # noqa: S105  the cookie's name, not its value
VIEWERS_MAX = 64
"""At most this many pages receive live snapshots; the server answers further requests with status 503."""
FIRST_SNAPSHOT_S = 10.0
"""`/api/state` fails if the watcher has no snapshot after this time."""
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console.js": ("console.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def check_exposure(host: str, *, token: str, tls: bool) -> None:
    """Raise unless the host is a loopback address or the console has a token and TLS."""
    if not is_loopback(host) and not (token and tls):
        raise ConfigError(
            f"the console at {host} would be open to others: give --token-file, --tls-cert and --tls-key,"
            " or serve 127.0.0.1"
        )


def make_app(watcher: Watcher, token: str = "") -> Starlette:
    pages = {
        path: (files("chaplain.console").joinpath("page", name).read_bytes(), kind)
        for path, (name, kind) in _PAGE.items()
    }
    viewers = asyncio.Semaphore(VIEWERS_MAX)

    async def page(request: Request) -> Response:
        body, kind = pages[request.url.path]
        response = Response(body, media_type=kind)
        if given := request.query_params.get("token"):
            response.set_cookie(TOKEN_COOKIE, given, httponly=True, samesite="strict", secure=True)
        return response

    async def state(request: Request) -> Response:
        return JSONResponse(await _current_snapshot(watcher))

    async def live(request: Request) -> Response:
        if viewers.locked():
            return Response(f"{VIEWERS_MAX} pages watch already: close one\n", 503)
        return StreamingResponse(_snapshots(watcher, viewers), media_type="text/event-stream")

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(watcher.run())
        yield
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    routes = [*(Route(path, page) for path in pages), Route("/api/state", state), Route("/api/live", live)]
    return Starlette(routes=routes, lifespan=lifespan, middleware=[Middleware(_Guard, token=token)])


async def _current_snapshot(watcher: Watcher) -> object:
    async with asyncio.timeout(FIRST_SNAPSHOT_S):
        return watcher.snapshot or await _next_snapshot(watcher, None)


async def _snapshots(watcher: Watcher, viewers: asyncio.Semaphore) -> AsyncIterator[str]:
    """Yield each new snapshot. A slow viewer skips snapshots; they do not queue up."""
    async with viewers:
        last: object = None
        while True:
            last = await _next_snapshot(watcher, last)
            yield f"data: {json.dumps(last)}\n\n"


async def _next_snapshot(watcher: Watcher, last: object) -> object:
    async with watcher.changed:
        await watcher.changed.wait_for(lambda: watcher.snapshot is not last)
        return watcher.snapshot


class _Guard(BaseHTTPMiddleware):
    """Checks every request, and adds the security headers to every response.

    With a token, a request must present it. Without one, the Host header must be an address or `localhost`: otherwise a
    web page whose name resolves to 127.0.0.1 (DNS rebinding) could read the console.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], token: str) -> None:
        super().__init__(app)
        self._token = token

    async def dispatch(self, request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if self._token and not hmac.compare_digest(_presented_token(request).encode(), self._token.encode()):
            return Response("this console wants its token: open it as /?token=…\n", 401, _HEADERS)
        if not self._token and not is_host_allowed(request.headers.get("host", "")):
            return Response("open this console as 127.0.0.1 or localhost\n", 403, _HEADERS)
        response = await call_next(request)
        response.headers.update(_HEADERS)
        return response


def _presented_token(request: Request) -> str:
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return request.query_params.get("token") or request.cookies.get(TOKEN_COOKIE) or bearer
