"""Doors: URIs where nodes of our cluster are, as we were told from above and not by other members.

A door is met whoever is there, and never given up: neither after a good-bye, because the next run of the one that said
it may know nobody else, nor after any time. Decides which doors the mesh is to keep now; `company` says who is met
beside them.

Invariant: all doors are met, but for a moment after whoever was behind one is parted from, and in a large cluster while
whoever is behind one is present: then it is a member like any other, and met as a neighbour on the ring or not at all.
"""

from __future__ import annotations

from collections.abc import Collection

from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.membership import Membership
from chaplain.link.events import Forget, Meet


class SeedEndpoints:
    def __init__(self, voice: Dissemination, membership: Membership) -> None:
        self._voice = voice
        self._members = voice.members
        self._membership = membership
        self._met: dict[str, bool] = {}
        """Of each door: whether the mesh is to keep it."""
        self._seen: tuple[int, bool] | None = None
        """What `tend` looked at last."""

    def __contains__(self, uri: str) -> bool:
        return uri in self._met

    def open(self, uri: str) -> None:
        self._met[uri] = True
        self._voice.out.append(Meet(uri))

    def close(self, uri: str, wanted: Collection[str]) -> None:
        """Nobody of our cluster is there any more. Whoever is wanted there for another reason is kept."""
        if self._met.pop(uri, False) and uri not in wanted:
            self._voice.out.append(Forget(uri))

    def clear(self) -> None:
        self._voice.out += [Forget(uri) for uri in self._met]
        self._met.clear()

    def parted(self, uri: str) -> None:
        """The mesh was told to forget it. A door is met again at the next tick: who said good-bye is about to end."""
        if uri in self._met:
            self._met[uri] = False
            self._seen = None

    def tend(self, wanted: Collection[str]) -> None:
        seen = (self._members.revision, self._membership.joined)
        if not self._met or seen == self._seen:
            return
        self._seen = seen
        needless = self._present() - set(wanted)
        for uri, met in self._met.items():
            if met == (uri in needless):
                self._met[uri] = not met
                self._voice.out.append(Forget(uri) if met else Meet(uri))

    def _present(self) -> set[str]:
        """Where members are, in a cluster so large that not all of them are met."""
        if not self._membership.joined or len(self._members) <= self._voice.settings.sessions_max + 1:
            return set()
        records = map(self._members.get, self._members.present)
        return {record.card.uri for record in records if record is not None}
