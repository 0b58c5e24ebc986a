"""A slice of the fuzzing that `make prove` does at length."""

import pytest
from runner import Finding, feed, inputs, targets

TARGETS = targets()
INPUTS = 20_000


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_hostile_bytes(name):
    target, seeds = TARGETS[name]
    assert feed(name, target, seeds, INPUTS) == INPUTS


def test_inputs_are_the_same_again_and_hold_seeds_beginnings_and_more():
    seeds = [b"abcdef", b"0123"]
    made = list(inputs("root", seeds, 500))
    assert made == list(inputs("root", seeds, 500))
    assert made != list(inputs("other", seeds, 500))
    assert len(made) == 500
    assert {b"", b"abcdef", b"0123", b"abcde", b"01"} <= set(made)
    assert len(set(made)) > 300


def test_a_finding_says_how_to_see_it_again():
    def target(data):
        if data.startswith(b"ab"):
            raise ValueError("no")

    with pytest.raises(Finding, match=r"toy input 1 of seed 0: ValueError\('no'\) for bytes.fromhex\('616263'\)"):
        feed("toy", target, [b"abc"], 100)
