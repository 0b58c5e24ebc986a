"""Lines of the node's log about its peers and itself."""

from __future__ import annotations

from chaplain.core import Report
from chaplain.gossip.events import MemberChanged
from chaplain.journal.consensus.events import RoleChanged
from chaplain.mesh.events import Gapped


def lost(event: Gapped, name: int) -> Report:
    return Report("commands lost", str(name), {"count": event.count, "direction": "out" if event.outgoing else "in"})


def refused(what: str, name: int, reason: str) -> Report:
    return Report(what, str(name), {"reason": reason})


def member(event: MemberChanged, name: int) -> Report:
    held = event.member
    was = str(event.old or "unknown")
    return Report("member", str(name), {"state": str(held.state), "was": was, "incarnation": held.incarnation})


def role(event: RoleChanged) -> Report:
    return Report("journal role", detail={"role": str(event.role), "regime": event.regime, "master": event.master})


def overrun(client: str) -> Report:
    return Report("client sends more than it is served", client, {"reason": "its session ends"})
