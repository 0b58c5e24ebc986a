"""`Client` over real sockets, against nodes just big enough to answer it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from random import Random

import pytest

from chaplain import Client, Member, PoolMessage
from chaplain.errors import Closed, ConfigError, Misused, Refused, Unknown, Unreachable
from chaplain.link.auth.identity import Identity
from tests.support.client_threads import client_threads


def eventually(holds: Callable[[], bool], limit_s: float = 60) -> None:
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, "it did not come about in time"
        time.sleep(0.005)


def test_sync_client_returns_the_answer_of_every_call(cluster) -> None:
    with Client.connect(**cluster.how) as client:
        assert 0 < client.ping() < 10
        assert client.status() == {"state": "WRK"}
        [member] = client.members()
        assert member == Member(1, "tcp://x:1", "alive", 3)
        assert member["state"] == "alive"
        answer = client.ask("version")
        assert (answer.value, answer.votes, answer.decided, answer.voters) == ("1", 1, True, (1,))
        assert dict(answer)["question"] == "version"
        assert client.rotate_keys() == {"rotated": True}
        client.fire("deployed", b"v2")


def test_refusal_of_the_node_is_raised_with_its_reason(cluster) -> None:
    with Client.connect(**cluster.how) as client, pytest.raises(Refused, match="no such luck"):
        client.fire("bad")


def test_acknowledged_event_and_member_events_arrive_in_order(cluster) -> None:
    with Client.connect(**cluster.how) as client, client.events(timeout=60, members=True) as heard:
        seen = client.fire("deployed", b"v2", acknowledge=True, timeout=2)
        assert dict(seen) == {"acknowledged": (1,), "missing": (2,)}
        news, event = next(heard), next(heard)
        assert (news.kind, news.node, news.pool) == ("join", 2, "chat")
        assert (event.kind, event.content) == ("event", b"v2")


def test_listener_receives_events_from_its_call_on(cluster) -> None:
    with Client.connect(**cluster.how) as client, client.events(timeout=60) as events:
        client.fire("deployed", b"v2")
        event = next(events)
        assert (event.type, event.content) == ("deployed", b"v2")


def test_pool_buffers_messages_from_join_until_leave(cluster) -> None:
    with Client.connect(**cluster.how) as client:
        pool = client.pool("chat")
        assert client.pool("chat") is pool
        pool.join()
        pool.broadcast(b"one")
        pool.broadcast(b"two")
        assert [message.value for message in islice(pool.listen(timeout=60), 2)] == [b"one", b"two"]
        assert list(pool.listen(timeout=0.1)) == []
        pool.broadcast(b"three")
        assert next(iter(pool.listen(timeout=60))) == PoolMessage("chat", b"three", 1, "alice")
        pool.leave()
        pool.broadcast(b"four")
        assert list(pool.listen(timeout=0.1)) == []


def test_question_is_offered_to_the_program_and_answered(cluster) -> None:
    with Client.connect(**cluster.how) as client, client.questions("load", timeout=60) as questions:
        question = next(questions)
        assert (question.question, question.content, question.asker) == ("load", b"how?", 2)
        client.reply(question, b"0.5")


def test_collected_listener_is_cancelled_at_the_node(cluster) -> None:
    with Client.connect(**cluster.how) as client:
        listener = client.events()
        node = cluster.serving()
        del listener
        gc.collect()
        eventually(lambda: type(node.requests[-1]).__name__ == "Cancel")


def test_large_message_arrives_complete(cluster) -> None:
    value = os.urandom(3_000_000)
    with Client.connect(**cluster.how) as client:
        client.pool("chat").join()
        client.pool("chat").broadcast(value)
        assert next(client.pool("chat").listen(timeout=60)).value == value


def test_many_threads_share_one_client(cluster) -> None:
    with Client.connect(**cluster.how) as client:
        seen: list[dict[str, object]] = []
        threads = [threading.Thread(target=lambda: seen.extend(client.status() for _ in range(50))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert seen == [{"state": "WRK"}] * 400


def test_client_survives_the_death_of_its_node(cluster) -> None:
    with Client.connect(**cluster.how) as client:
        client.pool("chat").join()
        first = cluster.serving()
        first.kill()
        assert client.status() == {"state": "WRK"}
        eventually(lambda: any(type(request).__name__ == "JoinAPool" for request in _others(cluster, first)))
        client.pool("chat").broadcast(b"after")
        message = next(client.pool("chat").listen(timeout=60))
        assert (message.value, message.moved) == (b"after", True)


def test_call_with_effect_whose_answer_is_lost_raises_unknown(cluster) -> None:
    with Client.connect(**cluster.how) as client:
        client.status()
        node = cluster.serving()
        node.mute = True
        caught: list[BaseException] = []

        def fire() -> None:
            try:
                client.fire("deployed")
            except Unknown as error:
                caught.append(error)

        heard = node.commands
        thread = threading.Thread(target=fire)
        thread.start()
        eventually(lambda: node.commands > heard)
        node.kill()
        thread.join(60)
        assert len(caught) == 1
        assert "may or may not have happened" in str(caught[0])


def _others(cluster, node) -> list[object]:
    return [request for other in cluster.nodes if other is not node for request in list(other.requests)]


def test_unreachable_endpoints_fail_in_time_and_are_named() -> None:
    me = Identity.generate(Random(1))
    started_s = time.monotonic()
    with pytest.raises(Unreachable, match=r"tcp://127\.0\.0\.1:9: nobody answers.*check that the cluster is up"):
        Client.connect(endpoints=["tcp://127.0.0.1:9"], identity=me, node_keys=[me.key], timeout=0.5)
    assert time.monotonic() - started_s < 60
    assert not client_threads()


def test_wrong_node_key_is_refused_with_the_endpoint(cluster) -> None:
    stranger = Identity.generate(Random(99))
    with pytest.raises(Refused, match=f"{cluster.nodes[0].endpoint}: refused, key not pinned"):
        Client.connect(**(cluster.how | {"node_keys": [stranger.key]}))


def test_unregistered_client_is_refused(cluster) -> None:
    stranger = Identity.generate(Random(99))
    with pytest.raises(Refused, match=f"{cluster.nodes[0].endpoint}: refused"):
        Client.connect(**(cluster.how | {"identity": stranger}))


def test_other_cluster_is_refused_by_name(cluster) -> None:
    with pytest.raises(Refused, match=r"other cluster.*elsewhere"):
        Client.connect(**cluster.how, name="elsewhere")


def test_silent_node_times_out_with_its_endpoint(cluster) -> None:
    with Client.connect(**cluster.how, timeout=3) as client:
        client.status()
        cluster.serving().mute = True
        with pytest.raises(Unreachable, match=r"status: tcp://.* gave no answer within 3 s"):
            client.status()


def test_closed_client_raises_closed(cluster) -> None:
    client = Client.connect(**cluster.how)
    listener = client.events()
    client.close()
    client.close()
    with pytest.raises(Closed, match="connect again"):
        client.status()
    with pytest.raises(Closed):
        next(listener)
    assert not client_threads()


def test_collected_client_warns_and_closes(cluster) -> None:
    client = Client.connect(**cluster.how)
    with pytest.warns(ResourceWarning, match="not closed"):
        del client
    eventually(lambda: not client_threads())


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda client: client.fire("two words"), "visible ASCII"),
        (lambda client: client.fire("x", bytes(9_000_000)), "send it in parts"),
        (lambda client: client.pool(""), "visible ASCII"),
        (lambda client: client.ask("x", timeout=0), "a timeout is"),
        (lambda client: client.ask("é"), "visible ASCII"),
    ],
)
def test_wrong_arguments_raise_before_anything_is_sent(cluster, act, says) -> None:
    with Client.connect(**cluster.how) as client:
        with pytest.raises(ValueError, match=says):
            act(client)
        with pytest.raises(TypeError, match="encode text"):
            client.fire("x", "text")  # type: ignore[arg-type]
    assert all(not node.requests for node in cluster.nodes)


def test_wrong_endpoints_and_keys_raise_config_errors(cluster) -> None:
    with pytest.raises(ConfigError, match="tcp://address:port"):
        Client.connect(**(cluster.how | {"endpoints": ["localhost"]}))
    with pytest.raises(ConfigError, match="node's key"):
        Client.connect(**(cluster.how | {"node_keys": [b"short"]}))
    with pytest.raises(ConfigError, match="identity file"):
        Client.connect(**(cluster.how | {"identity": "/nowhere/at/all"}))


def test_no_repr_contains_a_secret(cluster) -> None:
    secret = cluster.identity.text().split()[4]
    with Client.connect(**cluster.how) as client:
        shown = " ".join(repr(thing) for thing in (client, client._context, client._context.engine, client.pool("x")))
    assert secret not in shown


def test_identity_text_given_as_path_is_not_shown(cluster) -> None:
    text = cluster.identity.text()
    with pytest.raises(ConfigError, match="path of an identity file") as raised:
        Client.connect(**{**cluster.how, "identity": text})
    assert text.split()[4] not in str(raised.value)


def test_connection_objects_cannot_be_pickled_or_copied(cluster) -> None:
    """A copy would close the client when it is collected."""
    with Client.connect(**cluster.how) as client:
        for thing in (client, client.events(), client.journal("s").writer()):
            for share in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(Misused, match="connect there"):
                    share(thing)
        for thing in (client.journal("s"), client.pool("p"), client.sql(), client.graph("g"), client.sequence("n")):
            with pytest.raises(Misused, match="connect there"):
                pickle.dumps(thing)
        assert client.status()["state"] == "WRK"


_CHILD = """
import os, signal, sys, threading
from chaplain import Client
from chaplain.errors import Closed
client = Client.connect(endpoints={endpoints!r}, identity={identity!r}, node_keys={keys!r})
events = client.events()
inside, forked = threading.Event(), threading.Event()

def be_in_the_middle_of_something():
    with client._context.registry._lock:
        inside.set()
        forked.wait()

threading.Thread(target=be_in_the_middle_of_something).start()
inside.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    for use in (client.status, client.pool("x").join, lambda: next(events), client.journal("s").writer):
        try:
            use()
        except Closed as error:
            os.write(1, str(error).encode())
    events.close()
    client.close()
    with Client.connect(endpoints={endpoints!r}, identity={identity!r}, node_keys={keys!r}) as fresh:
        os.write(1, fresh.status()["state"].encode())
    sys.exit(0)
forked.set()
assert os.waitpid(pid, 0)[1] == 0
os.write(1, client.status()["state"].encode())
"""


def test_fork_and_exit_without_close_are_clean(cluster, tmp_path) -> None:
    identity = tmp_path / "identity"
    identity.write_text(cluster.identity.text())
    how = cluster.how
    program = _CHILD.format(endpoints=how["endpoints"], identity=str(identity), keys=how["node_keys"])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("connect again in this one") == 4
    assert done.stdout.endswith("WRKWRK")
