"""What `results` asks for, and what of it is given and deleted, with executors that are slow to delete."""

from __future__ import annotations

from typing import Any, cast

import pytest

from chaplain.client.sync.connection import ClientContext
from chaplain.client.sync.sql import Sql
from chaplain.client_service.messages import LookUp
from chaplain.executor.messages import AskResults, ReadThrough, decode_client, encode_runs
from chaplain.executor.statement import OutcomeRun, RequestOutcome, encode_run

RUNS = [
    OutcomeRun(1, 1, 5, 0, (RequestOutcome(0), RequestOutcome(1))),
    OutcomeRun(2, 1, 6, 0, (RequestOutcome(2),)),
    OutcomeRun(1, 3, 7, 0, (RequestOutcome(3),) * 3),
]


class Executor:
    """Gives one run at a time, as of very long ones; what was read is deleted at once, or never."""

    def __init__(self, prompt: bool) -> None:
        self.prompt = prompt
        self.read: dict[int, int] = {}
        self.asked: list[AskResults] = []

    def run(self, ask: Any) -> Any:
        call = ask.build(1, 1)
        assert isinstance(call.request, LookUp)
        message = decode_client(call.request.body)
        if isinstance(message, ReadThrough):
            self.read |= {lane: max(last, self.read.get(lane, 0)) for lane, last in message.through}
            return ask.read(b"")
        assert isinstance(message, AskResults)
        self.asked.append(message)
        assert len(self.asked) < 10, "it never ends"
        return ask.read(encode_runs([encode_run(run) for run in RUNS if self._wanted(message, run)][:1]))

    def _wanted(self, message: AskResults, run: OutcomeRun) -> bool:
        last = run.first_id + len(run.outcomes) - 1
        read = last <= self.read.get(run.client_id, 0) and (self.prompt or not message.client_id)
        lane = message.client_id in (0, run.client_id)
        inside = not message.client_id or (run.first_id <= message.last_id and last >= message.first_id)
        return lane and inside and not read


def given(executor: Executor, through: tuple[int, int] | None) -> list[tuple[int, int]]:
    return [tuple(one.id) for one in Sql(cast("ClientContext", executor), "main").results(through)]


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    ("through", "ids"),
    [
        (None, [(1, 1), (1, 2), (2, 1), (1, 3), (1, 4), (1, 5)]),
        ((1, 2), [(1, 1), (1, 2)]),
        ((1, 1), [(1, 1), (1, 2)]),  # what was executed together is deleted together
        ((1, 4), [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]),
        ((2, 9), [(2, 1)]),
        ((3, 9), []),
    ],
)
def test_results_return_each_stored_result_once_and_delete_only_those(
    prompt: bool, through: tuple[int, int] | None, ids: list[tuple[int, int]]
) -> None:
    executor = Executor(prompt)
    assert given(executor, through) == ids
    assert executor.read == {lane: max(last for of, last in ids if of == lane) for lane, _ in ids}
    executor.prompt = True
    rest = [(lane, one) for lane, one in given(executor, None) if (lane, one) in ids]
    assert not rest


@pytest.mark.parametrize("through", [(0, 5), (1, 0)])
def test_results_with_an_invalid_id_are_refused(through: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="two numbers from 1 on"):
        given(Executor(True), through)
