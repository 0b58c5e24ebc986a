"""Tests of the toy, for bugs that name tests instead of seeds."""

from random import Random

from toy_counter import Toy


def test_toy_has_names():
    assert Toy(Random(1)).names
