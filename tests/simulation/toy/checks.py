"""Tests of the toy, for bugs that name tests instead of seeds."""

from random import Random

import pytest

from tests.simulation.toy.counter import Toy


def test_toy_has_names():
    assert Toy(Random(1)).names


@pytest.mark.skip(reason="shows what becomes of a bug whose tests are skipped")
def test_toy_is_skipped():
    raise AssertionError
