"""What passes between the graph and its node, beside what every layer above gossip takes and gives."""

from __future__ import annotations

from typing import TypeAlias

from chaplain.core import Frozen, Halt, Persist, Report, Settled
from chaplain.gossip.layer_api import UpperInput
from chaplain.graph.storage.stored import EventPosition
from chaplain.link.auth.identity import verify
from chaplain.mesh.events import Whisper


class SignatureCheck(Frozen, frozen=True):
    """Whether this key signed this message for this purpose."""

    key: bytes
    label: bytes
    message: bytes
    signature: bytes


def holds(check: SignatureCheck) -> bool:
    return verify(check.key, check.label, check.message, check.signature)


class CheckSignatures(Frozen, frozen=True):
    """Compute `holds` of each, anywhere, and answer with `SignaturesChecked`. Answers may come in any order."""

    ticket: int
    checks: tuple[SignatureCheck, ...]


class SignaturesChecked(Frozen, frozen=True):
    ticket: int
    results: tuple[bool, ...]


class ReadEvents(Frozen, frozen=True):
    """Read these events from the log, and answer with `EventsRead`."""

    token: int
    places: tuple[EventPosition, ...]


class EventsRead(Frozen, frozen=True):
    """Each event's bytes, or none for one that could not be read."""

    token: int
    raws: tuple[bytes, ...]


GraphInput: TypeAlias = UpperInput | SignaturesChecked | EventsRead
GraphEffect: TypeAlias = Whisper | Settled | Persist | Report | Halt | CheckSignatures | ReadEvents
