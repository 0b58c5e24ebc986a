"""What waits for clients that do not read: bounded for one key, whatever the number of its sessions, and for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from link_stage import Actor, Stage

from chaplain.core import Disconnected
from chaplain.link.client_queues import FLOOR_BYTES, ClientQueues
from chaplain.link.events import Register
from chaplain.link.settings import LinkSettings

KIB = 1024
COMMAND = b"x" * (40 * KIB)


def stalled(*keys: str, sessions: int, **settings: int) -> tuple[Stage, Actor, list[Actor]]:
    """A node and clients, so many sessions of each key, which are sent 1 MiB each and read nothing."""
    stage = Stage()
    node = stage.node("node", **settings)
    pinned = frozenset({node.core.identity.key})
    firsts = [stage.client(key, pinned) for key in keys]
    node.step(Register({first.core.identity.key: first.name for first in firsts}))
    clients = [
        stage.client(f"{first.name} {number}", pinned, identity=first.core.identity)
        for first in firsts
        for number in range(sessions)
    ]
    for client in clients:
        client.meet(node)
        stage.settle()
    for client in clients:
        for _ in range(1024 * KIB // len(COMMAND)):
            node.say(client, COMMAND)
    return stage, node, clients


def queued(node: Actor) -> int:
    return sum(line.queued_bytes for line in node.core._book.lines.values())


def test_sessions_of_one_key_share_one_budget() -> None:
    _, node, clients = stalled("ann", sessions=8, identity_queue_bytes_max=2 << 20)
    assert queued(node) <= (2 << 20) + len(clients) * FLOOR_BYTES
    assert {drop.reason for drop in node.dropped} == {"too much waits for this client"}


def test_a_key_that_reads_nothing_leaves_its_part_to_another_key() -> None:
    budget = 4 << 20
    stage, node, _ = stalled("ann", sessions=8, clients_queue_bytes_max=budget, identity_queue_bytes_max=budget)
    bob = stage.client("bob", frozenset({node.core.identity.key}))
    known = {line.key: line.session.peer.client for line in node.core._book.lines.values() if line.session}
    node.step(Register({**known, bob.core.identity.key: "bob"}))
    bob.meet(node)
    node_log = len(node.dropped)
    stage.settle()
    for _ in range(1024 * KIB // len(COMMAND)):
        node.say(bob, COMMAND)
    assert len(node.dropped) == node_log


def test_what_waited_for_a_session_that_ended_is_given_back() -> None:
    _, node, clients = stalled("ann", sessions=4, identity_queue_bytes_max=2 << 20)
    queues = node.core._book.client_queues
    assert queues.total_bytes == queued(node) > 1 << 20
    for client in clients:
        for channel in [line for line in node.core._book.lines if isinstance(line, bytes)]:
            if node.core._book.lines[channel].session is not None and client.core.route in channel:
                node.step(Disconnected(channel, "gone"))
    assert queues.total_bytes == queued(node) == 0


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 90_000)), max_size=60))
def test_the_bytes_of_all_keys_stay_bounded(wanted: list[tuple[bytes, int]]) -> None:
    most = 1 << 20
    settings = LinkSettings("c", identity_queue_bytes_max=most // 2, clients_queue_bytes_max=most)
    queues = ClientQueues(settings)
    waiting = {b"a": 0, b"b": 0, b"c": 0}
    for key, size in wanted:
        if queues.has_room(key, FLOOR_BYTES, size):
            queues.add(key, size)
            waiting[key] += size
        assert waiting[key] <= most // 2
        assert queues.total_bytes == sum(waiting.values()) <= 2 * most
