"""A small HTTP server for machines that watch a node: `/metrics`, `/healthz`, `/readyz`, `/status`.

The facts of every answer come from the node's own loop, so an answer is also proof that the loop turns. The server
changes nothing, listens where it is told (a loopback address unless a user decides otherwise) and serves at most
`CONNECTIONS_MAX` connections at a time.

A caller of the port needs no key, so the requests of all callers together have a rate. Requests above it are not
refused but accepted later: the thread that accepts connections waits, and the kernel's queue of connections is bounded.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from chaplain.errors import ConfigError
from chaplain.runtime.event_loop import EventLoop
from chaplain.runtime.http.host_header import asks_by_address, is_loopback
from chaplain.runtime.metrics import GAUGES, help_of

CONNECTIONS_MAX = 16
REQUESTS_PER_SECOND = 50
METRICS_S = 1.0
"""How old a page of metrics may be."""
SOCKET_TIMEOUT_S = 5
REQUEST_S = 10.0
"""How long one request may take, from its first octet to its answer's last."""
_UNFIT = re.compile(r"[^a-zA-Z0-9_]+")

Answer = tuple[int, str, bytes]


class HttpViews:
    """What can be asked of a node."""

    def __init__(self, host: EventLoop, status: Callable[[], bytes], ready: Callable[[], bool]) -> None:
        """`status` gives JSON; it and `ready` are called by the node's loop."""
        self._host, self._status, self._ready = host, status, ready
        self._metrics = (-METRICS_S, b"")
        """When the page was written out last, and the page."""
        self._metrics_lock = threading.Lock()

    def answer(self, path: str) -> Answer:
        pages: dict[str, Callable[[], Answer]] = {
            "/metrics": self._metrics_page,
            "/healthz": self._health_page,
            "/readyz": self._ready_page,
            "/status": self._status_page,
        }
        page = pages.get(path.partition("?")[0])
        if page is None:
            return _text(404, f"only {', '.join(pages)} are here")
        try:
            return page()
        except TimeoutError:
            return _text(503, "the node's loop does not turn")

    def _metrics_page(self) -> Answer:
        # Written out here, not by the loop, and once for all who ask within a second: it takes several milliseconds.
        with self._metrics_lock:
            if time.monotonic() - self._metrics[0] >= METRICS_S:
                measures = self._host.ask(self._host.measures)
                self._metrics = (time.monotonic(), exposition(*measures))
            else:
                self._host.ask(bool)  # whether the loop turns
            return 200, "text/plain; version=0.0.4; charset=utf-8", self._metrics[1]

    def _health_page(self) -> Answer:
        self._host.ask(bool)  # nothing: whether the loop turns
        return _text(200, "ok")

    def _ready_page(self) -> Answer:
        return _text(200, "ready") if self._host.ask(self._ready) else _text(503, "not yet")

    def _status_page(self) -> Answer:
        return 200, "application/json", self._host.ask(self._status) + b"\n"


def exposition(counters: Mapping[str, float], gauges: Mapping[str, float]) -> bytes:
    """The node's measures in the text format that Prometheus reads."""
    # Imported here: it takes a tenth of a second that a starting node can do without.
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
    """Under names that Prometheus takes."""
    named: dict[str, float] = {}
    for name, value in measures.items():
        fit = _UNFIT.sub("_", name).strip("_")
        named[fit] = named.get(fit, 0) + value
    return named


def _text(code: int, text: str) -> Answer:
    return code, "text/plain; charset=utf-8", text.encode() + b"\n"


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    timeout = SOCKET_TIMEOUT_S
    server: HttpServer

    def do_HEAD(self) -> None:
        """As whoever balances load often asks: the same without the text."""
        self.do_GET()

    def do_GET(self) -> None:
        asked = self.headers.get("Host", "")
        if self.server.serves(asked):
            code, kind, body = self.server.views.answer(self.path)
        else:
            code, kind, body = _text(403, "ask for 127.0.0.1 or localhost: this node tells nothing under another name")
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """A request is no event worth a line."""


class Pace:
    """Spreads events over time: a burst of one second's worth, and then one after the other."""

    def __init__(self, per_second: int) -> None:
        self._interval_s = 1 / per_second
        self._free_s = 0.0
        """When all that was let through is paid for."""

    def delay_s(self, now_s: float) -> float:
        """How long the next one has to wait."""
        self._free_s = max(self._free_s, now_s - 1) + self._interval_s
        return max(0.0, self._free_s - now_s)


class HttpServer(ThreadingHTTPServer):
    """Serves in the background from construction until `end`."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, host: str, port: int, views: HttpViews, per_second: int = REQUESTS_PER_SECOND) -> None:
        self.views = views
        self._pace = Pace(per_second)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            message = f"cannot serve HTTP at {host}:{port}: {error.strerror}; choose another http address"
            raise ConfigError(message) from error
        self.port = int(self.server_address[1])
        self.endpoint = f"{host}:{self.port}"
        self._is_local = is_loopback(str(self.server_address[0]))
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="http", daemon=True)
        self._thread.start()

    def serves(self, asked: str) -> bool:
        """Whether this `EventLoop` header may be asked for: what listens for others may have any name."""
        return not self._is_local or asked == self.endpoint or asks_by_address(asked)

    def process_request(self, request: Any, client_address: Any) -> None:
        time.sleep(self._pace.delay_s(time.monotonic()))
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # Each read may take its time, but all of them together no longer: who drips octets would keep its place.
        limit = threading.Timer(REQUEST_S, _hang_up, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody hung up half-way: nothing to tell."""

    def end(self) -> None:
        self.shutdown()
        self._thread.join(SOCKET_TIMEOUT_S)
        self.server_close()
