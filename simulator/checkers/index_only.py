"""Checks what index-only serializers are shown, and which nodes hold the payloads that they order.

- A message is shown to a serializer only when `copies` nodes have it on disk with its payloads.
- A serializer writes no payload of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaplain.core import Arrived, Persist, WriteAt
from chaplain.errors import Malformed
from chaplain.journal.messages import consensus, peer
from chaplain.journal.messages.cluster import Body, chain_hash, decode_body
from chaplain.journal.messages.consensus import Propose
from chaplain.wire import parcel
from simulator.checkers.base import Watcher
from simulator.checkers.requests import Settling
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.indexonly import IndexOnly

_ORDER_BODY, _ = peer.encode(peer.ConsensusFrame(b""))


class CopiesChecker(Watcher):
    name = "copies"

    def __init__(self, workload: IndexOnly) -> None:
        self._workload = workload
        self._hosts: dict[str, Host] = {}
        self._settled = 0
        """The furthest message that any node settled."""

    def process_started(self, time_ns: int, host: Host, /) -> None:
        self._hosts[host.name] = host

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        return True

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        if host.name not in self._workload.holders:
            if isinstance(event, Arrived):
                self._shown(host, event.frame)
            for effect in effects:
                if isinstance(effect, Persist):
                    self._written(host, effect)
        for effect in effects:
            if isinstance(effect, Settling):
                self._settled = max(self._settled, effect.message.body.index)

    def _shown(self, host: Host, frame: bytes) -> None:
        try:
            said = parcel.decode(frame[1:])
            proposed = consensus.decode(said.payload) if said.body == _ORDER_BODY else None
            if isinstance(proposed, Propose):
                self._check(host, proposed, decode_body(proposed.body))
        except Malformed:
            pass

    def _check(self, host: Host, proposed: Propose, body: Body) -> None:
        if body.index <= self._settled or not body.data_entries:
            return  # a late message that was agreed long ago
        digest = chain_hash(body.previous, proposed.body)
        have = [name for name in self._workload.holders if self._has(name, digest)]
        if len(have) < self._workload.copies:
            self.complain(f"{host.name} is shown message {body.index}, which is on the disks of {have} alone")

    def _has(self, name: str, digest: bytes) -> bool:
        """True if the node would still have it after a power cut now; a wiped disk may have had it."""
        if name in self._workload.wiped:
            return True
        return self._hosts[name].disk.holds(digest, ".segment")

    def _written(self, host: Host, persist: Persist) -> None:
        for operation in persist.operations:
            if isinstance(operation, WriteAt) and any(
                entry.raw in operation.data for entry in self._workload.made[-8:]
            ):
                self.complain(f"{host.name} writes a payload down")
