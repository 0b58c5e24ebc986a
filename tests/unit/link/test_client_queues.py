"""What waits for clients that do not read: bounded for one key, whatever the number of its sessions, and for all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaplain.core import Disconnected
from chaplain.link.events import Register
from chaplain.link.sessions.client_queues import FLOOR_BYTES, ClientQueues
from chaplain.link.settings import LinkSettings
from tests.support.link_stage import Actor, Stage

KIB = 1024
COMMAND = b"x" * (40 * KIB)


def connected(*keys: str, sessions: int, **settings: int) -> tuple[Actor, list[list[Actor]]]:
    """A node, and so many sessions of each key with it."""
    stage = Stage()
    node = stage.node("node", **settings)
    pinned = frozenset({node.core.identity.key})
    clients = []
    for key in keys:
        first = stage.client(key, pinned)
        again = [stage.client(f"{key} {number}", pinned, first.core.identity) for number in range(sessions - 1)]
        clients.append([first, *again])
    node.step(Register({of_key[0].core.identity.key: of_key[0].name for of_key in clients}))
    for of_key in clients:
        for client in of_key:
            client.meet(node)
            stage.settle()
    return node, clients


def send(node: Actor, clients: list[Actor]) -> None:
    """1 MiB to each, which reads nothing."""
    for client in clients:
        for _ in range(1024 * KIB // len(COMMAND)):
            node.say(client, COMMAND)


def queued(node: Actor) -> int:
    return sum(outgoing.queued_bytes for outgoing in node.core._tables.outgoing_channels.values())


def test_sessions_of_one_key_share_one_budget() -> None:
    node, (ann,) = connected("ann", sessions=8, identity_queue_bytes_max=2 << 20)
    send(node, ann)
    assert queued(node) <= (2 << 20) + len(ann) * FLOOR_BYTES
    assert {drop.reason for drop in node.dropped} == {"too much waits for this client"}


def test_key_that_reads_nothing_leaves_the_share_of_another_key() -> None:
    node, (ann, bob) = connected("ann", "bob", sessions=8, clients_queue_bytes_max=4 << 20)
    send(node, ann)
    assert queued(node) > 4 << 20 or node.dropped
    before = len(node.dropped)
    send(node, bob[:1])
    assert len(node.dropped) == before


def test_queued_bytes_of_an_ended_session_are_released() -> None:
    node, (ann,) = connected("ann", sessions=4, identity_queue_bytes_max=2 << 20)
    send(node, ann)
    tables = node.core._tables
    assert tables.client_queues.total_bytes == queued(node) > 1 << 20
    for channel in list(tables.outgoing_channels):
        node.step(Disconnected(channel, "gone"))
    assert tables.client_queues.total_bytes == queued(node) == 0


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(1, 90_000)), max_size=60))
def test_queued_bytes_of_all_keys_are_bounded(wanted: list[tuple[bytes, int]]) -> None:
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
