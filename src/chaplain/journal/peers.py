"""The other nodes as one journal reaches them: whose key is which node, and the session each is reached by.

Decides who somebody is: a member by its key, as the assembly has it; a stranger, who may become a member; or one that
was removed; and where members are, so that gossip meets them, and clients. Refuses to know what they say.

Invariant: a node is up while its latest session stands and it is a member, and everybody hears of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from chaplain.gossip.events import Assembled
from chaplain.journal.consensus.events import PeerDown, PeerUp
from chaplain.journal.messages.client import MembersAre, NodeAddress
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.cluster_config import ClusterConfig, MemberRoles
from chaplain.link.auth.identity import identifier_of
from chaplain.link.events import Peer
from chaplain.link.settings import is_endpoint

News: TypeAlias = PeerUp | PeerDown


class PeerTable:
    def __init__(self, assembly: ClusterConfig, guides: Mapping[bytes, int] = MappingProxyType({})) -> None:
        """`guides` are members of whom the assembly does not know yet: by the roster, their keys and ids."""
        self._guides = guides
        self._members: dict[bytes, int] = {}
        self._gone: dict[bytes, int] = {}
        self._sessions: dict[bytes, Peer] = {}
        """The latest session of every key that is connected, member or not."""
        self._ways: dict[int, bytes] = {}
        self._dismissed_by: set[int] = set()
        """Members that say that we were removed."""
        self.assembled(assembly)

    def assembled(self, assembly: ClusterConfig) -> list[News]:
        """The assembly changed: strangers may be members now, and members gone."""
        before = self._members
        self._members = self._unplaced(assembly) | {
            one.key: one.node for one in assembly.nodes if assembly.is_member(one)
        }
        self._gone = {one.key: one.node for one in assembly.nodes if not assembly.is_member(one)}
        left = [key for key in self._sessions if key in before and key in self._gone]
        come = [key for key in self._sessions if key in self._members and key not in before]
        self._find_ways()
        return [*(PeerDown(before[key]) for key in left), *(PeerUp(self._members[key]) for key in come)]

    def _unplaced(self, assembly: ClusterConfig) -> dict[bytes, int]:
        """Guides of whom nothing is known that contradicts them."""
        known = {known for one in assembly.nodes for known in (one.key, one.node)}
        return {key: node for key, node in self._guides.items() if not known & {key, node}}

    def _find_ways(self) -> None:
        """Also to those that are gone: the message that removed a node is the last it is told."""
        known = {**self._gone, **self._members}
        self._ways = {known[key]: peer.instance for key, peer in self._sessions.items() if key in known}

    def entered(self, peer: Peer) -> list[News]:
        """A session came up; one that it replaces is over."""
        replaced = peer.key in self._sessions
        self._sessions[peer.key] = peer
        self._find_ways()
        node = self._members.get(peer.key, 0)
        if not node:
            return []
        return [PeerDown(node), PeerUp(node)] if replaced else [PeerUp(node)]

    def exited(self, peer: Peer) -> list[News]:
        known = self._sessions.get(peer.key)
        if known is None or known.instance != peer.instance:
            return []
        del self._sessions[peer.key]
        self._find_ways()
        return [PeerDown(self._members[peer.key])] if peer.key in self._members else []

    def speaker(self, peer: Peer) -> int:
        """The member that speaks on this session; 0 if it is none, or the session is not its latest."""
        known = self._sessions.get(peer.key)
        return self._members.get(peer.key, 0) if known is not None and known.instance == peer.instance else 0

    @property
    def gone(self) -> frozenset[bytes]:
        """Keys of all that were removed."""
        return frozenset(self._gone)

    def is_gone(self, peer: Peer) -> bool:
        return peer.key in self._gone

    def believes_removal(self, node: int, own: int) -> bool:
        """A member says that we were removed: believed once more than half of the others do, for one may lie."""
        self._dismissed_by.add(node)
        others = {other for other in self._members.values() if other != own}
        return 2 * len(self._dismissed_by & others) > len(others)

    def instance(self, node: int) -> bytes | None:
        return self._ways.get(node)


def whereabouts(assembly: ClusterConfig, own: int) -> Assembled:
    """Where the other members are, as they were placed. One that was removed may have left its place to another."""
    members = [one for one in assembly.nodes if assembly.is_member(one)]
    taken = {one.uri for one in members}
    others = {identifier_of(one.key): one.uri for one in members if one.node != own and is_endpoint(one.uri)}
    return Assembled(others, tuple(one.uri for one in assembly.nodes if one.uri not in taken))


def members_of(assembly: ClusterConfig) -> MembersAre:
    """What clients are told. One without a live role that is of use to them is in neither list."""
    members = (one for one in assembly.nodes if Stage.LIVE in (one.ingest, one.executor))
    gone = (one for one in assembly.nodes if not assembly.is_member(one))
    return MembersAre(_places(members), _places(gone))


def _places(nodes: Iterable[MemberRoles]) -> tuple[NodeAddress, ...]:
    return tuple(NodeAddress(one.key, one.uri) for one in nodes if is_endpoint(one.uri))
