"""A slice of the fuzzing that `make prove` does at length."""

import pytest

from tests.fuzz import runner
from tests.fuzz.runner import KEPT_FOR, Finding, feed, inputs, targets

TARGETS = targets()
INPUTS = 20_000
FEWER = {"node.target_client_wishes": 4_000, "journal.target_execute_pack": 8_000, "journal.target_execute": 10_000}
"""Targets that work for long on an input. The campaigns feed each of them a million inputs, as the others."""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_hostile_bytes_raise_only_allowed_errors(name):
    make, seeds = TARGETS[name]
    count = FEWER.get(name, INPUTS)
    assert feed(name, make, seeds, count) == count


def test_targets_with_fewer_inputs_exist():
    assert {*FEWER} <= {*TARGETS}


def test_generated_inputs_are_reproducible_and_varied():
    seeds = [b"abcdef", b"0123"]
    made = list(inputs("root", seeds, 500))
    assert made == list(inputs("root", seeds, 500))
    assert made != list(inputs("other", seeds, 500))
    assert len(made) == 500
    assert {b"", b"abcdef", b"0123", b"abcde", b"01"} <= set(made)
    assert len(set(made)) > 300


def test_finding_contains_a_command_to_reproduce_it():
    def target(data):
        if data.startswith(b"ab"):
            raise ValueError("no")

    said = r"toy input 1 of seed 0, first 0: ValueError\('no'\) for bytes.fromhex\('616263'\)"
    with pytest.raises(Finding, match=said):
        feed("toy", lambda: target, [b"abc"], 100)


def test_stateful_target_is_rebuilt_every_few_inputs():
    kept = []

    def make():
        kept.append([])
        return kept[-1].append

    assert feed("toy", make, [b"abc"], 5 * KEPT_FOR + 1) == 5 * KEPT_FOR + 1
    assert [len(one) for one in kept] == [KEPT_FOR] * 5 + [1]
    third = kept[2]
    kept.clear()
    assert feed("toy", make, [b"abc"], 3 * KEPT_FOR, first=2 * KEPT_FOR) == KEPT_FOR
    assert kept == [third]


def test_finding_in_a_stateful_target_names_its_first_input():
    def make():
        given = []

        def target(data):
            given.append(data)
            assert len(given) < 4

        return target

    with pytest.raises(Finding, match="toy input 3 of seed 7, first 0:"):
        feed("toy", make, [], 100, seed=7)
    with pytest.raises(Finding, match=f"toy input {KEPT_FOR + 3} of seed 7, first {KEPT_FOR}:"):
        feed("toy", make, [], 100, seed=7, first=KEPT_FOR)


def test_input_that_keeps_a_target_busy_is_a_finding(monkeypatch):
    monkeypatch.setattr(runner, "BUSY_S", 0.05)

    def target(data):
        while data.startswith(b"ab"):
            pass

    with pytest.raises(Finding, match=r"toy input 1 of seed 0, first 0: Busy\('busy for 0.05 s'\)"):
        feed("toy", lambda: target, [b"abc"], 100)
