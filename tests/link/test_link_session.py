"""Sessions in good weather and after losses."""

from __future__ import annotations

import pytest
from link_stage import SECOND_NS, Stage, pair

from chaplain.core import Arrived, Flushed, Send
from chaplain.link.events import Forget, Introduce, Meet
from chaplain.link.greeting import GREETING_NODE


@pytest.mark.parametrize("seal", ["aes-256-gcm", "hmac-sha256"])
def test_two_nodes_talk(seal: str) -> None:
    stage, alice, bob = pair(seal=seal)
    for number in range(3):
        alice.say(bob, b"a%d" % number)
        bob.say(alice, b"b%d" % number)
    stage.settle()
    assert bob.heard() == [b"a0", b"a1", b"a2"]
    assert alice.heard() == [b"b0", b"b1", b"b2"]
    assert not alice.reports
    assert not bob.reports
