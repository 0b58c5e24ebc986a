"""Serves the application over HTTP/1.1 or TLS, with time-outs and bounds for every connection.

uvicorn bounds neither the time in which a header arrives nor the time that a client takes to read an answer, and its
own refusals are plain text. The protocol here adds that.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from chaplain.errors import ConfigError
from chaplain.gateway import problems
from chaplain.gateway.problems import Problem, ProblemKind
from chaplain.gateway.settings import GatewaySettings
from chaplain.runtime.http.host_header import is_loopback
from chaplain.runtime.http.listening import listen

STOP_WITHIN_S = 2
"""At its end the server closes connections that are still open after this time, such as those of followers."""


class GatewayProtocol(H11Protocol):
    """One connection."""

    settings: ClassVar[GatewaySettings]
    _header_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        most, most_each = self.settings.connections_max, self.settings.connections_per_address_max
        if len(self.connections) > most:
            self._refuse(Problem(problems.BUSY, f"{most} connections are open"))
        elif self._connections_of_address() > most_each:
            self._refuse(Problem(problems.BUSY, f"{most_each} connections of this address are open"))
        else:
            self._bound_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self._stop_stall_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_header_timer()
        elif self._header_timer is None:
            self._bound_header()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_stall_timer()
        self._stall_timer = self.loop.call_later(self.settings.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() and self._stall_timer is None:  # it closes once the client has read the rest
            self._stall_timer = self.loop.call_later(self.settings.stalled_seconds, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP. The server calls this while it handles the error."""
        error = sys.exception()
        kind: ProblemKind = problems.INVALID
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == problems.HEADER_TOO_LARGE.status:
            kind = problems.HEADER_TOO_LARGE
        if self.cycle is not None and not self.cycle.response_complete:  # a broken body: its handler ends
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._refuse(Problem(kind, msg))

    def _refuse(self, problem: Problem) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = problem.document()
        headers = {
            "content-type": problems.MEDIA_TYPE,
            "content-length": str(len(body)),
            "connection": "close",
            **problem.headers,
        }
        reason = problem.kind.title.encode()
        response = h11.Response(status_code=problem.kind.status, headers=list(headers.items()), reason=reason)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            if sent := self.conn.send(event):
                self.transport.write(sent)
        self.transport.close()

    def _connections_of_address(self) -> int:
        address = self.client and self.client[0]
        others = (one.client for one in self.connections if isinstance(one, GatewayProtocol))
        return sum(client is not None and client[0] == address for client in others)

    def _bound_header(self) -> None:
        self._header_timer = self.loop.call_later(self.settings.header_seconds, self.transport.abort)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def check_exposure(host: str, *, tls: bool, plain: bool) -> None:
    """Raise unless tokens stay on this machine or are encrypted, or the operator says that a proxy encrypts them."""
    if not is_loopback(host) and not tls and not plain:
        raise ConfigError(
            f"tokens would travel to {host} unencrypted: give --tls-cert and --tls-key, bind 127.0.0.1, or give"
            " --plain-http if a proxy in front of the gateway does TLS"
        )


def make_server(
    app: Callable[[Scope, Receive, Send], Awaitable[None]], settings: GatewaySettings, tls: tuple[Path, Path] | None
) -> uvicorn.Server:
    """The server, for a socket that listens."""
    protocol = type("BoundProtocol", (GatewayProtocol,), {"settings": settings})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=settings.header_bytes_max,
        timeout_keep_alive=max(1, round(settings.idle_seconds)),
        timeout_graceful_shutdown=STOP_WITHIN_S,
        ssl_certfile=None if tls is None else str(tls[0]),
        ssl_keyfile=None if tls is None else str(tls[1]),
    )
    return uvicorn.Server(config)


def serve(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
    settings: GatewaySettings,
    host: str,
    port: int,
    *,
    tls: tuple[Path, Path] | None,
    report: Callable[[str], object],
) -> None:
    """Listen, report the URL, and serve until interrupted. `tls` is the certificate and its key."""
    listening = listen(host, port)
    name = f"[{host}]" if ":" in host else host
    report(f"{'https' if tls else 'http'}://{name}:{listening.getsockname()[1]}")
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is the normal way to stop
        make_server(app, settings, tls).run([listening])
