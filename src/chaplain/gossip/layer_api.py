"""The inputs and effects of every layer above gossip. The node routes them."""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import (
    Drained,
    Halt,
    Persist,
    Persisted,
    PersistFailed,
    Report,
    Requested,
    Settled,
    Stopping,
    Withdrawn,
    Woken,
)
from chaplain.gossip.events import GossipParcel, MemberChanged
from chaplain.link.events import Meet
from chaplain.mesh.events import Entered, Exited, Whisper

UpperInput: TypeAlias = (
    Woken
    | Drained
    | Stopping
    | Entered
    | Exited
    | MemberChanged
    | GossipParcel
    | Requested
    | Withdrawn
    | Persisted
    | PersistFailed
)
"""Tickets are the layer's own. `Entered` and `Exited` are about nodes, never about clients."""
UpperEffect: TypeAlias = Whisper | Meet | Settled | Persist | Report | Halt
