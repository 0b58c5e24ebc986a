"""`chaplain query`: asks all members a question, and answers questions for one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chaplain.cli.support.broken_pipe import stop_on_closed_output
from chaplain.cli.support.connection_options import cluster_options, connected
from chaplain.cli.support.input_bytes import to_bytes
from chaplain.cli.support.output import escaped, print_json, print_table
from chaplain.json_values import json_value

if TYPE_CHECKING:
    from chaplain.client.types.results import Answer

COLUMNS = ("question", "value", "votes", "members", "decided", "voters", "missing")
TALLY_SHOWN = 5
"""An undecided result lists at most this many different answers."""
UNDECIDED = {
    "tie": "two answers have half of the members each",
    "split": "no answer can reach half of the members",
    "unknown": "no member that answered knows this question",
    "timeout": "not enough members answered in time",
    "refused": "this node has too many open questions, or the question is too large",
}


@click.group(epilog="Example: chaplain query ask version --cluster demo")
def query() -> None:
    """Ask all members a question. It is decided when at least half of the members give the same answer."""


@query.command(epilog="Example: chaplain query ask version --cluster demo")
@click.argument("question")
@click.option("--timeout", type=click.FloatRange(0.05, 60), default=5.0, show_default=True, help="Seconds to wait.")
@click.option("--content", default="", metavar="TEXT", help="Content to send with the question.")
@cluster_options
def ask(question: str, timeout: float, content: str, cluster: str, node: int | None, output: str) -> None:
    """Send QUESTION to every member and show the answer that most of them give.

    Every node answers version, uptime and members. Programs can answer other questions.
    """
    with connected(cluster, node) as client:
        answer = client.ask(question, timeout=timeout, content=to_bytes(content))
    if output == "json":
        print_json(dict(answer))
    else:
        print_table(COLUMNS, [dict(answer)], "" if answer.decided else _reason(answer))


@query.command("answer", epilog="Example: chaplain query answer colour red --cluster demo --count 1")
@click.argument("question")
@click.argument("text")
@click.option("--timeout", type=click.FloatRange(0), help="Stop after this many seconds without a question.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many answers.")
@cluster_options
def give_answer(
    question: str, text: str, timeout: float | None, count: int | None, cluster: str, node: int | None, output: str
) -> None:
    """Answer QUESTION with TEXT on behalf of one node, and show each request, one per line."""
    with (
        connected(cluster, node) as client,
        stop_on_closed_output(),
        client.questions(question, timeout=timeout) as asked,
    ):
        for number, each in enumerate(asked, 1):
            client.reply(each, to_bytes(text))
            if output == "json":
                print_json(
                    {
                        "id": each.id,
                        "question": each.question,
                        "asker": each.asker,
                        "content": json_value(each.content),
                    }
                )
            else:
                content = escaped(each.content.decode(errors="backslashreplace"))
                click.echo(f"asked at {each.asker}: {content}" if content else f"asked at {each.asker}")
            if number == count:
                break


def _reason(answer: Answer) -> str:
    tally = "; ".join(f"{value} {votes}" for value, votes in answer.tally[:TALLY_SHOWN])
    reason = UNDECIDED.get(answer.reason, answer.reason)
    return f"undecided: {reason}" + (f" (votes: {tally})" if tally else "")
