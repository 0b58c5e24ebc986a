"""Sessions are bounded by what the process may have open."""

from __future__ import annotations

import resource

import pytest

from chaplain.link.settings import SESSIONS_MAX
from chaplain.runtime import descriptors


@pytest.mark.parametrize(
    ("allowed", "sessions"),
    [(resource.RLIM_INFINITY, SESSIONS_MAX), (1 << 20, SESSIONS_MAX), (1024, 288), (200, descriptors.SESSIONS_MIN)],
)
def test_sessions_follow_from_descriptors(monkeypatch, allowed, sessions):
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (allowed, allowed))
    assert descriptors.sessions_for(strangers=192) == sessions


def test_all_are_taken_that_may_be_had():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
        descriptors.take_all()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
