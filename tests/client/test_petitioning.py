"""Whom a client asks for changes of the cluster, and what it does when that one is not the one to ask."""

from __future__ import annotations

from random import Random

from chaplain.client.petitioning import OTHERS_NS, PAUSE_NS, Petitioning
from chaplain.journal.client_messages import Decided, Failed
from chaplain.journal.config_message import NO_ACL, LeaseLane
from chaplain.link.identity import Identity

NOW_NS = 10**18
REFUSED = Failed(1, "not_config", "this node takes no requests about nodes")


class Outlets:
    """Sessions with nodes: one that refuses, and maybe, later, another."""

    def __init__(self) -> None:
        self.chosen, self.acl, self.cluster, self.full = "first", NO_ACL, "made-up", ""
        self.other = ""
        self.answers: list = []

    def rotate(self) -> bool:
        if self.other:
            self.chosen = self.other
        return bool(self.other)

    def ask(self, make, answer, payload) -> int:
        self.answers.append(answer)
        return len(self.answers)

    def forget(self, call: int) -> None:
        pass


def asked() -> tuple[Outlets, Petitioning, list[Decided]]:
    outlets, told = Outlets(), []
    petitioning = Petitioning(outlets, Identity(b"i" * 32), Random(1))  # type: ignore[arg-type]
    petitioning.submit(NOW_NS, LeaseLane(NO_ACL), lambda now_ns, decided: told.append(decided))
    return outlets, petitioning, told


def test_who_is_refused_before_another_session_is_open_goes_there_when_it_is() -> None:
    outlets, petitioning, told = asked()
    outlets.answers[-1](NOW_NS, REFUSED, b"")
    assert not told
    petitioning.woken(NOW_NS + PAUSE_NS)
    assert len(outlets.answers) == 2
    outlets.other = "second"
    outlets.answers[-1](NOW_NS + PAUSE_NS, REFUSED, b"")
    petitioning.moved(NOW_NS + PAUSE_NS)
    assert (outlets.chosen, len(outlets.answers), told) == ("second", 3, [])


def test_who_has_no_other_session_in_time_is_told_why() -> None:
    outlets, petitioning, told = asked()
    outlets.answers[-1](NOW_NS, REFUSED, b"")
    petitioning.woken(NOW_NS + OTHERS_NS)
    outlets.answers[-1](NOW_NS + OTHERS_NS, REFUSED, b"")
    assert [(one.kind, one.reason) for one in told] == [("not_config", REFUSED.reason)]
