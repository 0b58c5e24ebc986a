"""A small read-only HTTP server for monitoring: `/metrics`, `/healthz`, `/readyz`, `/status`.

The node's event loop supplies the data of every response, so each response also proves that the loop is alive. The
server listens on the configured address (a loopback address by default) and serves at most `CONNECTIONS_MAX`
connections at a time.

The port needs no authentication; a rate limit for all requests together protects the loop. The server does not refuse
requests above the limit but delays them: the accepting thread sleeps, and the kernel's accept queue is bounded.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from chaplain.errors import ConfigError, Malformed
from chaplain.runtime.event_loop import EventLoop
from chaplain.runtime.http.host_header import is_host_allowed, is_loopback
from chaplain.runtime.metrics import GAUGES, help_of

CONNECTIONS_MAX = 16
REQUESTS_PER_SECOND = 50
CHECKPOINT_PAGE, TILE_PAGES = "/checkpoint", "/tile/"
"""Where C2SP's tlog-tiles wants the newest signed checkpoint and the tiles."""
METRICS_S = 1.0
"""The page of metrics is cached for this long."""
SOCKET_TIMEOUT_S = 5
REQUEST_S = 10.0
"""The longest time for one request, from the first octet of the request to the last octet of the response."""
_UNFIT = re.compile(r"[^a-zA-Z0-9_]+")

Answer = tuple[int, str, bytes]


class Views(Protocol):
    """Builds the responses of a server."""

    def answer(self, path: str) -> Answer: ...


class HttpViews:
    """Builds the responses of a node."""

    def __init__(
        self,
        loop: EventLoop,
        status: Callable[[], bytes],
        ready: Callable[[], bool],
        tree: Callable[[str], bytes | None] | None = None,
    ) -> None:
        """`status` returns JSON. The node's event loop calls `status` and `ready`. `tree` returns a part of the tree
        over the log by its name, or None if the node does not have it; it is called in threads of the server.
        """
        self._loop, self._status, self._ready, self._tree = loop, status, ready, tree
        self._metrics = (-METRICS_S, b"")
        """When the page was rendered last, and the page."""
        self._metrics_lock = threading.Lock()

    def answer(self, path: str) -> Answer:
        pages: dict[str, Callable[[], Answer]] = {
            "/metrics": self._metrics_page,
            "/healthz": self._health_page,
            "/readyz": self._ready_page,
            "/status": self._status_page,
        }
        name = path.partition("?")[0]
        page = pages.get(name)
        if page is None and self._tree is not None and (name == CHECKPOINT_PAGE or name.startswith(TILE_PAGES)):
            page = partial(self._tree_page, self._tree, name.removeprefix("/"))
        if page is None:
            others = () if self._tree is None else (CHECKPOINT_PAGE, f"{TILE_PAGES}…")
            return _text(404, f"not found; this node serves {', '.join((*pages, *others))}")
        try:
            return page()
        except TimeoutError:
            return _text(503, "the node's event loop does not respond")

    def _metrics_page(self) -> Answer:
        # Rendering takes several milliseconds: this thread does it, not the event loop, and at most once a second.
        with self._metrics_lock:
            if time.monotonic() - self._metrics[0] >= METRICS_S:
                measures = self._loop.ask(self._loop.measures)
                self._metrics = (time.monotonic(), exposition(*measures))
            else:
                self._loop.ask(bool)  # raises TimeoutError unless the loop is alive
            return 200, "text/plain; version=0.0.4; charset=utf-8", self._metrics[1]

    def _tree_page(self, tree: Callable[[str], bytes | None], name: str) -> Answer:
        """A part of the tree over the log, as C2SP's tlog-tiles wants it."""
        try:
            data = tree(name)
        except Malformed as wrong:
            return _text(404, str(wrong))
        if data is None:
            return _text(404, f"this node does not have {name}, not yet or not any more")
        is_note = not name.startswith("tile/")
        return 200, "text/plain; charset=utf-8" if is_note else "application/octet-stream", data

    def _health_page(self) -> Answer:
        self._loop.ask(bool)  # raises TimeoutError unless the loop is alive
        return _text(200, "ok")

    def _ready_page(self) -> Answer:
        return _text(200, "ready") if self._loop.ask(self._ready) else _text(503, "not yet")

    def _status_page(self) -> Answer:
        return 200, "application/json", self._loop.ask(self._status) + b"\n"


def exposition(counters: Mapping[str, float], gauges: Mapping[str, float]) -> bytes:
    """Render metrics in the text format of Prometheus."""
    # Imported here because the import takes a tenth of a second, which would delay the start of a node.
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # noqa: PLC0415
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric  # noqa: PLC0415
    from prometheus_client.registry import Collector  # noqa: PLC0415

    class Node(Collector):
        def collect(self) -> list[Metric]:
            families: list[Metric] = []
            for name, value in sorted(_fit(counters).items()):
                families.append(CounterMetricFamily(f"chaplain_{name}", help_of(name), value=value))
            for name, value in sorted(_fit(gauges).items()):
                families.append(GaugeMetricFamily(f"chaplain_{name}", GAUGES.get(name, ""), value=value))
            return families

    registry = CollectorRegistry()
    registry.register(Node())
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _fit(measures: Mapping[str, float]) -> dict[str, float]:
    """Replace the characters that Prometheus does not allow in names; add up values whose names become equal."""
    named: dict[str, float] = {}
    for name, value in measures.items():
        fit = _UNFIT.sub("_", name).strip("_")
        named[fit] = named.get(fit, 0) + value
    return named


def _text(code: int, text: str) -> Answer:
    return code, "text/plain; charset=utf-8", text.encode() + b"\n"


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # the connection may have ended already
        connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    timeout = SOCKET_TIMEOUT_S
    server: HttpServer

    def do_HEAD(self) -> None:
        """Answer like GET, without a body. Load balancers often send HEAD."""
        self.do_GET()

    def do_GET(self) -> None:
        self.respond(lambda: self.server.views.answer(self.path))

    def respond(self, answer: Callable[[], Answer]) -> None:
        """Send an answer, unless the request is for a foreign host name."""
        if self.server.serves(self.headers.get("Host", "")):
            code, kind, body = answer()
        else:
            code, kind, body = _text(403, "use 127.0.0.1 or localhost: this node answers to no other host name")
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: requests of monitoring would fill the log."""


class Pace:
    """A rate limiter. It allows a burst of one second's worth of events, then one event per interval."""

    def __init__(self, per_second: int) -> None:
        self._interval_s = 1 / per_second
        self._free_s = 0.0
        """When all events so far fit into the rate."""

    def delay_s(self, now_s: float) -> float:
        """Count one more event and return how long it has to wait."""
        self._free_s = max(self._free_s, now_s - 1) + self._interval_s
        return max(0.0, self._free_s - now_s)


class HttpServer(ThreadingHTTPServer):
    """Serves in a background thread, from construction until `end`."""

    handler: type[Handler] = Handler
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, host: str, port: int, views: Views, per_second: int = REQUESTS_PER_SECOND) -> None:
        self.views = views
        self._pace = Pace(per_second)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        try:
            super().__init__((host, port), self.handler)
        except OSError as error:
            message = f"cannot serve HTTP at {host}:{port}: {error.strerror}; choose another http address"
            raise ConfigError(message) from error
        self.port = int(self.server_address[1])
        self.endpoint = f"{host}:{self.port}"
        self._is_local = is_loopback(str(self.server_address[0]))
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="http", daemon=True)
        self._thread.start()

    def serves(self, host_header: str) -> bool:
        """Whether to serve a request with this `Host` header.

        A server on a loopback address accepts only addresses and localhost (see `host_header`). One that listens for
        other machines accepts any name.
        """
        return not self._is_local or host_header == self.endpoint or is_host_allowed(host_header)

    def process_request(self, request: Any, client_address: Any) -> None:
        time.sleep(self._pace.delay_s(time.monotonic()))
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # The socket's time-out bounds a single read. This timer bounds the whole request: a client that sends its
        # request octet by octet would otherwise occupy a connection for ever (slowloris).
        limit = threading.Timer(REQUEST_S, _hang_up, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the client closed the connection early."""

    def end(self) -> None:
        self.shutdown()
        self._thread.join(SOCKET_TIMEOUT_S)
        self.server_close()
