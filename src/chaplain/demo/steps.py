"""The steps of the demo: one for each stream kind, and those for membership, node failure and key rotation.

A step is a function of the cluster's directory, the findings and a progress callback. `STEPS` is the order in which
the demo runs them; a new stream kind adds its step there.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random

from chaplain.client.sync import Client
from chaplain.demo.findings import Findings, Progress, wait
from chaplain.demo.journal_step import journal_survives
from chaplain.runtime.cluster.local import bring_up, pid_of

Step = Callable[[Path, Findings, Progress], None]

BROADCASTS = 2000
EVENTS = 200
SILENCE_S = 5.0
"""The setting `gossip.silence_seconds` (T) of the nodes, which the demo leaves at its default."""
RESTART_S = 5.0
"""Promised time of a restart. Most of it is Python importing modules."""

GRAPH_STREAM = "notes"
APPENDS = 100

SEQUENCE_STREAM = "ticks"
PUBLISHERS = 3
BATCHES = 50
BATCH = 100

SQL_STREAM = "accounts"
ACCOUNTS = 100
BALANCE = 1000
TRANSFERS = 5000
_TRANSFER = "update accounts set balance = balance + case id when ? then ? else ? end where id in (?, ?)"


def members_agree(cluster: Path, findings: Findings, progress: Progress) -> None:
    progress("asking every member the same question")
    with Client.connect(str(cluster)) as client:
        answer = client.ask("version")
        findings.add(
            "a question is decided by at least half",
            "decided",
            f"{answer.votes} of {answer.members} votes",
            answer.decided,
        )


def pool_reaches_all(cluster: Path, findings: Findings, progress: Progress) -> None:
    progress(f"broadcasting {BROADCASTS} messages from node 1 to listeners at nodes 2 and 3")
    with (
        Client.connect(str(cluster), node=1) as speaker,
        Client.connect(str(cluster), node=2) as second,
        Client.connect(str(cluster), node=3) as third,
    ):
        for listener in (second, third):
            listener.pool("demo").join()
        wait("every node to know who joined", lambda: _all_have_heard(speaker, (second, third)))
        began = time.perf_counter()
        for number in range(BROADCASTS):
            speaker.pool("demo").broadcast(b"%d" % number)
        seconds = time.perf_counter() - began
        expected = [b"%d" % number for number in range(BROADCASTS)]
        for name, listener in (("2", second), ("3", third)):
            got = [message for message in listener.pool("demo").listen(timeout=1.0) if message.value != b"ready?"]
            reported = sum(message.missed for message in got)
            values = [message.value for message in got]
            findings.equal(
                f"pool: received at node {name}, lost without a report", 0, BROADCASTS - len(values) - reported
            )
            findings.add(
                f"pool: in order at node {name}",
                "yes",
                "yes" if values == expected else f"{len(values)} received",
                values == expected,
            )
    findings.add("pool: broadcasts acknowledged one by one", "reported", f"{BROADCASTS / seconds:,.0f} a second", True)


def _all_have_heard(speaker: Client, listeners: tuple[Client, ...]) -> bool:
    """Broadcast once; return whether every listener has received something. A join takes time to reach all nodes."""
    speaker.pool("demo").broadcast(b"ready?")
    return all(any(True for _ in listener.pool("demo").listen(timeout=0.2)) for listener in listeners)


def events_reach_all(cluster: Path, findings: Findings, progress: Progress) -> None:
    progress(f"firing {EVENTS} events at node 1, listening at node 3")
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


def graph_comes_together(cluster: Path, findings: Findings, progress: Progress) -> None:
    progress(f"appending {APPENDS} events to a graph at each of three nodes")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client.connect(str(cluster), node=node)) for node in (1, 2, 3)]
        began = time.perf_counter()
        written = [
            client.graph(GRAPH_STREAM).append(b"%d" % number).id for number in range(APPENDS) for client in clients
        ]
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        wait("all nodes to hold the same graph", lambda: all(_read_count(client) == len(written) for client in clients))
        orders = [[event.id for event in client.graph(GRAPH_STREAM).read()] for client in clients]
    findings.equal("graph: acknowledged events that are lost", 0, len(set(written) - set(orders[0])))
    same = orders[0] == orders[1] == orders[2]
    findings.add("graph: one order on all nodes", "yes", "yes" if same else "no", same)
    findings.at_most("graph: all nodes equal, everything read", 5.0, time.perf_counter() - began)
    findings.add("graph: appends, one after the other", "reported", f"{len(written) / seconds:,.0f} a second", True)


def _read_count(client: Client) -> int:
    streams = client.status().get("graph", {})
    return int(streams.get(GRAPH_STREAM, {}).get("read", 0))


def sequence_numbers(cluster: Path, findings: Findings, progress: Progress) -> None:
    count = PUBLISHERS * BATCHES * BATCH
    progress(f"publishing {count:,} events at three nodes at once, under one numbering")
    began = time.perf_counter()
    with ThreadPoolExecutor(PUBLISHERS) as pool:
        numbered = dict(
            pair for pairs in pool.map(lambda node: _publish_batches(cluster, node), (1, 2, 3)) for pair in pairs
        )
    seconds = time.perf_counter() - began
    findings.equal("sequence: numbers given, each once", count, len(numbered))
    orders = [dict(_read_events(cluster, node, count)) for node in (1, 2, 3)]
    wrong = sum(order.get(number) != value for order in orders for number, value in numbered.items())
    findings.equal("sequence: not under their number at some node", 0, wrong)
    gaps = sum(list(order) != list(range(1, count + 1)) for order in orders)
    findings.equal("sequence: nodes with a gap or another order", 0, gaps)
    findings.add("sequence: events numbered", "reported", f"{count / seconds:,.0f} a second", True)


def _publish_batches(cluster: Path, node: int) -> list[tuple[int, bytes]]:
    numbered: list[tuple[int, bytes]] = []
    with Client.connect(str(cluster), node=node) as client:
        for batch in range(BATCHES):
            values = [b"%d:%d" % (node, batch * BATCH + place) for place in range(BATCH)]
            first = client.sequence(SEQUENCE_STREAM).publish_many(values)
            numbered += enumerate(values, first)
    return numbered


def _read_events(cluster: Path, node: int, count: int) -> Iterator[tuple[int, bytes]]:
    with Client.connect(str(cluster), node=node) as client:
        for event in client.sequence(SEQUENCE_STREAM).read(start=1, stop=count + 1, follow=True, timeout=10.0):
            yield event.number, event.value


def accounts_add_up(cluster: Path, findings: Findings, progress: Progress) -> None:
    progress(f"{TRANSFERS:,} transfers between accounts, each a transaction that every node's database executes")
    chance = Random(1)
    with Client.connect(str(cluster)) as client:
        sql = client.sql(SQL_STREAM)
        sql.execute("create table accounts (id integer primary key, balance integer not null)")
        sql.transaction([("insert into accounts values (?, ?)", (n, BALANCE)) for n in range(1, ACCOUNTS + 1)])
        began = time.perf_counter()
        with sql.writer() as writer:
            for _ in range(TRANSFERS):
                (one, other), amount = chance.sample(range(1, ACCOUNTS + 1), 2), chance.randrange(1, 100)
                writer.execute(_TRANSFER, (one, -amount, amount, one, other))
        found = sum(row["sum"] for row in sql.query("select sum(balance) as sum from accounts"))
        seconds = time.perf_counter() - began
        applied = sum(result.error is None for result in sql.results())
    findings.equal("sql: money in all accounts", f"{ACCOUNTS * BALANCE:,}", f"{found:,}")
    findings.equal("sql: statements executed", TRANSFERS + 2, applied)
    wait("all databases to be as far", lambda: len(set(database_fingerprints(cluster))) == 1)
    findings.equal("sql: different databases on three nodes", 1, len(set(database_fingerprints(cluster))))
    findings.add("sql: transactions", "reported", f"{TRANSFERS / seconds:,.0f} a second", True)


def database_fingerprints(cluster: Path) -> list[str]:
    """Return the fingerprint of the database that the executor of each node reports."""
    found = []
    for node in (1, 2, 3):
        with Client.connect(str(cluster), node=node) as client:
            found.append(str(client.status()["databases"][SQL_STREAM]["fingerprint"]))
    return found


def death_is_noticed(cluster: Path, findings: Findings, progress: Progress) -> None:
    folder = cluster / "node-3"
    pid = pid_of(folder)
    assert pid is not None
    progress(f"kill -9 of node 3 (process {pid}); its peers ask around before they believe it")
    with Client.connect(str(cluster), node=1) as first, Client.connect(str(cluster), node=2) as second:
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        wait("node 3 to be listed as gone", lambda: all(_state(client, 3) == "left" for client in (first, second)))
        findings.at_most("a killed node is listed as gone by all", 2 * SILENCE_S + 1, time.perf_counter() - began)
        findings.equal("others listed as gone", 0, sum(_state(first, node) != "alive" for node in (1, 2)))
        answer = first.ask("version")
        findings.add("questions go on", "decided", f"{answer.votes} of {answer.members} votes", answer.decided)
        progress("starting node 3 again")
        began = time.perf_counter()
        bring_up(cluster, progress)
        wait("node 3 to be back", lambda: all(_state(client, 3) == "alive" for client in (first, second)))
        findings.at_most("a restarted node has started and is back", RESTART_S, time.perf_counter() - began)


def key_is_replaced(cluster: Path, findings: Findings, progress: Progress) -> None:
    progress("replacing the cluster's key while the nodes talk")
    with Client.connect(str(cluster)) as client:
        done = client.rotate_keys()
    findings.add(
        "a new cluster key reaches every node", "yes", "yes" if done.get("rotated") else "no", bool(done.get("rotated"))
    )


def _state(client: Client, node: int) -> str:
    return next((member.state for member in client.members() if member.id == node), "unknown")


STEPS: tuple[Step, ...] = (
    members_agree,
    pool_reaches_all,
    events_reach_all,
    graph_comes_together,
    sequence_numbers,
    journal_survives,
    accounts_add_up,
    death_is_noticed,
    key_is_replaced,
)


def spark_step() -> Step:
    """Return the last step, which reads everything that the others wrote. Spark is imported only if this step runs."""
    from chaplain.demo.pipeline_step import lands_and_verifies  # noqa: PLC0415

    return lands_and_verifies
