"""Whom a client asks for changes of the cluster, and what it does when that one is not the one to ask."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

from chaplain.client.protocol.journal.config_requests import OTHER_NODE_WAIT_NS, PAUSE_NS, ConfigRequestClient
from chaplain.journal.messages import config
from chaplain.journal.messages.client import Decided, Failed
from chaplain.journal.messages.config import NO_ACL, ConfigMessage, LeaseLane
from chaplain.journal.messages.membership import NewSet
from chaplain.link.auth.identity import Identity

NOW_NS = 10**18
FIRST = b"f" * 16
LEASE = LeaseLane(b"a" * 15)
REFUSED = Failed(1, "not_config", "this node takes no requests about nodes")


class NodeSelector:
    """Sessions with nodes: one that refuses, and maybe, later, another."""

    def __init__(self) -> None:
        self.chosen, self.acl, self.cluster, self.disk_full_reason = SimpleNamespace(epoch=FIRST), NO_ACL, "made-up", ""
        self.other: SimpleNamespace | None = None
        self.sent: list[bytes] = []
        self.answers: list = []

    def rotate(self) -> bool:
        if self.other:
            self.chosen = self.other
        return self.other is not None

    def request(self, make, answer, payload) -> int:
        self.sent.append(payload)
        self.answers.append(answer)
        return len(self.answers)

    def forget(self, call: int) -> None:
        pass


def asked(message: ConfigMessage = LEASE) -> tuple[NodeSelector, ConfigRequestClient, list[Decided]]:
    selector, told = NodeSelector(), []
    config_requests = ConfigRequestClient(selector, Identity(b"i" * 32), Random(1))  # type: ignore[arg-type]
    config_requests.submit(NOW_NS, message, lambda now_ns, decided: told.append(decided))
    return selector, config_requests, told


def expire(selector: NodeSelector, now_ns: int = NOW_NS, epoch: bytes = b"l" * 16) -> None:
    """The node answers that the last copy expired, and names the current epoch."""
    assert selector.chosen is not None
    selector.chosen.epoch = epoch
    selector.answers[-1](now_ns, Decided(1, "expired", "sign it again", 0, NO_ACL, 0, epoch), b"")


def test_refused_config_request_is_sent_to_another_session_once_it_opens() -> None:
    selector, config_requests, told = asked()
    selector.answers[-1](NOW_NS, REFUSED, b"")
    assert not told
    config_requests.on_timer(NOW_NS + PAUSE_NS)
    assert len(selector.answers) == 2
    selector.other = SimpleNamespace(epoch=FIRST)
    selector.answers[-1](NOW_NS + PAUSE_NS, REFUSED, b"")
    config_requests.on_switched(NOW_NS + PAUSE_NS)
    assert (len(selector.answers), told) == (3, [])
    assert selector.chosen is selector.other


def test_refused_config_request_without_another_session_fails_with_the_reason() -> None:
    selector, config_requests, told = asked()
    selector.answers[-1](NOW_NS, REFUSED, b"")
    config_requests.on_timer(NOW_NS + OTHER_NODE_WAIT_NS)
    selector.answers[-1](NOW_NS + OTHER_NODE_WAIT_NS, REFUSED, b"")
    assert [(one.kind, one.reason) for one in told] == [("not_config", REFUSED.reason)]


def decoded(selector: NodeSelector, message: ConfigMessage = LEASE) -> list[config.ConfigRequest]:
    kind, stage = config.entry_type_of(message), config.stage_of(message)
    return [config.decode(kind, stage, data) for data in selector.sent]


def test_expired_petition_is_signed_again_in_the_epoch_that_the_answer_names() -> None:
    selector, _, told = asked()
    expire(selector)
    first, second = decoded(selector)
    assert (first.epoch, second.epoch) == (FIRST, b"l" * 16)
    assert config.request_name(first) == config.request_name(second), "it is the same request"
    assert not told


def test_petition_that_expires_again_is_signed_after_a_pause() -> None:
    selector, config_requests, _ = asked()
    expire(selector)
    expire(selector)
    assert len(selector.sent) == 2
    config_requests.on_timer(NOW_NS + PAUSE_NS)
    assert len(selector.sent) == 3


def test_change_of_nodes_is_signed_again_if_its_only_copy_expired() -> None:
    selector, _, told = asked(NewSet((1, 2)))
    expire(selector)
    assert len({one.epoch for one in decoded(selector, NewSet((1, 2)))}) == 2
    assert not told


def test_change_of_nodes_is_not_signed_again_if_another_copy_may_have_been_granted() -> None:
    selector, config_requests, told = asked(NewSet((1, 2)))
    config_requests.on_switched(NOW_NS)
    expire(selector)
    assert len(selector.sent) == 2
    (decided,) = told
    assert decided.kind == "expired"
    assert "may have been granted" in decided.reason
