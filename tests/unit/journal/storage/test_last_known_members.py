"""The file of last known members: when it is written, and how it is used while the log is older."""

from __future__ import annotations

from chaplain.core import Persist, Replace
from chaplain.journal.consensus.events import PeerDown, PeerUp
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.cluster_config import ClusterConfig, MemberRoles, initial_config
from chaplain.journal.peers import PeerTable
from chaplain.journal.storage.last_known_members import (
    LAST_KNOWN_MEMBERS_FILE,
    LastKnownMembers,
    LastKnownMembersStore,
    last_known_members,
    read_last_known_members,
)
from chaplain.link.events import Peer


def key(node: int) -> bytes:
    return bytes((node,)) * 32


def placed(node: int, stage: Stage = Stage.LIVE) -> MemberRoles:
    return MemberRoles(node, key(node), f"tcp://127.0.0.1:{node}", bytes(16), stage, stage, stage)


def peer(node: int) -> Peer:
    return Peer(bytes((node,)) * 16, node, key(node))


FOUNDED = initial_config(map(placed, (1, 2, 3)))
REPLACED = ClusterConfig((*(placed(node, Stage.NONE) for node in (1, 2, 3)), *map(placed, (4, 5, 6))), (4, 5, 6))


def test_last_known_members_are_written_on_change_and_never_replaced_by_older_ones() -> None:
    keeper = LastKnownMembersStore(None, FOUNDED)
    assert keeper.update(FOUNDED, 7) is None, "an empty log says as much"
    written = keeper.update(REPLACED, 40)
    assert isinstance(written, Persist)
    [operation] = written.operations
    assert isinstance(operation, Replace)
    assert operation.file == LAST_KNOWN_MEMBERS_FILE
    found = read_last_known_members(operation.data)
    assert found == LastKnownMembers(40, ((4, 5, 6),), {node: key(node).hex() for node in (4, 5, 6)})
    again = LastKnownMembersStore(found, FOUNDED)
    assert again.update(FOUNDED, 7) is None, "a log that begins anew knows less"
    assert again.update(REPLACED, 41) is None
    assert again.update(FOUNDED, 42) is not None


def test_malformed_last_known_members_count_as_absent() -> None:
    for data in (None, b"", b"{}", b"[1]", b'{"index":1,"sets":[[1]],"keys":{"1":"no hex"}}'):
        assert read_last_known_members(data) is None


def test_last_known_members_count_until_the_log_contains_them() -> None:
    nodes = PeerTable(FOUNDED, last_known_members(REPLACED, 40).nodes)
    assert nodes.entered(peer(4)) == [PeerUp(4)]
    assert (nodes.member_of(peer(4)), nodes.instance(4)) == (4, peer(4).instance)
    assert nodes.entered(peer(7)) == [], "a stranger is one"
    assert nodes.config_changed(REPLACED) == [], "it was up, and is"
    gone = ClusterConfig((*REPLACED.nodes[:3], placed(4, Stage.NONE), *REPLACED.nodes[4:]), (5, 6))
    assert nodes.config_changed(gone) == [PeerDown(4)]
    assert nodes.member_of(peer(4)) == 0


def test_last_known_members_that_the_log_contradicts_are_not_asked() -> None:
    nodes = PeerTable(REPLACED, {key(1): 1, key(9): 4})
    assert nodes.entered(peer(1)) == [], "it was removed"
    assert nodes.entered(peer(9)) == [], "node 4 has another key"
