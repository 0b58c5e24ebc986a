from __future__ import annotations

import re
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq

from chaplain.core import Arrived, Connected, Disconnected, Flushed, HangUp, Knocked, Refuse, Send
from chaplain.errors import ConfigError
from chaplain.link.zmq import dealer as lines
from chaplain.link.zmq import sockets, zap
from chaplain.link.zmq.sockets import Sockets
from tests.unit.link.zmq.sockets_stage import PATIENCE_S, Side, until

SERVER, CALLER = b"s" * 16, b"c" * 16
ANY = "tcp://127.0.0.1:*"
ROUTE = b"\x01" + CALLER


def route_to(caller_at: Side) -> bytes:
    """The name of the one connection that this side was spoken to on."""
    [route] = {arrived.channel for arrived in caller_at.of(Arrived)}
    assert route.startswith(ROUTE)
    assert len(route) == len(ROUTE) + 8
    return route


def test_frames_pass_both_ways_in_order():
    with Side(SERVER, ANY) as server, Side(CALLER) as caller:
        caller.dial(7, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)
        sent = [b"frame %d" % number for number in range(3000)]
        for frame in sent:
            caller.sockets.perform(Send(7, frame))
        until(lambda: len(server.of(Arrived)) == len(sent), server, caller)
        route = route_to(server)
        assert server.of(Arrived) == [Arrived(route, frame) for frame in sent]
        for frame in sent:
            server.sockets.perform(Send(route, frame))
        until(lambda: len(caller.of(Arrived)) == len(sent), server, caller)
        assert caller.of(Arrived) == [Arrived(7, frame) for frame in sent]
        until(lambda: sum(e.size for e in caller.of(Flushed)) == sum(map(len, sent)), server, caller)
        until(lambda: sum(e.size for e in server.of(Flushed)) == sum(map(len, sent)), server, caller)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace: `apt-get install strace`")
def test_systemd_unit_allows_every_address_family_of_a_node(tmp_path):
    """Where systemd allows fewer, a node cannot listen."""
    script = f"from chaplain.link.zmq.sockets import Sockets; Sockets({SERVER!r}, {ANY!r}).close()"
    trace = ["strace", "-f", "-qq", "-e", "trace=socket", "-o", str(tmp_path / "trace")]
    subprocess.run([*trace, sys.executable, "-c", script], check=True, timeout=PATIENCE_S)
    asked = set(re.findall(r"AF_\w+", (tmp_path / "trace").read_text()))
    unit = Path(__file__).parents[4] / "deploy/chaplain-node.service"
    [allowed] = re.findall(r"(?m)^RestrictAddressFamilies=(.*)$", unit.read_text())
    assert {"AF_INET"} <= asked <= set(allowed.split())


def test_interface_name_is_replaced_by_its_address():
    with Side(SERVER, "tcp://lo:*") as server, Side(CALLER) as caller:
        assert server.sockets.endpoint.startswith("tcp://127.0.0.1:")
        caller.dial(1, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)


def test_token_names_and_proofs_may_be_any_octets():
    name, proof = bytes(range(255)), bytes(reversed(range(255)))
    with Side(SERVER, ANY, proof=proof) as server, Side(CALLER) as caller:
        caller.dial(1, server.sockets.endpoint, name, proof)
        until(lambda: caller.of(Connected), server, caller)
        (knock,) = server.of(Knocked)
        assert (knock.name, knock.proof, knock.address) == (name, proof, "127.0.0.1")


def test_wrong_proof_is_refused_and_ends_the_dial():
    with Side(SERVER, ANY) as server, Side(CALLER) as caller:
        caller.dial(1, server.sockets.endpoint, proof=b"wrong")
        until(lambda: caller.of(Disconnected), server, caller)
        assert caller.seen == [Disconnected(1, "refused")]
        assert server.sockets.counts["link_refused"] == 1


def test_unanswered_admission_request_delays_no_other():
    with Side(SERVER, ANY) as server, Side(CALLER) as slow, Side(b"q" * 16) as quick:
        waiting = []

        def turn_holding_the_first() -> None:
            for event in server.sockets.wait(1_000_000):
                if isinstance(event, Knocked) and event.name == b"slow":
                    waiting.append(event)
                elif isinstance(event, Knocked):
                    server.sockets.perform(sockets.Admit(event.request, "quick"))

        server.turn = lambda timeout_ms=1: turn_holding_the_first()  # type: ignore[method-assign]
        slow.dial(1, server.sockets.endpoint, b"slow")
        until(lambda: waiting, server, slow)
        quick.dial(1, server.sockets.endpoint, b"quick")
        until(lambda: quick.of(Connected), server, quick)
        server.sockets.perform(Refuse(waiting[0].request, "no"))
        until(lambda: slow.of(Disconnected), server, slow)


def test_dial_to_a_closed_port_ends():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with Side(CALLER) as caller:
            caller.dial(3, endpoint)
            until(lambda: caller.seen, caller)
            assert caller.seen == [Disconnected(3, "nobody answers")]


def test_dial_to_a_silent_server_ends_in_bounded_time(monkeypatch):
    for module in (lines, sockets):
        monkeypatch.setattr(module, "DIAL_TIMEOUT_NS", 300_000_000)
    with socket.create_server(("127.0.0.1", 0)) as mute, Side(CALLER) as caller:
        caller.dial(3, f"tcp://127.0.0.1:{mute.getsockname()[1]}")
        until(lambda: caller.seen, caller)
        assert [type(event) for event in caller.seen] == [Disconnected]


def test_invalid_endpoint_ends_only_its_dial():
    with Side(CALLER) as caller:
        caller.dial(3, "nonsense")
        until(lambda: caller.seen, caller)
        assert caller.seen[0].reason.startswith("cannot dial nonsense")


def test_end_of_the_server_is_reported_and_does_not_reconnect_by_itself():
    with Side(CALLER) as caller:
        with Side(SERVER, ANY) as server:
            endpoint = server.sockets.endpoint
            caller.dial(1, endpoint)
            until(lambda: caller.of(Connected), server, caller)
        until(lambda: caller.of(Disconnected), caller)
        caller.sockets.perform(Send(1, b"too late"))
        with Side(SERVER, endpoint) as again:
            caller.dial(2, endpoint)
            until(lambda: len(caller.of(Connected)) == 2, again, caller)
            caller.sockets.perform(Send(2, b"fresh"))
            until(lambda: again.of(Arrived), again, caller)
            assert again.of(Arrived) == [Arrived(route_to(again), b"fresh")]
            assert len(again.of(Knocked)) == 1


def test_frames_that_arrived_before_the_end_are_delivered_first():
    with Side(CALLER) as caller:
        with Side(SERVER, ANY) as server:
            caller.dial(1, server.sockets.endpoint)
            until(lambda: caller.of(Connected), server, caller)
            caller.sockets.perform(Send(1, b"hello"))
            until(lambda: server.of(Arrived), server, caller)
            line = caller.sockets._connections[1]
            assert line.dealer.get(zmq.RECONNECT_IVL) == lines.NEVER_MS
            server.sockets.perform(Send(route_to(server), b"last words"))
            assert line.dealer.poll(PATIENCE_S * 1000)
        assert line.monitor.poll(PATIENCE_S * 1000)
        caller.sockets._drain_monitor(1)  # as if the news of the end had been noticed first
        caller.turn()
        assert caller.seen[-2:] == [Arrived(1, b"last words"), Disconnected(1, "connection lost")]


def test_frames_that_arrived_before_the_callers_end_are_delivered():
    """A ROUTER is asked whether it has something: that must not throw away what it has."""
    words = [b"word %d" % number for number in range(20)]
    with Side(SERVER, ANY) as server:
        caller = Side(CALLER)
        try:
            caller.dial(1, server.sockets.endpoint)
            until(lambda: caller.of(Connected), server, caller)
            for word in words:
                caller.sockets.perform(Send(1, word))
        finally:
            caller.sockets.close(PATIENCE_S * 1000)  # gone, when this returns, and all has left
        until(lambda: len(server.of(Arrived)) == len(words), server)
        assert [arrived.frame for arrived in server.of(Arrived)] == words


def test_unanswered_admission_requests_are_bounded(monkeypatch):
    monkeypatch.setattr(zap, "KNOCKS_MAX", 1)
    with Side(SERVER, ANY) as server, Side(CALLER) as caller:
        for dial in (1, 2, 3):
            caller.dial(dial, server.sockets.endpoint)
        knocks = []
        server.turn = lambda timeout_ms=1: knocks.extend(server.sockets.wait(1_000_000))  # type: ignore[method-assign]
        until(lambda: len(knocks) == 3, server, caller)
        assert server.sockets.counts["link_tokens_crowded_out"] == 2
        for knock in knocks:
            server.sockets.perform(sockets.Admit(knock.request, "late"))
        assert server.sockets.counts["link_admitted"] == 1


def test_lost_route_is_reported_when_sending():
    with Side(SERVER, ANY) as server:
        with Side(CALLER) as caller:
            caller.dial(1, server.sockets.endpoint)
            until(lambda: caller.of(Connected), server, caller)
            caller.sockets.perform(Send(1, b"hello"))
            until(lambda: server.of(Arrived), server, caller)

        def told() -> bool:
            server.sockets.perform(Send(route_to(server), b"are you there"))
            return bool(server.of(Disconnected))

        until(told, server)
        assert server.of(Disconnected)[0].channel == route_to(server)


def test_message_that_arrives_during_a_failed_send_is_received_without_another_signal():
    """A send processes ZeroMQ's signals even if it fails: a client that connected then had to dial again after 3 s."""
    with Side(SERVER, ANY) as server, Side(b"d" * 16) as second:
        with Side(CALLER) as first:
            first.dial(1, server.sockets.endpoint)
            second.dial(1, server.sockets.endpoint)
            until(lambda: first.of(Connected) and second.of(Connected), server, first, second)
            first.sockets.perform(Send(1, b"hello"))
            until(lambda: server.of(Arrived), server, first, second)
            route = route_to(server)

        def lost() -> bool:
            server.sockets.perform(Send(route, b"are you there"))
            return bool(server.of(Disconnected))

        until(lost, server)
        server.turn()
        second.sockets.perform(Send(1, b"next"))
        router = server.sockets._router
        assert router is not None
        assert select.select([router.fileno()], [], [], PATIENCE_S)[0]
        time.sleep(0.01)  # ZeroMQ ignores signals for a millisecond after it has looked for them
        server.sockets.perform(Send(route, b"are you there"))
        server.turn(0)
        server.turn(PATIENCE_S * 1000 if len(server.of(Arrived)) == 1 else 0)
        assert server.of(Arrived)[-1].frame == b"next"


def test_routing_id_of_another_connection_cannot_be_taken_over():
    """Even who knows the whole name, and was let in: the first who had it keeps it."""
    with Side(SERVER, ANY) as server, Side(CALLER) as caller:
        caller.dial(1, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)
        caller.sockets.perform(Send(1, b"hello"))
        until(lambda: server.of(Arrived), server, caller)
        with zmq.Context() as context, context.socket(zmq.DEALER) as thief:
            thief.setsockopt(zmq.LINGER, 0)
            thief.setsockopt(zmq.ROUTING_ID, route_to(server))
            thief.setsockopt(zmq.PLAIN_USERNAME, b"n")
            thief.setsockopt(zmq.PLAIN_PASSWORD, b"open")
            thief.connect(server.sockets.endpoint)
            thief.send(b"it is me")
            until(lambda: len(server.of(Knocked)) == 2, server, caller)
            for number in range(100):
                caller.sockets.perform(Send(1, b"still me %d" % number))
            until(lambda: len(server.of(Arrived)) >= 101, server, caller)
            server.sockets.perform(Send(route_to(server), b"for you"))
            until(lambda: caller.of(Arrived), server, caller)
        assert [each.frame for each in server.of(Arrived)][-1] == b"still me 99"
        assert b"it is me" not in [each.frame for each in server.of(Arrived)]


def test_long_frames_are_fragmented_and_arrive_complete():
    frame = bytes(range(200)) * 5000
    with Side(SERVER, ANY) as server, Side(CALLER) as caller:
        caller.dial(1, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)
        for number in range(20):
            caller.sockets.perform(Send(1, b"%02d" % number + frame))
            caller.sockets.perform(Send(1, b"short"))
        until(lambda: len(server.of(Arrived)) == 40, server, caller)
        assert [e.frame[:2] for e in server.of(Arrived)][::2] == [b"%02d" % number for number in range(20)]
        assert all(e.frame[2:] == frame for e in server.of(Arrived)[::2])
        until(lambda: sum(e.size for e in caller.of(Flushed)) == 20 * (len(frame) + 7), server, caller)
        assert caller.sockets.queued_bytes == 0


def test_peer_that_does_not_read_is_disconnected_at_the_bound(monkeypatch):
    monkeypatch.setattr(sockets, "OUTBOX_BYTES_MAX", 4_000_000)
    with Side(SERVER, ANY) as server, Side(CALLER) as caller:
        caller.dial(1, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)

        def pour() -> bool:
            caller.sockets.perform(Send(1, bytes(1_000_000)))
            assert caller.sockets.queued_bytes <= 5_000_000
            return bool(caller.of(Disconnected))

        until(pour, caller)
        assert caller.of(Disconnected) == [Disconnected(1, "it does not keep up")]


def test_multipart_message_is_discarded_without_affecting_the_next():
    with Side(SERVER, ANY) as server:
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.ROUTING_ID, ROUTE)
        dealer.setsockopt(zmq.PLAIN_USERNAME, b"n")
        dealer.setsockopt(zmq.PLAIN_PASSWORD, b"open")
        dealer.connect(server.sockets.endpoint)
        dealer.send_multipart([b"a", b"\x01" + b"v" * 16, b"forged"])
        dealer.send(b"single")
        until(lambda: server.of(Arrived), server)
        context.destroy(0)
        assert server.of(Arrived) == [Arrived(ROUTE, b"single")]
        assert server.sockets.counts["link_multipart_discarded"] == 1


def test_hang_up_reports_nothing_and_is_final():
    with Side(SERVER, ANY) as server, Side(CALLER) as caller:
        caller.dial(1, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)
        caller.sockets.perform(Send(1, b"last"))
        caller.sockets.perform(HangUp(1))
        caller.dial(1, server.sockets.endpoint)
        until(lambda: len(caller.of(Connected)) == 2, server, caller)
        assert caller.of(Disconnected) == []


def test_busy_pair_of_sockets_never_stalls():
    """Ping-pong in which each side writes and reads between waits: a swallowed signal would show as a time-out."""
    with Side(SERVER, ANY) as server, Side(CALLER) as caller:
        caller.dial(1, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)
        stop = threading.Event()

        def echo() -> None:
            while not stop.is_set():
                for event in server.sockets.wait(50_000_000):
                    if isinstance(event, Arrived):
                        server.sockets.perform(Send(event.channel, event.frame))

        thread = threading.Thread(target=echo)
        thread.start()
        try:
            back = 0
            for _ in range(50):
                caller.sockets.perform(Send(1, b"ping"))
            while back < 20_000:
                asked_ns = time.monotonic_ns()
                inputs = caller.sockets.wait(10_000_000_000)
                assert time.monotonic_ns() < asked_ns + 9_000_000_000, "no news although frames are on the way"
                for event in inputs:
                    if isinstance(event, Arrived):
                        back += 1
                        caller.sockets.perform(Send(1, event.frame))
        finally:
            stop.set()
            thread.join()


def test_wake_ends_a_wait_from_another_thread():
    with Side(CALLER) as caller:
        threading.Timer(0.01, caller.sockets.wake).start()
        assert caller.sockets.wait(60_000_000_000) == []


def test_taken_port_is_reported_in_one_sentence():
    with (
        Side(SERVER, ANY) as server,
        pytest.raises(ConfigError, match=r"cannot listen at tcp.*Address already in use; choose another"),
    ):
        Sockets(CALLER, server.sockets.endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1", "udp://127.0.0.1:1", "tcp://:5", "tcp://h:70000", "x"])
def test_invalid_bind_endpoint_is_reported_in_one_sentence(endpoint):
    with pytest.raises(ConfigError, match=r"endpoint|port"):
        Sockets(CALLER, endpoint)


def test_ipv6_endpoint_can_be_bound():
    try:
        server = Side(SERVER, "tcp://[::1]:*")
    except ConfigError as error:
        assert "cannot listen at tcp://[::1]" in str(error)  # noqa: PT017  a machine without IPv6
        return
    with server, Side(CALLER) as caller:
        caller.dial(1, server.sockets.endpoint)
        until(lambda: caller.of(Connected), server, caller)


def test_frames_before_a_lost_connection_reach_a_slow_reader():
    """ZeroMQ looks at its commands with every hundredth message: a lost connection must not take the rest along."""
    count, slowly = 230, 199
    with Side(b"d" * 16) as dialler:
        server = Side(b"s" * 16, "tcp://127.0.0.1:*")
        dialler.dial(1, server.sockets.endpoint)
        until(lambda: dialler.of(Connected), dialler, server)
        dialler.sockets.perform(Send(1, b"hello"))
        until(lambda: server.of(Arrived), dialler, server)
        [hello] = server.of(Arrived)
        for number in range(count):
            server.sockets.perform(Send(hello.channel, b"%d" % number))
        until(lambda: server.sockets.queued_bytes == 0, server)
        server.sockets.close(20_000)
        dealer = dialler.sockets._connections[1].dealer
        read = []
        for _ in range(slowly):
            time.sleep(0.001)
            read.append(dealer.recv())
        until(lambda: dialler.of(Disconnected), dialler)
        read += [event.frame for event in dialler.of(Arrived)]
        assert read == [b"%d" % number for number in range(count)]
