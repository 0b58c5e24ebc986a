"""Clocks of silence, one rule each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaplain.gossip.failure_detector import DetectorAction, FailureDetector
from chaplain.gossip.settings import GossipSettings
from chaplain.units import SECOND_NS

SETTINGS = GossipSettings()
T = SETTINGS.silence_ns
X = 7


def watching() -> FailureDetector:
    detector = FailureDetector(SETTINGS)
    detector.watch(X, 0)
    return detector


def test_silent_member_is_suspected_at_t_asked_about_every_quarter_and_lost_at_2t() -> None:
    detector = watching()
    assert detector.due_actions(T - 1) == []
    assert detector.due_actions(T) == [(DetectorAction.SUSPECT, X)]
    assert detector.due_actions(T + 1) == []
    assert detector.due_actions(T + T // 4) == [(DetectorAction.ASK, X)]
    assert detector.due_actions(2 * T - 1) == [(DetectorAction.ASK, X)]
    assert detector.due_actions(2 * T) == [(DetectorAction.LOSE, X)]


def test_broken_connection_is_suspected_at_once_and_lost_no_sooner() -> None:
    detector = watching()
    detector.on_heard(X, SECOND_NS)
    assert detector.on_disconnect(X, SECOND_NS)
    assert not detector.on_disconnect(X, SECOND_NS)
    moves = [detector.due_actions(now)[:1] for now in range(SECOND_NS, 2 * T + SECOND_NS, SECOND_NS)]
    assert [(DetectorAction.LOSE, X)] not in moves
    assert detector.due_actions(2 * T + SECOND_NS) == [(DetectorAction.LOSE, X)]


def test_suspicion_ends_when_the_member_is_heard() -> None:
    detector = watching()
    detector.due_actions(T)
    assert detector.on_heard(X, T + 1)
    assert detector.due_actions(2 * T) == []


def test_recent_vouching_ends_suspicion_and_older_vouching_moves_the_time() -> None:
    detector = watching()
    detector.due_actions(T)
    assert not detector.on_vouched(X, SECOND_NS, T)
    assert detector.due_actions(2 * T) != [(DetectorAction.LOSE, X)]
    assert detector.due_actions(2 * T + SECOND_NS) == [(DetectorAction.LOSE, X)]
    detector = watching()
    detector.due_actions(T)
    assert detector.on_vouched(X, T - SECOND_NS, T)


def test_vouching_from_before_the_disconnect_does_not_end_suspicion() -> None:
    detector = watching()
    detector.on_disconnect(X, 2 * SECOND_NS)
    assert not detector.on_vouched(X, SECOND_NS, 2 * SECOND_NS)
    assert detector.on_vouched(X, 3 * SECOND_NS, 3 * SECOND_NS)


def test_vouching_from_the_future_counts_as_now() -> None:
    detector = watching()
    detector.on_vouched(X, 1000 * T, T)
    assert detector.known_ns(X) == T


def test_only_directly_heard_times_are_passed_on() -> None:
    detector = watching()
    detector.on_vouched(X, T, T)
    assert detector.direct_age_ns(X, T) is None
    detector.on_heard(X, T)
    assert detector.direct_age_ns(X, T + 5) == 5


def test_leave_on_behalf_is_accepted_only_after_t_of_silence_and_half_of_t_asking() -> None:
    detector = watching()
    assert not detector.may_lose(X, 3 * T)
    detector.due_actions(T)
    assert not detector.may_lose(X, T + T // 4)
    assert detector.may_lose(X, T + T // 2)
    detector.on_vouched(X, T, T + T // 2)
    assert not detector.may_lose(X, T + T // 2)


def test_leave_on_behalf_is_remembered_until_it_can_be_believed() -> None:
    detector = watching()
    detector.due_actions(T)
    detector.accuse(X, T + 1, lost=True)
    assert detector.due_actions(T + T // 4) == [(DetectorAction.ASK, X)]
    assert detector.due_actions(T + T // 2) == [(DetectorAction.LOSE, X)]
    detector = watching()
    detector.due_actions(T)
    detector.accuse(X, T + 1, lost=True)
    detector.on_heard(X, T + 2)
    assert detector.due_actions(T + T // 2 + 2) == []


def test_paused_node_follows_a_leave_as_early_as_others() -> None:
    detector = watching()
    detector.on_pause(T, T)
    assert detector.due_actions(3 * T) == [(DetectorAction.SUSPECT, X)]
    assert detector.may_lose(X, 3 * T + T // 2)


def test_unheard_member_is_lost_only_if_others_say_so() -> None:
    for told, move in ((False, DetectorAction.CLEAR), (True, DetectorAction.LOSE)):
        detector = FailureDetector(SETTINGS)
        assert detector.accuse(X, 0, lost=told)
        assert detector.due_actions(T - 1) == [(DetectorAction.ASK, X)]
        assert detector.due_actions(T) == [(move, X)]


def test_paused_node_suspects_no_member_and_extends_its_timeout() -> None:
    detector = watching()
    detector.on_heard(X, SECOND_NS)
    detector.on_pause(10 * T, 10 * T + SECOND_NS)
    assert detector.known_ns(X) == 10 * T + SECOND_NS
    assert detector.timeout_ns == 2 * T
    assert detector.due_actions(10 * T + SECOND_NS) == []
    assert detector.due_actions(12 * T + 2 * SECOND_NS) == [(DetectorAction.SUSPECT, X)]
    detector.due_actions(14 * T + 2 * SECOND_NS)
    assert detector.timeout_ns == T


@given(st.lists(st.tuples(st.sampled_from(["heard", "vouch", "tick", "broke"]), st.integers(1, 2 * T)), max_size=60))
def test_no_member_is_lost_within_2t_of_being_known(acts: list[tuple[str, int]]) -> None:
    detector, now_ns, known_ns = watching(), 0, 0
    for act, pause_ns in acts:
        now_ns += pause_ns
        if act == "heard":
            detector.on_heard(X, now_ns)
            known_ns = now_ns
        elif act == "vouch":
            detector.on_vouched(X, now_ns - T // 3, now_ns)
            known_ns = max(known_ns, now_ns - T // 3)
        elif act == "broke":
            detector.on_disconnect(X, now_ns)
        elif (DetectorAction.LOSE, X) in detector.due_actions(now_ns):
            assert now_ns - known_ns >= 2 * T
            return
