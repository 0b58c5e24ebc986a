"""What the demo does with its cluster, one stream kind after the other. Each scene notes what it found."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from chaplain.client.sync import Client
from chaplain.demo.findings import Findings
from chaplain.errors import ChaplainError
from chaplain.runtime.cluster.local import bring_up, pid_of

Tell = Callable[[str], None]

BROADCASTS = 2000
EVENTS = 200
SILENCE_S = 5.0
"""T of the nodes: `gossip.silence_seconds`, left at its default here."""
RESTART_S = 5.0
"""Most of it is Python loading."""
PATIENCE_S = 30.0


def members_agree(cluster: Path, findings: Findings, tell: Tell) -> None:
    tell("asking every member the same question")
    with Client.connect(str(cluster)) as client:
        answer = client.ask("version")
        findings.add(
            "a question is decided by half or more",
            "decided",
            f"{answer.votes} of {answer.members} votes",
            answer.decided,
        )


def pool_reaches_all(cluster: Path, findings: Findings, tell: Tell) -> None:
    tell(f"broadcasting {BROADCASTS} messages from node 1 to listeners at nodes 2 and 3")
    with (
        Client.connect(str(cluster), node=1) as speaker,
        Client.connect(str(cluster), node=2) as second,
        Client.connect(str(cluster), node=3) as third,
    ):
        for listener in (second, third):
            listener.pool("demo").join()
        wait("every node to know who joined", lambda: _heard(speaker, (second, third)))
        began = time.perf_counter()
        for number in range(BROADCASTS):
            speaker.pool("demo").broadcast(b"%d" % number)
        seconds = time.perf_counter() - began
        expected = [b"%d" % number for number in range(BROADCASTS)]
        for name, listener in (("2", second), ("3", third)):
            got = [message for message in listener.pool("demo").listen(timeout=1.0) if message.value != b"ready?"]
            told = sum(message.missed for message in got)
            values = [message.value for message in got]
            findings.equal(f"pool: received at node {name}, lost without a report", 0, BROADCASTS - len(values) - told)
            findings.add(
                f"pool: in order at node {name}",
                "yes",
                "yes" if values == expected else f"{len(values)} received",
                values == expected,
            )
    findings.add("pool: broadcasts acknowledged one by one", "reported", f"{BROADCASTS / seconds:,.0f} a second", True)


def _heard(speaker: Client, listeners: tuple[Client, ...]) -> bool:
    """Joining is news that travels: shout until everyone has answered to it once."""
    speaker.pool("demo").broadcast(b"ready?")
    return all(any(True for _ in listener.pool("demo").listen(timeout=0.2)) for listener in listeners)


def events_reach_all(cluster: Path, findings: Findings, tell: Tell) -> None:
    tell(f"firing {EVENTS} events at node 1, listening at node 3")
    with (
        Client.connect(str(cluster), node=1) as first,
        Client.connect(str(cluster), node=3) as third,
        third.events(timeout=2.0) as events,
    ):
        for number in range(EVENTS):
            first.fire("demo", b"%d" % number)
        seen = [event.content for event in events if event.type == "demo"]
    findings.equal("event: seen once by a far node", EVENTS, len(set(seen)))
    findings.equal("event: seen twice", 0, len(seen) - len(set(seen)))


def death_is_noticed(cluster: Path, findings: Findings, tell: Tell) -> None:
    folder = cluster / "node-3"
    pid = pid_of(folder)
    assert pid is not None
    tell(f"kill -9 of node 3 (process {pid}); its peers ask around before they believe it")
    with Client.connect(str(cluster), node=1) as first, Client.connect(str(cluster), node=2) as second:
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        wait("node 3 to be listed as gone", lambda: all(_state(client, 3) == "left" for client in (first, second)))
        findings.at_most("a killed node is listed as gone by all", 2 * SILENCE_S + 1, time.perf_counter() - began)
        findings.equal("others listed as gone", 0, sum(_state(first, node) != "alive" for node in (1, 2)))
        answer = first.ask("version")
        findings.add("questions go on", "decided", f"{answer.votes} of {answer.members} votes", answer.decided)
        tell("starting node 3 again")
        began = time.perf_counter()
        bring_up(cluster, tell)
        wait("node 3 to be back", lambda: all(_state(client, 3) == "alive" for client in (first, second)))
        findings.at_most("a restarted node has started and is back", RESTART_S, time.perf_counter() - began)


def key_is_replaced(cluster: Path, findings: Findings, tell: Tell) -> None:
    tell("replacing the cluster's key while the nodes talk")
    with Client.connect(str(cluster)) as client:
        done = client.rotate_keys()
    findings.add(
        "a new cluster key reaches every node", "yes", "yes" if done.get("rotated") else "no", bool(done.get("rotated"))
    )


def _state(client: Client, node: int) -> str:
    return next((member.state for member in client.members() if member.id == node), "unknown")


def wait(what: str, reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > end:
            raise ChaplainError(f"waited {PATIENCE_S:g} s for {what}, in vain")
        time.sleep(0.05)
