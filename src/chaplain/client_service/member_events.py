"""Changes of nodes that a client can subscribe to: nodes that connect or disconnect, and pools they join or leave.

Mesh and gossip each have their own view, and both are reported. `enter` and `exit` are about this node's own
connections; `member` is about the membership list, on which all nodes converge. See
docs/decisions/cluster-queries-and-events.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

from chaplain.client_service.messages import NAME_BYTES_MAX, NewsItem
from chaplain.gossip.events import MemberChanged
from chaplain.mesh.events import Entered, Exited, Joined, Left

NodeEvent: TypeAlias = Entered | Exited | Joined | Left | MemberChanged
"""Changes of nodes. Changes of clients are not reported to other clients."""


def item_of(event: NodeEvent, node_id: Callable[[int], int]) -> NewsItem:
    """The item for clients; its call is filled in later."""
    match event:
        case Entered():
            return NewsItem(0, "enter", node_id(event.peer.identifier))
        case Exited():
            return NewsItem(0, "exit", node_id(event.peer.identifier), reason=event.reason[:NAME_BYTES_MAX])
        case Joined():
            return NewsItem(0, "join", node_id(event.peer.identifier), event.pool)
        case Left():
            return NewsItem(0, "leave", node_id(event.peer.identifier), event.pool)
        case MemberChanged():
            member = event.member
            return NewsItem(0, "member", node_id(member.identifier), state=member.state, was=event.old or "")
        case _:
            assert_never(event)
