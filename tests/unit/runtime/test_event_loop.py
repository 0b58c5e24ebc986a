from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from chaplain.clock import Clock
from chaplain.core import Arrived, Connected, Disconnected, Heard, Send, Stopping
from chaplain.errors import ConfigError
from chaplain.link.zmq.sockets import Sockets
from chaplain.runtime import event_loop
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.runtime.disk.writer import DiskWriter
from chaplain.runtime.event_loop import EventLoop
from chaplain.runtime.exit_codes import BROKEN, DONE, HALTED, REMOVED
from chaplain.runtime.http import server as http
from chaplain.runtime.http.server import HttpServer, HttpViews
from chaplain.runtime.json_log import JsonLog
from chaplain.runtime.udp_beacon import BeaconSocket
from tests.support.toy_core import ToyCore
from tests.unit.link.zmq.sockets_stage import PATIENCE_S, Side, until


class Running:
    """A host of a toy in a thread."""

    def __init__(self, path, beacon: BeaconSocket | None = None, cast: bytes = b"toy") -> None:
        self.log = io.StringIO()
        clock = Clock()
        self.core = ToyCore(clock.now_ns(), cast)
        self.sockets = Sockets(b"h" * 16, "tcp://127.0.0.1:*")
        self.endpoint = self.sockets.endpoint
        storage = DiskWriter(DataDirectory(str(path)))
        self.host = EventLoop(self.core, self.sockets, storage, JsonLog("toy", self.log), beacon=beacon, clock=clock)
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.host.run()
        self.host.close()

    def end(self) -> int | None:
        self.host.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        return self.code

    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.log.getvalue().splitlines()]


@pytest.fixture
def running(tmp_path) -> Iterator[Running]:
    toy = Running(tmp_path)
    yield toy
    toy.end()


def call(toy: Running, *frames: bytes) -> list[bytes]:
    with Side(b"c" * 16) as caller:
        caller.dial(1, toy.endpoint)
        until(lambda: caller.of(Connected), caller)
        for frame in frames:
            caller.sockets.perform(Send(1, frame))
        until(lambda: len(caller.of(Arrived)) == len(frames) or caller.of(Disconnected), caller)
        return [event.frame for event in caller.of(Arrived)]


def test_frame_is_answered_after_sync(running, tmp_path):
    frames = [b"%d," % number for number in range(200)]
    assert call(running, *frames) == [b"ok " + frame for frame in frames]
    assert (tmp_path / "log").read_bytes() == b"".join(frames)


def test_stop_is_reported_once_and_ends_with_code_zero(running):
    assert running.end() == DONE
    assert running.core.seen.count(Stopping()) == 1
    assert running.events() == ["good-bye", "stopped"]


def test_halt_ends_the_node_with_its_reason(running):
    call(running, b"halt")
    running.thread.join(PATIENCE_S)
    assert running.code == HALTED
    assert json.loads(running.log.getvalue())["reason"] == "a toy was told to halt"


def test_removed_node_announces_its_leave_and_ends_with_its_own_code(running):
    frames = [b"%d," % number for number in range(200)]
    answers = call(running, *frames, b"remove")
    running.thread.join(PATIENCE_S)
    assert answers == [b"ok " + frame for frame in frames]
    assert running.code == REMOVED
    assert running.core.seen.count(Stopping()) == 1
    assert running.events() == ["good-bye", "halted"]
    assert json.loads(running.log.getvalue().splitlines()[-1])["reason"] == "a toy was removed"


def test_defect_in_a_core_ends_the_node_with_a_traceback(running):
    call(running, b"break")
    running.thread.join(PATIENCE_S)
    assert running.code == BROKEN
    assert "RuntimeError: a toy broke" in json.loads(running.log.getvalue())["traceback"]


def test_time_never_goes_back_and_deadlines_are_met(running):
    end = time.monotonic() + PATIENCE_S
    while running.host.ask(lambda: running.core.counts["Woken"]) < 5:
        assert time.monotonic() < end
    times = running.host.ask(lambda: list(running.core.times))
    assert times == sorted(times)
    assert abs(times[0] - time.time_ns()) < 60_000_000_000
    counts = running.host.ask(lambda: dict(running.core.counts))
    assert (
        counts["Drained"] == running.host.ask(lambda: running.host.measures()[0]["host_wakeups"]) or counts["Drained"]
    )


def test_beacons_reach_all_listeners_of_the_port(tmp_path):
    sockets = [BeaconSocket("127.255.255.255", 17_401) for _ in range(2)]
    toys = [Running(tmp_path / str(number), beacon, b"%d" % number) for number, beacon in enumerate(sockets)]
    end = time.monotonic() + PATIENCE_S
    for toy in toys:
        while {event.datagram for event in list(toy.core.seen) if isinstance(event, Heard)} != {b"0", b"1"}:
            assert time.monotonic() < end
    for toy in toys:
        toy.end()
        assert "heard" in toy.events()


def test_invalid_beacon_address_is_reported_in_one_sentence():
    with pytest.raises(ConfigError, match=r"cannot listen for beacons at 127\.255\.255\.255:17401.*switch it off"):
        BeaconSocket("127.255.255.255", 17_401, "no-such-interface")


def test_log_lines_of_one_event_are_bounded():
    stream, now = io.StringIO(), [0.0]
    log = JsonLog("n", stream, lines_per_second_max=3, monotonic_s=lambda: now[0])
    for _ in range(10):
        log.write("again", {"event": "a detail may not overwrite a field"})
    now[0] = 1.0
    log.write("again", peer="p")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert len(lines) == 4
    assert lines[-1]["left_out"] == 7
    assert {line["event"] for line in lines} == {"again"}


def fetch(port: int, path: str, **headers: str) -> tuple[int, str]:
    wanted = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(wanted, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_http_pages_report_the_state_of_the_node(running):
    ready = [False]
    server = HttpServer("127.0.0.1", 0, HttpViews(running.host, lambda: b'{"id":1}', lambda: ready[0]))
    try:
        assert fetch(server.port, "/healthz") == (200, "ok\n")
        assert fetch(server.port, "/readyz")[0] == 503
        ready[0] = True
        assert fetch(server.port, "/readyz")[0] == 200
        assert json.loads(fetch(server.port, "/status")[1]) == {"id": 1}
        assert fetch(server.port, "/else")[0] == 404
        assert fetch(server.port, "/status", Host="evil.example")[0] == 403  # a page whose name leads here
        call(running, b"x")
        metrics = fetch(server.port, "/metrics")[1]
        assert "chaplain_Arrived_total 1.0" in metrics
        assert "chaplain_toy_waiting 0.0" in metrics
        assert "chaplain_link_admitted_total 1.0" in metrics
        assert "process_resident_memory_bytes" in metrics
        with pytest.raises(ConfigError, match="choose another http address"):
            HttpServer("127.0.0.1", server.port, HttpViews(running.host, bytes, lambda: True))
    finally:
        server.end()


def test_slow_http_client_delays_no_other_for_long(running, monkeypatch):
    monkeypatch.setattr(http, "REQUEST_S", 0.5)
    server = HttpServer("127.0.0.1", 0, HttpViews(running.host, bytes, lambda: True))
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(http.CONNECTIONS_MAX)]
    try:
        end_s = time.monotonic() + PATIENCE_S
        while True:
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.send(b"G")
            with contextlib.suppress(OSError):
                assert fetch(server.port, "/healthz") == (200, "ok\n")
                break
            assert time.monotonic() < end_s, "nobody else was ever answered"
            time.sleep(0.05)
    finally:
        for connection in slow:
            connection.close()
        server.end()


def test_blocked_event_loop_is_unhealthy(running):
    running.end()
    server = HttpServer("127.0.0.1", 0, HttpViews(running.host, bytes, lambda: True))
    running.host.ask = lambda *_: (_ for _ in ()).throw(TimeoutError)
    try:
        assert fetch(server.port, "/healthz")[0] == 503
    finally:
        server.end()


def test_node_that_stops_with_unsent_frames_reports_them(tmp_path, monkeypatch):
    monkeypatch.setattr(event_loop, "DRAIN_NS", 50_000_000)
    monkeypatch.setattr(event_loop, "LINGER_MS", 0)
    toy = Running(tmp_path)
    monkeypatch.setattr(type(toy.sockets), "queued_bytes", property(lambda sockets: 7))
    assert toy.end() == DONE
    [unsent] = [line for line in map(json.loads, toy.log.getvalue().splitlines()) if "queued_bytes" in line]
    assert (unsent["event"], unsent["queued_bytes"]) == ("stopped before everything was sent", 7)


def test_http_requests_above_the_rate_wait_one_interval_each():
    pace = http.Pace(10)
    burst = [pace.delay_s(100.0) for _ in range(13)]
    assert burst[:10] == [0.0] * 10
    assert burst[10:] == pytest.approx([0.1, 0.2, 0.3])
    assert pace.delay_s(102.0) == 0.0
