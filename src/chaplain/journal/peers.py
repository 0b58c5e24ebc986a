"""Peer table: the node of each key, and the session of that node.

Decides whether a peer is a member, by its key in the cluster configuration; a stranger, which may become a member; or a
removed node. Provides the members' endpoints to gossip and to clients. Does not know the messages of peers.

Invariant: a node is up while it is a member and its latest session is open. The table reports every change of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from chaplain.gossip.events import MembersConfigured
from chaplain.journal.consensus.events import PeerDown, PeerUp
from chaplain.journal.messages.client import MembersAre, NodeAddress
from chaplain.journal.messages.membership import Stage
from chaplain.journal.model.cluster_config import ClusterConfig, MemberRoles
from chaplain.link.auth.identity import identifier_of
from chaplain.link.endpoint import is_endpoint
from chaplain.link.events import Peer

PeerChange: TypeAlias = PeerUp | PeerDown


class PeerTable:
    """Sessions and member nodes by public key."""

    def __init__(self, config: ClusterConfig, last_known: Mapping[bytes, int] = MappingProxyType({})) -> None:
        """`last_known` are keys and ids of members from the last-known-members file, which may be ahead of the
        configuration.
        """
        self._last_known = last_known
        self._members: dict[bytes, int] = {}
        """Node ids of members by key."""
        self._removed: dict[bytes, int] = {}
        """Node ids of removed nodes by key."""
        self._sessions: dict[bytes, Peer] = {}
        """The latest session of every connected key, member or not."""
        self._instances: dict[int, bytes] = {}
        """Session instances by node id."""
        self._removal_claims: set[int] = set()
        """Members that report that this node was removed."""
        self.config_changed(config)

    def config_changed(self, config: ClusterConfig) -> list[PeerChange]:
        """The configuration changed: strangers may be members now, and members may be removed."""
        before = self._members
        self._members = self._not_in_config(config) | {
            one.key: one.node for one in config.nodes if config.is_member(one)
        }
        self._removed = {one.key: one.node for one in config.nodes if not config.is_member(one)}
        left = [key for key in self._sessions if key in before and key in self._removed]
        joined = [key for key in self._sessions if key in self._members and key not in before]
        self._update_instances()
        return [*(PeerDown(before[key]) for key in left), *(PeerUp(self._members[key]) for key in joined)]

    def _not_in_config(self, config: ClusterConfig) -> dict[bytes, int]:
        """Last known members of which neither the key nor the id is in the configuration."""
        known = {known for one in config.nodes for known in (one.key, one.node)}
        return {key: node for key, node in self._last_known.items() if not known & {key, node}}

    def _update_instances(self) -> None:
        """Removed nodes keep their entry, because this node still sends them the mark that confirms their removal."""
        known = {**self._removed, **self._members}
        self._instances = {known[key]: peer.instance for key, peer in self._sessions.items() if key in known}

    def entered(self, peer: Peer) -> list[PeerChange]:
        """A session opened. It replaces an earlier one of the same key."""
        replaced = peer.key in self._sessions
        self._sessions[peer.key] = peer
        self._update_instances()
        node = self._members.get(peer.key, 0)
        if not node:
            return []
        return [PeerDown(node), PeerUp(node)] if replaced else [PeerUp(node)]

    def exited(self, peer: Peer) -> list[PeerChange]:
        """A session closed."""
        known = self._sessions.get(peer.key)
        if known is None or known.instance != peer.instance:
            return []
        del self._sessions[peer.key]
        self._update_instances()
        return [PeerDown(self._members[peer.key])] if peer.key in self._members else []

    def member_of(self, peer: Peer) -> int:
        """The member that uses this session; 0 if there is none, or the session is not its latest."""
        known = self._sessions.get(peer.key)
        return self._members.get(peer.key, 0) if known is not None and known.instance == peer.instance else 0

    @property
    def removed_keys(self) -> frozenset[bytes]:
        """Keys of all removed nodes."""
        return frozenset(self._removed)

    def is_removed(self, peer: Peer) -> bool:
        """True if the peer's key belongs to a removed node."""
        return peer.key in self._removed

    def believes_removal(self, node: int, own: int) -> bool:
        """A member reports that this node was removed. Return True once more than half of the other members report it,
        because a single member may lie.
        """
        self._removal_claims.add(node)
        others = {other for other in self._members.values() if other != own}
        return 2 * len(self._removal_claims & others) > len(others)

    def instance(self, node: int) -> bytes | None:
        """The session instance of a node, or None."""
        return self._instances.get(node)


def member_endpoints(config: ClusterConfig, own: int) -> MembersConfigured:
    """Endpoints of the other members, for gossip. An endpoint of a removed node may belong to a member now."""
    members = [one for one in config.nodes if config.is_member(one)]
    taken = {one.uri for one in members}
    others = {identifier_of(one.key): one.uri for one in members if one.node != own and is_endpoint(one.uri)}
    return MembersConfigured(others, tuple(one.uri for one in config.nodes if one.uri not in taken))


def members_of(config: ClusterConfig) -> MembersAre:
    """The members that clients are told about. A node without a live role for clients is in neither list."""
    members = (one for one in config.nodes if Stage.LIVE in (one.ingest, one.executor))
    gone = (one for one in config.nodes if not config.is_member(one))
    return MembersAre(_endpoints(members), _endpoints(gone))


def _endpoints(nodes: Iterable[MemberRoles]) -> tuple[NodeAddress, ...]:
    return tuple(NodeAddress(one.key, one.uri) for one in nodes if is_endpoint(one.uri))
