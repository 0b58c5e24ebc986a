"""Queries to the whole cluster, and the rule by which an answer is decided.

gossip.txt: tally "until more than, or including, half the nodes respond with the same answer", using the asker's most
current membership. With n members present, of whom m have not answered yet:

    2·votes > n             decided at once: no other answer can reach half
    2·votes = n             half suffices, but only if no other answer can also reach half: decided when
                            2·(votes of the second-best answer + m) < n, or at the time-out if no other has half
    two answers at half     undecided: tie
    2·(best votes + m) < n  undecided: split; no answer can reach half any more, so the query ends early
    … and no votes          undecided: unknown; the members that answered do not know the question
    the time is up          undecided: timeout

A node's newest answer replaces its earlier one. Answers of nodes that are not members (any more) do not count. The
answer "I do not know this question" counts as an answer, but not as a vote.

A decided query waits `late_answers_ns` for answers that are on their way. The result then lists a member as missing
only if it was silent, not if it was slightly slower than others. Late answers do not change the decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from chaplain.gossip import payloads
from chaplain.gossip.codec import Action, GossipMessage, MessageType
from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.events import AskQuery, EventId, GiveAnswer, QueryAnswer, QueryDecided, Questioned
from chaplain.gossip.payloads import QueryPayload, Response


class AnswerTally:
    """The answers to one question so far."""

    def __init__(self, question: str) -> None:
        self._question = question
        self._answers: dict[int, tuple[int, bytes | None]] = {}
        """By responder: the number and the value of its newest answer. The value is None if the responder does not know
        the question.
        """

    def add(self, responder: int, number: int, value: bytes | None) -> bool:
        """Add an answer. Returns False if the responder sent a newer one before."""
        held = self._answers.get(responder)
        if held is not None and held[0] >= number:
            return False
        self._answers[responder] = (number, value)
        return True

    def verdict(self, present: Sequence[int], *, time_is_up: bool) -> QueryAnswer | None:
        """The outcome among these members, or None while further answers may change it."""
        votes: Counter[bytes] = Counter()
        answered = 0
        for identifier in present:
            held = self._answers.get(identifier)
            if held is not None:
                answered += 1
                if held[1] is not None:
                    votes[held[1]] += 1
        ranked = sorted(votes.items(), key=lambda pair: (-pair[1], pair[0]))
        best = ranked[0][1] if ranked else 0
        rival = ranked[1][1] if len(ranked) > 1 else 0
        reason = _evaluate(len(present), best, rival, len(present) - answered, time_is_up)
        return None if reason is None else self._answer(present, tuple(ranked), reason)

    def _answer(self, present: Sequence[int], ranked: tuple[tuple[bytes, int], ...], reason: str) -> QueryAnswer:
        by_kind: dict[str, list[int]] = {"voters": [], "missing": [], "declined": []}
        for identifier in present:
            held = self._answers.get(identifier)
            kind = "missing" if held is None else "declined" if held[1] is None else "voters"
            by_kind[kind].append(identifier)
        decided = reason == ""
        return QueryAnswer(
            self._question,
            value=ranked[0][0] if decided else None,
            votes=ranked[0][1] if ranked else 0,
            members=len(present),
            decided=decided,
            voters=tuple(by_kind["voters"]),
            missing=tuple(by_kind["missing"]),
            declined=tuple(by_kind["declined"]),
            tally=ranked,
            reason=reason,
        )


def _evaluate(members: int, best: int, rival: int, missing: int, time_is_up: bool) -> str | None:
    """Return an empty text if the best answer is decided, the reason if it is undecided, None to wait."""
    assert best >= rival >= 0
    assert best + rival + missing <= members
    # The rules are those of the table in the module's docstring, in its order.
    if 2 * best > members:
        return ""
    if best and 2 * best == members:
        if 2 * rival == members:
            return "tie"
        return "" if time_is_up or 2 * (rival + missing) < members else None
    if 2 * (best + missing) < members or not missing:
        return "split" if best else "unknown"
    return "timeout" if time_is_up else None


class _OpenQuery:
    """A question of this node that is not finished."""

    __slots__ = ("call", "decided", "due_ns", "tally")

    def __init__(self, call: int, tally: AnswerTally, due_ns: int) -> None:
        self.call = call
        self.tally = tally
        self.due_ns = due_ns
        self.decided: QueryAnswer | None = None
        """The decision, while the query waits for late answers."""


class _PendingAnswer:
    """A question that our application was asked."""

    __slots__ = ("answers", "question", "until_ns")

    def __init__(self, question: str, until_ns: int) -> None:
        self.question = question
        self.until_ns = until_ns
        """The time after which answers are useless."""
        self.answers = 0
        """The number of answers that the application gave."""


class QueryService:
    def __init__(self, dissemination: Dissemination, built_in: dict[str, Callable[[], bytes]]) -> None:
        self._dissemination = dissemination
        self._built_in = built_in
        self._registered: dict[str, None] = {}
        self._open: dict[EventId, _OpenQuery] = {}
        self._to_answer: dict[EventId, _PendingAnswer] = {}
        """Questions that our application has to answer."""
        self._revision = 0

    def register(self, question: str) -> None:
        if not payloads.is_name(question):
            raise ValueError(f"a question has 1 to {payloads.NAME_BYTES_MAX} octets of UTF-8")
        if question in self._built_in:
            raise ValueError(f"{question!r} is a built-in question")
        if len(self._registered) >= self._dissemination.settings.questions_max and question not in self._registered:
            raise ValueError(f"an application answers at most {self._dissemination.settings.questions_max} questions")
        self._registered[question] = None

    def unregister(self, question: str) -> None:
        """No application answers this question any more: decline it for askers that wait for a first answer."""
        self._registered.pop(question, None)
        for query, pending in [pair for pair in self._to_answer.items() if pair[1].question == question]:
            del self._to_answer[query]
            if not pending.answers:
                self._decline(query)

    def ask(self, ask: AskQuery) -> None:
        settings = self._dissemination.settings
        too_big = len(ask.content) > settings.content_bytes_max
        if len(self._open) >= settings.queries_max or too_big or not payloads.is_name(ask.question):
            refused = QueryAnswer(
                ask.question, None, 0, len(self._dissemination.members), False, (), (), reason="refused"
            )
            self._dissemination.out.append(QueryDecided(ask.call, refused))
            return
        query = QueryPayload(ask.question, ask.content)
        message = self._dissemination.fire(
            MessageType.QUERY, payloads.put_query(query), action=Action.ANSWER, urgent=False
        )
        due_ns = self._dissemination.now_ns + min(ask.timeout_ns, settings.query_timeout_max_ns)
        self._open[message.id] = _OpenQuery(ask.call, AnswerTally(ask.question), due_ns)
        self._deliver(message.id, query)

    def on_answer_given(self, given: GiveAnswer) -> None:
        """Send the application's answer, if the question is still open."""
        pending = self._to_answer.get(given.query)
        if pending is None or len(given.value) > self._dissemination.settings.content_bytes_max:
            self._dissemination.counts["answers_unwanted"] += 1
            return
        pending.answers += 1
        self._respond(Response(given.query, pending.answers, True, given.value))

    def on_query(self, message: GossipMessage) -> None:
        self._deliver(message.id, payloads.take_query(message.content))

    def on_tick(self) -> None:
        """End questions whose time is up, and evaluate the others again if the membership changed."""
        now_ns = self._dissemination.now_ns
        changed = self._revision != self._dissemination.members.revision
        self._revision = self._dissemination.members.revision
        for query, held in list(self._open.items()):
            if changed or now_ns >= held.due_ns:
                self._decide(query, held)
        for query in [query for query, pending in self._to_answer.items() if now_ns >= pending.until_ns]:
            del self._to_answer[query]

    def due_ns(self) -> int | None:
        return min((held.due_ns for held in self._open.values()), default=None)

    def _deliver(self, query_id: EventId, query: QueryPayload) -> None:
        built_in = self._built_in.get(query.question)
        if built_in is not None:
            self._respond(Response(query_id, 1, True, built_in()))
        elif query.question in self._registered and len(self._to_answer) < self._dissemination.settings.queries_max:
            until_ns = self._dissemination.now_ns + self._dissemination.settings.query_timeout_max_ns
            self._to_answer[query_id] = _PendingAnswer(query.question, until_ns)
            self._dissemination.out.append(Questioned(query_id, query.question, query.content, query_id.origin))
        else:
            self._decline(query_id)

    def _decline(self, query_id: EventId) -> None:
        """Answer that this node does not know the question. Number 0: every real answer is newer."""
        self._respond(Response(query_id, 0, False, b""))

    def _respond(self, response: Response) -> None:
        if response.query.origin == self._dissemination.identifier:
            self.on_response(self._dissemination.identifier, response)
        else:
            content = payloads.put_response(response)
            self._dissemination.fire(MessageType.ANSWER, content, target=response.query.origin, urgent=False)

    def on_response(self, responder: int, response: Response) -> None:
        """Count an answer. Ignored if the question is finished or unknown."""
        held = self._open.get(response.query)
        if held is not None and held.tally.add(responder, response.number, response.value if response.known else None):
            self._decide(response.query, held)

    def _decide(self, query: EventId, held: _OpenQuery) -> None:
        now_ns = self._dissemination.now_ns
        answer = held.tally.verdict(self._dissemination.members.present, time_is_up=now_ns >= held.due_ns)
        if held.decided is not None and (answer is None or answer.value != held.decided.value):
            answer = held.decided  # a member changed its answer after the decision
        if answer is None:
            return
        if answer.decided and answer.missing and now_ns < held.due_ns:
            if held.decided is None:
                held.due_ns = min(held.due_ns, now_ns + self._dissemination.settings.late_answers_ns)
            held.decided = answer
            return
        del self._open[query]
        self._dissemination.out.append(QueryDecided(held.call, answer))
