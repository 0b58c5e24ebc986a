"""Disk faults of the journal's workloads, in addition to slow, wiped and rotten disks.

Lies and unreadable sectors may lose data that a node acknowledged, so a workload lets them hit only a minority. A
failed sync loses nothing that was acknowledged, so it may hit every node.
"""

from __future__ import annotations

from random import Random

from chaplain.units import MILLISECOND_NS, SECOND_NS
from simulator.world.disk import LOST_WRITE, MISDIRECTED
from simulator.world.machine import Host
from simulator.world.world import World

LIES = (LOST_WRITE, MISDIRECTED)
UNREADABLE_SECTOR = "unreadable sector"
SYNCS_FAIL = "everybody's sync"
"""Every disk fails its syncs for a moment, as when all of them share failing storage."""
BAD_DISKS = (*LIES, UNREADABLE_SECTOR)

_SYNCS_FAIL_NS = 400 * MILLISECOND_NS
_DOWN_NS = SECOND_NS


def fail_syncs(world: World) -> None:
    for host in world.hosts.values():
        host.disk_error = "EIO"
        world.after(_SYNCS_FAIL_NS, _sync_again, host)


def _sync_again(host: Host) -> None:
    host.disk_error = ""


def damage(world: World, host: Host, kind: str, rng: Random) -> None:
    """Inject one of `BAD_DISKS`. A node is killed right after its disk lied (`disk_timing.py`)."""
    if kind in LIES:
        host.disk.lie_next = kind
        return
    assert kind == UNREADABLE_SECTOR
    world.crash(host, power=rng.random() < 0.3, reason=kind)
    host.disk.lose_sector()
    world.after(_DOWN_NS, world.restart, host)
