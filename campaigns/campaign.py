"""Defines a campaign: a list of pieces, each of seconds to minutes, which can run in any process and in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Report:
    done: dict[str, int] = field(default_factory=dict)
    """Counters, which are added up over all pieces."""
    findings: list[str] = field(default_factory=list)
    """Violations, one line each. An empty list is a success."""
    times_s: dict[str, list[float]] = field(default_factory=dict)
    """Durations in seconds, by name. The result contains their quantiles."""


@dataclass(frozen=True)
class Campaign:
    name: str
    about: str
    pieces: Callable[[bool], list[str]]
    """Returns the names of all pieces; with True, of a quick selection."""
    run: Callable[[str], Report]
    loads: str = ""
    """A statement that imports all code that the campaign runs. It is empty if the campaign starts nodes, which run all
    code."""
