"""The demo's database: money goes to and fro between accounts, and every node's copy is the same."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

from chaplain.client.sync import Client
from chaplain.demo.findings import Findings
from chaplain.demo.scenes import Tell, wait

STREAM = "accounts"
ACCOUNTS = 100
BALANCE = 1000
TRANSFERS = 5000
_TRANSFER = "update accounts set balance = balance + case id when ? then ? else ? end where id in (?, ?)"


def accounts_add_up(cluster: Path, findings: Findings, tell: Tell) -> None:
    tell(f"{TRANSFERS:,} transfers between accounts, each a transaction that every node's database executes")
    chance = Random(1)
    with Client.connect(str(cluster)) as client:
        sql = client.sql(STREAM)
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
    wait("all databases to be as far", lambda: len(set(prints(cluster))) == 1)
    findings.equal("sql: different databases on three nodes", 1, len(set(prints(cluster))))
    findings.add("sql: transactions", "reported", f"{TRANSFERS / seconds:,.0f} a second", True)


def prints(cluster: Path) -> list[str]:
    """What each node's executor says its database adds up to."""
    found = []
    for node in (1, 2, 3):
        with Client.connect(str(cluster), node=node) as client:
            found.append(str(client.status()["databases"][STREAM]["fingerprint"]))
    return found
