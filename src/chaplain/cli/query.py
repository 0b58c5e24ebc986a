"""`chaplain query`: questions to the whole cluster."""

from __future__ import annotations

import click

from chaplain.cli.reach import reach, talks
from chaplain.cli.show import put_json, put_table

UNDECIDED = {
    "tie": "two answers have half of the members each",
    "split": "no answer can reach half of the members",
    "unknown": "nobody who answered knows this question",
    "timeout": "not enough members answered in time",
    "refused": "this node takes no more questions now, or not of this size",
}


@click.group(epilog="Example: chaplain query ask version --cluster demo")
def query() -> None:
    """Questions that are answered when half or more of the members agree."""


@query.command(epilog="Example: chaplain query ask version --cluster demo")
@click.argument("question")
@click.option("--timeout", type=click.FloatRange(0.05, 60), default=5.0, show_default=True, help="Seconds to wait.")
@talks
def ask(question: str, timeout: float, cluster: str, node: int | None, output: str) -> None:
    """Put QUESTION to every member and show what most of them say.

    Every node answers version, uptime and members; programs may answer others.
    """
    with reach(cluster, node) as client:
        answer = client.ask(question, timeout=timeout)
    fields = ("question", "value", "votes", "members", "decided", "voters", "missing")
    found = {name: getattr(answer, name) for name in fields}
    if output == "json":
        put_json(found)
    else:
        put_table(
            list(fields), [found], "" if answer.decided else f"undecided: {UNDECIDED.get(answer.reason, answer.reason)}"
        )
