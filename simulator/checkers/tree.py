"""Checks the tree over the log and the checkpoints that nodes sign, from outside.

- No two nodes have different trees of one size.
- No node ever signs two roots for one size, whatever happened to its disk, nor a root that is not that of the log.
- A node with its disk signs no smaller size than before, and nothing that is not on its disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaplain.core import Send
from chaplain.journal.messages import peer
from chaplain.journal.messages.peer import TreeSignature
from chaplain.journal.tree import signed_record
from chaplain.wire import parcel
from simulator.checkers.base import Watcher
from simulator.checkers.requests import Settling
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.requests import Requests
    from simulator.world.world import World

_KIND = 11


class TreeChecker(Watcher):
    name = "tree"

    def __init__(self, workload: Requests) -> None:
        self._workload = workload
        self.world: World | None = None
        self._roots: dict[int, bytes] = {}
        """By size: the root of the tree, as the first node computed it."""
        self.signed: dict[tuple[str, int], bytes] = {}
        """By node and size: the root that the node signed."""
        self._largest: dict[tuple[str, bytes], int] = {}
        """By node and disk: the largest size that the node signed."""

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        for effect in effects:
            match effect:
                case Settling():
                    if effect.tree_size:
                        self._has(host, effect.tree_size, effect.tree_root)
                case Send():
                    self._sent(host, effect.frame)
                case _:
                    pass

    def _has(self, host: Host, size: int, root: bytes) -> None:
        if self._roots.setdefault(size, root) != root:
            self.complain(f"{host.name} has another tree of {size} leaves")

    def _sent(self, host: Host, frame: bytes) -> None:
        said = parcel.decode(frame[1:])
        if said.body[1:2] != bytes((_KIND,)):
            return
        message = peer.decode(said.body, said.payload)
        assert isinstance(message, TreeSignature)
        size, root = message.size, message.root
        is_new = (host.name, size) not in self.signed
        if self.signed.setdefault((host.name, size), root) != root:
            self.complain(f"{host.name} signed two roots for the size {size}")
        self._has(host, size, root)
        disk = host.name, self._workload.settings(host.name).order.disk
        if is_new and size < self._largest.get(disk, 0):
            self.complain(f"{host.name} signed the size {size} after a larger one")
        self._largest[disk] = max(self._largest.get(disk, 0), size)
        record = signed_record.read(host.disk.file("tree/signed"))
        is_remembered = record is not None and record.size >= size
        if not (is_remembered or host.disk.failed or host.disk.diverged or host.disk.lied):
            self.complain(f"{host.name} signed the size {size}, and its disk does not say so")

    def finish(self, healed: Sequence[Host], /) -> None:
        assert self.world is not None
        self.world.counts["checkpoints signed"] += len(self.signed)
