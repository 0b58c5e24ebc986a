"""What a client that asked for it is told of nodes: that they come and go, and which pools they join and leave.

Mesh and gossip each have a view, and both are told: `enter` and `exit` are about this node's own connections, `member`
about the list that all nodes agree on in the end (docs/decisions/0131).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

from chaplain.client_service.messages import NAME_BYTES_MAX, NewsItem
from chaplain.gossip.events import MemberChanged
from chaplain.mesh.events import Entered, Exited, Joined, Left

News: TypeAlias = Entered | Exited | Joined | Left | MemberChanged
"""Of nodes; what is about clients is nobody else's business."""


def item_of(news: News, node_id: Callable[[int], int]) -> NewsItem:
    """As it is told, but for the call."""
    match news:
        case Entered():
            return NewsItem(0, "enter", node_id(news.peer.identifier))
        case Exited():
            return NewsItem(0, "exit", node_id(news.peer.identifier), reason=news.reason[:NAME_BYTES_MAX])
        case Joined():
            return NewsItem(0, "join", node_id(news.peer.identifier), news.pool)
        case Left():
            return NewsItem(0, "leave", node_id(news.peer.identifier), news.pool)
        case MemberChanged():
            member = news.member
            return NewsItem(0, "member", node_id(member.identifier), state=member.state, was=news.old or "")
        case _:
            assert_never(news)
