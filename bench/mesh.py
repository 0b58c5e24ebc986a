"""Measures how fast one node broadcasts to a pool of four others, compared with zeromq-pyre.

Prints what is compared, a table, and one line of JSON. Other processes may use the machine, so rounds of the two
systems alternate, and only the ratio of their medians counts. See `bench/README.md`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from support.mesh_programs import PATIENCE_S, QUEUE_BYTES, REPORT_EVERY, WINDOW, Progress, run_node, run_pyre

COMPARED = """\
Five processes on loopback, fully meshed: one shouts to a pool, four have joined it and check each number they hear.
chaplain  whole nodes, every command sealed (AES-256-GCM). A program in the node's process gives it Shout inputs and
          holds back while {queue_kib} KiB wait for any peer; the program takes the received
          messages where the client service would.
pyre      zeromq-pyre's shout() and recv(), nothing encrypted. It silently drops a peer whose queue is full, so the
          sender stays at most {window} messages ahead of the slowest receiver, which reports every {report} by WHISPER.
rate      messages that all four have / seconds from the first shout to the last arrival; median of the rounds
per CPU s the same messages / processor seconds of all five processes
lost      over all receivers and rounds; reported: what receivers were told is missing; dropped: what the sender was
flood     chaplain once more, in bursts larger than its byte budget: every loss must be told, on both sides
"""
HEARERS = 4
STALLED_S = 5.0
FLOOD_SECONDS = 0.5
HEADINGS = (
    f"{'bytes':>6} {'system':<9} {'rate':>9} {'per CPU s':>10} {'sent':>10} {'lost':>8} "
    f"{'reported':>8} {'dropped':>8}  rate of each round"
)


class Round(NamedTuple):
    rate: float
    per_cpu_s: float
    sent: int
    lost: int
    reported: int
    dropped: int


class Cluster:
    """Five processes that execute the same commands."""

    def __init__(self, run: Callable[[int, list[int], Connection, str], None], profile: str = "") -> None:
        context = mp.get_context("spawn")
        ports = free_ports(HEARERS + 1)
        self._controls: list[Connection] = []
        self._processes = []
        for index in range(HEARERS + 1):
            ours, theirs = context.Pipe()
            process = context.Process(target=run, args=(index, ports, theirs, profile), daemon=True)
            process.start()
            self._controls.append(ours)
            self._processes.append(process)
        self._until(lambda: all(peers == HEARERS for peers in self._ask("peers")), "the nodes do not find each other")

    def _ask(self, *order: object) -> list[Any]:
        for control in self._controls:
            control.send(order)
        return [control.recv() for control in self._controls]

    def _until(self, done: Callable[[], bool], complaint: str) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > give_up_s:
                raise SystemExit(complaint)
            time.sleep(0.05)

    def round(self, size_bytes: int, seconds: float, flood: bool = False) -> Round:
        """Let the first process broadcast for `seconds`. Return when all others have received everything or stopped
        receiving.
        """
        for control in self._controls[1:]:
            control.send(("begin", size_bytes, 0.0))
            control.recv()
        before = sum(each.cpu_s for each in self._ask("progress"))
        self._controls[0].send(("begin", size_bytes, seconds, flood))
        self._controls[0].recv()
        time.sleep(seconds)
        sender, hearers = self._settle()
        used_s = sum(each.cpu_s for each in (sender, *hearers)) - before
        whole = min(each.heard for each in hearers)
        took_s = max(each.last_s for each in hearers) - sender.first_s
        lost = sum(sender.said - each.heard for each in hearers)
        reported = sum(each.reported for each in hearers)
        return Round(whole / took_s, whole / used_s, sender.said, lost, reported, sender.dropped)

    def _settle(self) -> tuple[Progress, list[Progress]]:
        heard, since_s = -1, time.monotonic()
        while True:
            sender, *hearers = self._ask("progress")
            if sender.said >= 0 and all(each.heard + each.reported >= sender.said for each in hearers):
                return sender, hearers
            now = sum(each.heard for each in hearers)
            if now != heard:
                heard, since_s = now, time.monotonic()
            elif sender.said >= 0 and time.monotonic() - since_s > STALLED_S:
                return sender, hearers
            time.sleep(0.05)

    def stop(self) -> None:
        for control in self._controls:
            control.send(("stop",))
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def summary(rounds: list[Round]) -> dict[str, float]:
    return {
        "rate": round(statistics.median(each.rate for each in rounds)),
        "per_cpu_s": round(statistics.median(each.per_cpu_s for each in rounds)),
        "sent": sum(each.sent for each in rounds),
        "lost": sum(each.lost for each in rounds),
        "reported": sum(each.reported for each in rounds),
        "dropped": sum(each.dropped for each in rounds),
    }


def show(size_bytes: int, rounds: dict[str, list[Round]]) -> dict[str, dict[str, float]]:
    found = {name: summary(each) for name, each in rounds.items()}
    for name, each in found.items():
        rates = " ".join(f"{one.rate:.0f}" for one in rounds[name])
        print(
            f"{size_bytes:>6} {name:<9} {each['rate']:>9,} {each['per_cpu_s']:>10,} {each['sent']:>10,} "
            f"{each['lost']:>8} {each['reported']:>8} {each['dropped']:>8}  {rates}"
        )
    if "pyre" in found:
        ours, theirs = found["chaplain"], found["pyre"]
        for key in ("rate", "per_cpu_s"):
            ours[f"{key}_ratio"] = round(ours[key] / max(1, theirs[key]), 1)
        print(f"{size_bytes:>6} ratio     {ours['rate_ratio']:>8}x {ours['per_cpu_s_ratio']:>9}x")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of shouting in each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each system and size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="bytes of a message")
    parser.add_argument("--alone", action="store_true", help="without pyre")
    parser.add_argument("--profile", default="", help="write each node's profile to this path, with its number")
    options = parser.parse_args()
    print(COMPARED.format(queue_kib=QUEUE_BYTES // 1024, window=WINDOW, report=REPORT_EVERY))
    systems = {"chaplain": Cluster(run_node, options.profile)}
    if not options.alone:
        systems["pyre"] = Cluster(run_pyre)
    results: dict[str, Any] = {"load": [round(each, 1) for each in os.getloadavg()], "sizes": {}}
    print(HEADINGS)
    for size_bytes in options.sizes:
        rounds: dict[str, list[Round]] = {name: [] for name in systems}
        for _ in range(options.rounds):
            for name, cluster in systems.items():
                rounds[name].append(cluster.round(size_bytes, options.seconds))
        rounds["flood"] = [systems["chaplain"].round(size_bytes, FLOOD_SECONDS, flood=True)]
        results["sizes"][str(size_bytes)] = show(size_bytes, rounds)
    for cluster in systems.values():
        cluster.stop()
    ours = [found[name] for found in results["sizes"].values() for name in ("chaplain", "flood")]
    results["every_loss_told"] = all(each["lost"] == each["reported"] for each in ours)
    results["load_after"] = [round(each, 1) for each in os.getloadavg()]
    print(json.dumps(results))
    if not results["every_loss_told"]:
        raise SystemExit("something was lost and not told")


if __name__ == "__main__":
    main()
