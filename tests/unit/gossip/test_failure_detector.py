"""Clocks of silence, one rule each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaplain.gossip.failure_detector import FailureDetector, Move
from chaplain.gossip.settings import GossipSettings
from chaplain.units import SECOND_NS

SETTINGS = GossipSettings()
T = SETTINGS.silence_ns
X = 7


def watching() -> FailureDetector:
    suspicion = FailureDetector(SETTINGS)
    suspicion.watch(X, 0)
    return suspicion


def test_silence_is_asked_about_at_t_again_every_quarter_and_believed_at_2t() -> None:
    suspicion = watching()
    assert suspicion.moves(T - 1) == []
    assert suspicion.moves(T) == [(Move.SUSPECT, X)]
    assert suspicion.moves(T + 1) == []
    assert suspicion.moves(T + T // 4) == [(Move.ASK, X)]
    assert suspicion.moves(2 * T - 1) == [(Move.ASK, X)]
    assert suspicion.moves(2 * T) == [(Move.LOSE, X)]


def test_a_broken_connection_is_suspected_at_once_and_lost_no_sooner() -> None:
    suspicion = watching()
    suspicion.heard(X, SECOND_NS)
    assert suspicion.broke(X, SECOND_NS)
    assert not suspicion.broke(X, SECOND_NS)
    moves = [suspicion.moves(now)[:1] for now in range(SECOND_NS, 2 * T + SECOND_NS, SECOND_NS)]
    assert [(Move.LOSE, X)] not in moves
    assert suspicion.moves(2 * T + SECOND_NS) == [(Move.LOSE, X)]


def test_being_heard_ends_suspicion() -> None:
    suspicion = watching()
    suspicion.moves(T)
    assert suspicion.heard(X, T + 1)
    assert suspicion.moves(2 * T) == []


def test_somebody_who_heard_it_lately_ends_suspicion_and_somebody_who_did_long_ago_moves_the_clock() -> None:
    suspicion = watching()
    suspicion.moves(T)
    assert not suspicion.vouched(X, SECOND_NS, T)
    assert suspicion.moves(2 * T) != [(Move.LOSE, X)]
    assert suspicion.moves(2 * T + SECOND_NS) == [(Move.LOSE, X)]
    suspicion = watching()
    suspicion.moves(T)
    assert suspicion.vouched(X, T - SECOND_NS, T)


def test_word_from_before_the_connection_broke_does_not_end_suspicion() -> None:
    suspicion = watching()
    suspicion.broke(X, 2 * SECOND_NS)
    assert not suspicion.vouched(X, SECOND_NS, 2 * SECOND_NS)
    assert suspicion.vouched(X, 3 * SECOND_NS, 3 * SECOND_NS)


def test_nobody_can_vouch_from_the_future() -> None:
    suspicion = watching()
    suspicion.vouched(X, 1000 * T, T)
    assert suspicion.known_ns(X) == T


def test_only_what_was_heard_here_is_passed_on() -> None:
    suspicion = watching()
    suspicion.vouched(X, T, T)
    assert suspicion.direct_age_ns(X, T) is None
    suspicion.heard(X, T)
    assert suspicion.direct_age_ns(X, T + 5) == 5


def test_anothers_word_is_believed_only_after_t_of_own_silence_and_half_of_it_asking() -> None:
    suspicion = watching()
    assert not suspicion.may_lose(X, 3 * T)
    suspicion.moves(T)
    assert not suspicion.may_lose(X, T + T // 4)
    assert suspicion.may_lose(X, T + T // 2)
    suspicion.vouched(X, T, T + T // 2)
    assert not suspicion.may_lose(X, T + T // 2)


def test_anothers_word_is_kept_until_it_can_be_believed() -> None:
    suspicion = watching()
    suspicion.moves(T)
    suspicion.accuse(X, T + 1, lost=True)
    assert suspicion.moves(T + T // 4) == [(Move.ASK, X)]
    assert suspicion.moves(T + T // 2) == [(Move.LOSE, X)]
    suspicion = watching()
    suspicion.moves(T)
    suspicion.accuse(X, T + 1, lost=True)
    suspicion.heard(X, T + 2)
    assert suspicion.moves(T + T // 2 + 2) == []


def test_a_slow_node_follows_the_others_as_soon_as_any() -> None:
    suspicion = watching()
    suspicion.slept(T, T)
    assert suspicion.moves(3 * T) == [(Move.SUSPECT, X)]
    assert suspicion.may_lose(X, 3 * T + T // 2)


def test_a_guest_is_lost_only_if_others_say_so() -> None:
    for told, move in ((False, Move.CLEAR), (True, Move.LOSE)):
        suspicion = FailureDetector(SETTINGS)
        assert suspicion.accuse(X, 0, lost=told)
        assert suspicion.moves(T - 1) == [(Move.ASK, X)]
        assert suspicion.moves(T) == [(move, X)]


def test_a_sleeper_blames_nobody_listens_and_takes_its_time() -> None:
    suspicion = watching()
    suspicion.heard(X, SECOND_NS)
    suspicion.slept(10 * T, 10 * T + SECOND_NS)
    assert suspicion.known_ns(X) == 10 * T + SECOND_NS
    assert suspicion.timeout_ns == 2 * T
    assert suspicion.moves(10 * T + SECOND_NS) == []
    assert suspicion.moves(12 * T + 2 * SECOND_NS) == [(Move.SUSPECT, X)]
    suspicion.moves(14 * T + 2 * SECOND_NS)
    assert suspicion.timeout_ns == T


@given(st.lists(st.tuples(st.sampled_from(["heard", "vouch", "tick", "broke"]), st.integers(1, 2 * T)), max_size=60))
def test_nobody_is_lost_within_2t_of_being_known(acts: list[tuple[str, int]]) -> None:
    suspicion, now_ns, known_ns = watching(), 0, 0
    for act, pause_ns in acts:
        now_ns += pause_ns
        if act == "heard":
            suspicion.heard(X, now_ns)
            known_ns = now_ns
        elif act == "vouch":
            suspicion.vouched(X, now_ns - T // 3, now_ns)
            known_ns = max(known_ns, now_ns - T // 3)
        elif act == "broke":
            suspicion.broke(X, now_ns)
        elif (Move.LOSE, X) in suspicion.moves(now_ns):
            assert now_ns - known_ns >= 2 * T
            return
