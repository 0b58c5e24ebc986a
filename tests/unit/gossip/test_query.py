"""When a question is decided, checked against every way the missing answers could fall."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from chaplain.gossip import payloads
from chaplain.gossip.codec import MessageType
from chaplain.gossip.events import (
    AskQuery,
    GiveAnswer,
    QueryAnswer,
    QueryDecided,
    Questioned,
    RegisterQuestion,
    UnregisterQuestion,
)
from chaplain.gossip.payloads import QueryPayload, Response
from chaplain.gossip.query import AnswerTally
from chaplain.gossip.settings import GossipSettings
from chaplain.units import SECOND_NS
from tests.unit.gossip.gossip_stage import Partner, Stage, of

VALUES = (b"a", b"b", b"c", None)


def tally_of(answers: dict[int, bytes | None]) -> AnswerTally:
    tally = AnswerTally("q")
    for responder, value in answers.items():
        tally.add(responder, 1, value)
    return tally


def final(answers: dict[int, bytes | None]) -> bytes | None:
    """The document's rule, said plainly, once all have answered: the one answer of at least half, if it is one."""
    counts = {value: list(answers.values()).count(value) for value in VALUES if value is not None}
    winners = [value for value, votes in counts.items() if votes and 2 * votes >= len(answers)]
    return winners[0] if len(winners) == 1 else None


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.sampled_from((*VALUES, "missing")), min_size=n, max_size=n)))
def test_verdict_is_reached_exactly_when_no_missing_answer_can_change_it(drawn: list[bytes | str | None]) -> None:
    members = list(range(1, len(drawn) + 1))
    given_answers = {number: value for number, value in zip(members, drawn, strict=True) if value != "missing"}
    missing = [number for number in members if number not in given_answers]
    verdict = tally_of(given_answers).verdict(members, time_is_up=False)  # type: ignore[arg-type]
    outcomes = {
        final({**given_answers, **dict(zip(missing, rest, strict=True))})  # type: ignore[dict-item]
        for rest in product((*VALUES, b"d"), repeat=len(missing))
    } if len(missing) <= 4 else {b"a", b"b"}  # fmt: skip
    if verdict is None:
        assert len(outcomes) > 1, "it waits although nothing can change"
    else:
        assert outcomes == {verdict.value}
        assert verdict.decided == (verdict.value is not None)
        check(verdict, members)


@given(st.dictionaries(st.integers(1, 7), st.sampled_from(VALUES)), st.integers(1, 7))
def test_verdict_always_exists_when_time_is_up(answers: dict[int, bytes | None], size: int) -> None:
    members = list(range(1, size + 1))
    verdict = tally_of(answers).verdict(members, time_is_up=True)
    assert verdict is not None
    check(verdict, members)
    if verdict.decided:
        assert 2 * verdict.votes >= size
        assert sum(2 * votes >= size for _, votes in verdict.tally) == 1
    else:
        assert sum(2 * votes >= size for _, votes in verdict.tally) in (0, 2)


def check(answer: QueryAnswer, members: list[int]) -> None:
    assert sorted((*answer.voters, *answer.missing, *answer.declined)) == members
    assert answer.members == len(members)
    assert sum(votes for _, votes in answer.tally) == len(answer.voters)


def test_half_of_the_members_decide_once_no_other_answer_can_reach_half() -> None:
    assert tally_of({1: b"a", 2: b"a"}).verdict([1, 2, 3, 4], time_is_up=False) is None
    decided = tally_of({1: b"a", 2: b"a", 3: b"b", 4: b"c"}).verdict([1, 2, 3, 4], time_is_up=False)
    assert decided is not None
    assert (decided.decided, decided.value, decided.votes) == (True, b"a", 2)
    early = tally_of({1: b"a", 2: b"a", 3: None}).verdict([1, 2, 3, 4], time_is_up=False)
    assert early is not None
    assert early.decided


def test_exact_tie_is_undecided_with_reason_tie() -> None:
    tie = tally_of({1: b"a", 2: b"b"}).verdict([1, 2], time_is_up=False)
    assert tie is not None
    assert (tie.decided, tie.value, tie.reason, tie.votes) == (False, None, "tie", 1)


def test_newest_answer_of_a_node_counts() -> None:
    tally = AnswerTally("q")
    assert tally.add(1, 1, b"old")
    assert tally.add(1, 2, b"new")
    assert not tally.add(1, 1, b"old")
    verdict = tally.verdict([1], time_is_up=False)
    assert verdict is not None
    assert verdict.value == b"new"


def test_answer_of_a_non_member_does_not_count() -> None:
    assert tally_of({8: b"a", 9: b"a", 1: b"a"}).verdict([1, 2, 3], time_is_up=False) is None


def answer(stage: Stage, partner: Partner, ask: object, value: bytes, number: int = 1) -> list[object]:
    content = payloads.put_response(Response(ask, number, True, value))  # type: ignore[arg-type]
    return stage.tell(partner, partner.message(MessageType.ANSWER, content, target=stage.own.identifier))


def test_current_membership_decides_a_query() -> None:
    stage, partners = Stage(), [Partner(number) for number in range(1, 5)]
    stage.meet(*partners)
    effects = stage.step(AskQuery(5, "colour", 60 * SECOND_NS))
    query = stage.said_of(effects, MessageType.QUERY)[0][1].id
    assert of(answer(stage, partners[0], query, b"red"), QueryDecided) == []
    assert of(answer(stage, partners[1], query, b"red"), QueryDecided) == []
    leave = partners[3].leave(partners[3].identifier, 1)
    stage.tell(partners[3], leave)
    [decided] = of(stage.wait(SECOND_NS), QueryDecided)
    assert decided.answer.members == 4
    assert decided.answer.value is None or decided.answer.votes >= 2
    assert set(decided.answer.voters) == {partners[0].identifier, partners[1].identifier}
    assert decided.answer.declined == (stage.own.identifier,)


def test_timeout_names_missing_members() -> None:
    stage, partner, silent = Stage(), Partner(1), Partner(2)
    stage.meet(partner, silent)
    effects = stage.step(AskQuery(5, "version", SECOND_NS))
    assert of(effects, QueryDecided) == []
    [decided] = of(stage.wait(SECOND_NS), QueryDecided)
    assert decided.call == 5
    assert decided.answer.reason == "timeout"
    assert sorted(decided.answer.missing) == sorted([partner.identifier, silent.identifier])


def test_single_node_answers_its_own_query() -> None:
    for question in ("version", "uptime", "members"):
        [decided] = of(Stage().step(AskQuery(1, question, SECOND_NS)), QueryDecided)
        assert decided.answer.decided


def test_unknown_question_is_declined_by_all() -> None:
    [decided] = of(Stage().step(AskQuery(1, "never heard of", SECOND_NS)), QueryDecided)
    assert (decided.answer.decided, decided.answer.reason, decided.answer.votes) == (False, "unknown", 0)


def test_application_answers_its_question_and_may_answer_again() -> None:
    stage, partner = Stage(), Partner(1)
    stage.meet(partner)
    stage.step(RegisterQuestion("load"))
    ask = partner.message(MessageType.QUERY, payloads.put_query(QueryPayload("load", b"cpu")))
    [questioned] = of(stage.tell(partner, ask), Questioned)
    assert (questioned.question, questioned.content, questioned.asker) == ("load", b"cpu", partner.identifier)
    numbers = []
    for value in (b"1", b"2"):
        effects = stage.step(GiveAnswer(questioned.query, value))
        [(told, message)] = stage.said_of(effects, MessageType.ANSWER)
        response = payloads.take_response(message.content)
        assert (told, response.value, response.query) == (partner, value, ask.id)
        numbers.append(response.number)
    assert numbers == [1, 2]


def test_question_is_declined_once_its_application_leaves() -> None:
    stage, partner = Stage(), Partner(1)
    stage.meet(partner)
    stage.step(RegisterQuestion("load"))
    asked = [partner.message(MessageType.QUERY, payloads.put_query(QueryPayload("load", b""))) for _ in range(3)]
    first, second = (of(stage.tell(partner, ask), Questioned)[0].query for ask in asked[:2])
    stage.step(GiveAnswer(first, b"1"))
    told = stage.said_of(stage.step(UnregisterQuestion("load")), MessageType.ANSWER)
    responses = [payloads.take_response(message.content) for _, message in told]
    assert responses == [Response(second, 0, False, b"")], "the other one was answered"
    [(_, late)] = stage.said_of(stage.tell(partner, asked[2]), MessageType.ANSWER)
    assert not payloads.take_response(late.content).known
    assert stage.said(stage.step(GiveAnswer(second, b"2"))) == []


def test_own_question_is_unknown_once_its_application_leaves() -> None:
    stage = Stage()
    stage.step(RegisterQuestion("load"))
    assert of(stage.step(AskQuery(1, "load", 60 * SECOND_NS)), QueryDecided) == []
    [decided] = of(stage.step(UnregisterQuestion("load")), QueryDecided)
    assert decided.answer.reason == "unknown"


def test_queries_above_the_bound_are_refused() -> None:
    stage = Stage(GossipSettings(queries_max=1))
    stage.meet(Partner(1))
    assert of(stage.step(AskQuery(1, "version", SECOND_NS)), QueryDecided) == []
    [refused] = of(stage.step(AskQuery(2, "version", SECOND_NS)), QueryDecided)
    assert refused.answer.reason == "refused"
