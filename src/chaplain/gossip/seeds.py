"""Seed endpoints: URIs of nodes of our cluster that the configuration or the layers above supplied.

A seed endpoint is always dialled and never given up, even if another node has the endpoint now. It is dialled without a
time limit, and also after a graceful leave, because the next run of that node may know no other node. This module
decides which seeds the mesh keeps now; `connectivity` decides which members it keeps beside them.

Invariant: all seeds are dialled, with two exceptions. A seed pauses until the next tick after its node was forgotten.
In a large cluster, a seed whose node is a present member is not dialled as a seed: that member is a ring neighbour or
has no session.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.membership import Membership
from chaplain.link.events import Forget, Meet


class SeedEndpoints:
    def __init__(self, dissemination: Dissemination, membership: Membership) -> None:
        self._dissemination = dissemination
        self._members = dissemination.members
        self._membership = membership
        self._kept: dict[str, bool] = {}
        """For each seed: True if the mesh was asked to keep a session with it."""
        self._last_state: tuple[int, bool] | None = None
        """The state at the last `on_tick` that did something."""

    def __contains__(self, uri: str) -> bool:
        return uri in self._kept

    def add(self, uri: str) -> None:
        self._kept[uri] = True
        self._dissemination.out.append(Meet(uri))

    def remove(self, uri: str, wanted: Collection[str]) -> None:
        """No node of our cluster is at this URI any more. A session that is wanted for another reason continues."""
        if self._kept.pop(uri, False) and uri not in wanted:
            self._dissemination.out.append(Forget(uri))

    def clear(self) -> None:
        self._dissemination.out += [Forget(uri) for uri in self._kept]
        self._kept.clear()

    def on_forgotten(self, uri: str) -> None:
        """The mesh was told to forget the URI.

        A seed is dialled again at the next tick: a node that said good-bye is stopping.
        """
        if uri in self._kept:
            self._kept[uri] = False
            self._last_state = None

    def on_tick(self, wanted: Collection[str]) -> None:
        """Update the seeds if members have changed."""
        state = (self._members.revision, self._membership.joined)
        if not self._kept or state == self._last_state:
            return
        self._last_state = state
        needless = self._present() - set(wanted)
        for uri, kept in self._kept.items():
            if kept == (uri in needless):
                self._kept[uri] = not kept
                self._dissemination.out.append(Forget(uri) if kept else Meet(uri))

    def _present(self) -> set[str]:
        """URIs of present members, in a cluster that is too large for sessions with all of them."""
        if not self._membership.joined or len(self._members) <= self._dissemination.settings.sessions_max + 1:
            return set()
        records = map(self._members.get, self._members.present)
        return {record.card.uri for record in records if record is not None}
