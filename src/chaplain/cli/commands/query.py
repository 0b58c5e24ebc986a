"""`chaplain query`: questions to the whole cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaplain.cli.support.broken_pipe import while_somebody_reads
from chaplain.cli.support.connection_options import reach, talks
from chaplain.cli.support.input_bytes import octets
from chaplain.cli.support.output import put_json, put_table, shown_value, visible

if TYPE_CHECKING:
    from chaplain.client.types.results import Answer

COLUMNS = ("question", "value", "votes", "members", "decided", "voters", "missing")
TALLY_SHOWN = 5
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
@click.option("--content", default="", metavar="TEXT", help="What to send along, for whoever answers.")
@talks
def ask(question: str, timeout: float, content: str, cluster: str, node: int | None, output: str) -> None:
    """Put QUESTION to every member and show what most of them say.

    Every node answers version, uptime and members; programs may answer others.
    """
    with reach(cluster, node) as client:
        answer = client.ask(question, timeout=timeout, content=octets(content))
    if output == "json":
        put_json(dict(answer))
    else:
        put_table(COLUMNS, [dict(answer)], "" if answer.decided else _why(answer))


@query.command("answer", epilog="Example: chaplain query answer colour red --cluster demo --count 1")
@click.argument("question")
@click.argument("text")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after so many seconds without being asked.")
@click.option("--count", type=click.IntRange(1), help="Stop after so many answers.")
@talks
def give_answer(
    question: str, text: str, timeout: float | None, count: int | None, cluster: str, node: int | None, output: str
) -> None:
    """Answer QUESTION with TEXT, for one node, each time somebody asks; show who did, one a line."""
    with reach(cluster, node) as client, while_somebody_reads(), client.questions(question, timeout=timeout) as asked:
        for number, each in enumerate(asked, 1):
            client.reply(each, octets(text))
            if output == "json":
                put_json(
                    {
                        "id": each.id,
                        "question": each.question,
                        "asker": each.asker,
                        "content": shown_value(each.content),
                    }
                )
            else:
                said = visible(each.content.decode(errors="backslashreplace"))
                click.echo(f"asked at {each.asker}: {said}" if said else f"asked at {each.asker}")
            if number == count:
                break


def _why(answer: Answer) -> str:
    said = "; ".join(f"{value} {votes}" for value, votes in answer.tally[:TALLY_SHOWN])
    reason = UNDECIDED.get(answer.reason, answer.reason)
    return f"undecided: {reason}" + (f" (votes: {said})" if said else "")
