"""A client that outlasts the nodes it was given: it is told who belongs to the cluster, and who was removed."""

from __future__ import annotations

from random import Random

import pytest

from chaplain.client.protocol.endpoints import Endpoints
from chaplain.client.protocol.events import Settings
from chaplain.client_service.messages import Done, GetStatus
from chaplain.config import NODE_IDS_MAX
from chaplain.errors import Malformed
from chaplain.journal.messages import client
from chaplain.journal.messages.client import MembersAre, NodeAddress
from chaplain.wire import command, parcel
from chaplain.wire.command import Alive
from chaplain.wire.parcel import Layer, Parcel
from tests.unit.client.client_stage import PlainNode, Stage, key_of, up


def name(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


def place(port: int) -> NodeAddress:
    return NodeAddress(key_of(name(port).encode()), name(port))


def word(members: tuple[int, ...], gone: tuple[int, ...] = ()) -> MembersAre:
    return MembersAre(tuple(map(place, members)), tuple(map(place, gone)))


def tell(stage: Stage, node: PlainNode, members: MembersAre) -> None:
    content = parcel.encode(Parcel(1, Layer.JOURNAL, client.encode(members)))
    stage.frame(node, command.encode(Alive(2, content)))


def grown(count: int = 3, more: int = 3) -> Stage:
    """A client that has met the founders, and believes them alone; further nodes are there."""
    stage = up(count)
    stage.link.pinned = frozenset(key_of(node.instance) for node in stage.nodes.values())
    for port in range(count + 1, count + more + 1):
        stage.nodes[name(port)] = PlainNode(name(port))
    return stage


def met(stage: Stage) -> set[str]:
    return {session.endpoint for session in stage.core._connections.sessions.values()}


def test_calls_are_answered_while_all_founders_are_replaced() -> None:
    stage = grown()
    members, gone = (1, 2, 3), ()
    for call, newcomer in enumerate((4, 5, 6), 1):
        members = (*members, newcomer)
        tell(stage, stage.serving(), word(members, gone))
        leaver, members = members[0], members[1:]
        gone = (*gone, leaver)
        tell(stage, stage.serving(), word(members, gone))
        stage.kill(stage.nodes[name(leaver)])
        stage.run(1)
        assert met(stage) == set(map(name, members))
        stage.call(GetStatus(call))
        stage.reply(stage.serving(), Done(call))
        assert stage.of(call), "it was answered by one that is there"
    dialled = len(stage.dialled)
    stage.kill(stage.serving())
    stage.run(60)
    assert not {*stage.dialled[dialled:]} & {name(1), name(2), name(3)}, "who is gone is not looked for"


def test_removed_node_is_left_and_not_trusted_again() -> None:
    stage = grown(more=0)
    stage.call(GetStatus(1), timeout_s=60)
    first = stage.serving()
    other = next(node for node in stage.nodes.values() if node is not first)
    port = int(first.endpoint.rpartition(":")[2])
    tell(stage, other, word(tuple({1, 2, 3} - {port}), (port,)))
    assert stage.serving().requests == [(GetStatus(1), b"")], "what it was asked is asked another"
    assert first.endpoint not in met(stage)
    assert key_of(first.instance) not in stage.link.pinned
    tell(stage, other, word((1, 2, 3)))
    stage.run(60)
    assert first.endpoint not in met(stage), "one that is behind does not bring it back"


def test_configured_endpoints_are_kept_while_they_serve() -> None:
    stage = grown()
    before = list(stage.dialled)
    tell(stage, stage.serving(), word((1, 2, 3, 4, 5, 6)))
    stage.run(60)
    assert stage.dialled == before
    mine = stage.serving()
    stage.kill(mine)
    stage.run(1)
    assert len(met(stage)) == 3
    mine.up = True
    stage.run(5)
    assert mine.endpoint in met(stage), "it may be there for us alone"


def test_node_that_replaced_another_at_its_address_is_used() -> None:
    stage = grown(more=0)
    moved = NodeAddress(key_of(b"seven"), name(1))
    serving = stage.nodes[name(2)]
    tell(stage, serving, MembersAre((moved, place(2), place(3)), (place(1),)))
    assert name(1) not in met(stage)
    stage.nodes[name(1)].instance = b"seven"
    stage.run(5)
    assert met(stage) == {name(1), name(2), name(3)}


def test_one_endpoint_is_enough_to_find_all_members() -> None:
    stage = grown(1, 2)
    tell(stage, stage.serving(), word((1, 2, 3)))
    assert met(stage) == {name(1), name(2), name(3)}


def test_client_of_a_chosen_node_ignores_the_member_list() -> None:
    stage = grown(1, 2)
    stage.core._learns_members = False
    tell(stage, stage.serving(), word((2, 3), (1,)))
    stage.run(5)
    assert met(stage) == {name(1)}


def test_node_known_by_two_addresses_has_one_session() -> None:
    stage = grown(2, 0)
    tell(stage, stage.serving(), MembersAre((NodeAddress(place(1).key, name(7)), place(2)), ()))
    stage.run(5)
    assert met(stage) == {name(1), name(2)}
    assert name(7) not in stage.dialled
    stage.nodes[name(7)] = PlainNode(name(7))
    stage.nodes[name(7)].instance = stage.nodes[name(1)].instance
    stage.kill(stage.nodes[name(1)])
    stage.run(5)
    assert met(stage) == {name(7), name(2)}


def test_member_list_that_would_leave_no_node_is_ignored() -> None:
    stage = grown(more=0)
    tell(stage, stage.serving(), word((), (1, 2, 3)))
    stage.run(5)
    assert met(stage) == {name(1), name(2), name(3)}


def test_members_and_removed_keys_remembered_by_a_client_are_bounded() -> None:
    endpoints = Endpoints([name(1)], Settings(), Random(1))
    for start in range(2, 2000, 200):
        endpoints.update_members(word(tuple(range(start, start + 100)), tuple(range(start + 100, start + 200))))
    assert len(endpoints.keys) < NODE_IDS_MAX
    assert len(endpoints.removed_keys) <= NODE_IDS_MAX


@pytest.mark.parametrize(
    "wrong",
    [
        word(tuple(range(1, NODE_IDS_MAX + 2))),
        MembersAre((NodeAddress(b"short", name(1)),), ()),
        MembersAre((), (NodeAddress(key_of(b""), "nowhere"),)),
    ],
)
def test_malformed_member_list_is_reported(wrong: MembersAre) -> None:
    with pytest.raises(Malformed):
        client.decode_node(client.encode(wrong))
    stage = grown(more=0)
    tell(stage, stage.serving(), wrong)
    assert [report.event for report in stage.reports] == ["malformed"]
