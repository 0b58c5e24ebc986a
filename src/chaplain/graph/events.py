"""Inputs and effects of the graph layer, in addition to those of every layer above gossip."""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Frozen, Halt, Persist, Report, Settled
from chaplain.gossip.layer_api import LayerInput
from chaplain.graph.storage.stored import EventPosition
from chaplain.link.auth.identity import verify
from chaplain.mesh.events import Whisper


class SignatureCheck(Frozen, frozen=True):
    """The question whether this key signed this message under this label."""

    key: bytes
    label: bytes
    message: bytes
    signature: bytes


def holds(check: SignatureCheck) -> bool:
    return verify(check.key, check.label, check.message, check.signature)


class CheckSignatures(Frozen, frozen=True):
    """Compute `holds` for each check on any thread, then answer with `SignaturesChecked`. Answers may arrive in any
    order.
    """

    ticket: int
    checks: tuple[SignatureCheck, ...]


class SignaturesChecked(Frozen, frozen=True):
    ticket: int
    results: tuple[bool, ...]


class ReadEvents(Frozen, frozen=True):
    """Read these events from the log, then answer with `EventsRead`."""

    token: int
    places: tuple[EventPosition, ...]


class EventsRead(Frozen, frozen=True):
    """The bytes of each event; empty bytes for an event that could not be read."""

    token: int
    raws: tuple[bytes, ...]


GraphInput: TypeAlias = LayerInput | SignaturesChecked | EventsRead
GraphEffect: TypeAlias = Whisper | Settled | Persist | Report | Halt | CheckSignatures | ReadEvents
