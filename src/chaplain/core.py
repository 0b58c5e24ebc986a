"""The interface of every protocol core, and the inputs and effects that pass between a node and its host.

A core decides and a host acts. A core never reads a clock, socket, disk, thread or logger. It receives the time as
integer nanoseconds, randomness as a `random.Random` at construction, and everything else as an input. It returns
effects in the order in which the host must perform them.

Two hosts run the same node: the runtime (ZeroMQ, files) and the simulator (a modelled network and disk). They share
only this module.

Invariants of every core:
- equal inputs at equal times return equal effects (the order of a `set` never determines the order of effects);
- only `step` changes state; `deadline` reads it;
- a core promises durability after a `Persisted` input, never after a `Persist` effect.

Cores state their invariants with `assert`, and some of these protect agreed data. Importing this module fails when
Python drops assertions (`python -O`, `PYTHONOPTIMIZE`), because nodes and clients both import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from chaplain.errors import ASSERTIONS_OFF

if not __debug__:
    raise ImportError(ASSERTIONS_OFF)

I_contra = TypeVar("I_contra", contravariant=True)
E = TypeVar("E")


class Core(Protocol[I_contra, E]):
    """A pure state machine."""

    def step(self, now_ns: int, event: I_contra, /) -> list[E]:
        """Process one input and return the effects that it requires."""
        ...

    def deadline(self) -> int | None:
        """Return the time of the next wake-up in nanoseconds, or None if only an input can change the core's state."""
        ...


def soonest(due: Iterable[int | None]) -> int | None:
    """Return the earliest of these times. A plain loop: the host asks every core for its deadline after every step."""
    first = None
    for when in due:
        if when is not None and (first is None or when < first):
            first = when
    return first


STATUS_STREAMS_MAX = 256
"""A node's status lists at most this many streams of each kind, to bound its cost. It also gives their number."""

Channel: TypeAlias = int | bytes
"""One connection. An `int` names a connection that this node dialled (the core chose the number). `bytes` is the
ROUTER's routing id of a connection that the peer dialled."""


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """Base of all inputs, effects and messages: slotted, immutable, compared by value.

    Subclasses repeat `frozen=True` because the type checker needs it.
    """


# Inputs report what happened. Their names are in the past tense.


class Woken(Frozen, frozen=True):
    """The time that `deadline` returned has come."""


class Drained(Frozen, frozen=True):
    """The core has processed all waiting inputs and now forms batches. The host sends it once for each wake-up."""


class Serve(Frozen, frozen=True):
    """Serve the next waiting client request, if there is one. Sent before `Drained`, as often as the host has time."""

    light: bool = False
    """True: only a request of a client that caused little cost lately, because the node is too busy for the others."""


class Knocked(Frozen, frozen=True):
    """An unauthenticated peer asks ZAP for admission. The core answers `Admit` or `Refuse` for the same request."""

    request: bytes
    name: bytes
    proof: bytes
    address: str


class Connected(Frozen, frozen=True):
    """The connection that this node dialled is up, and the peer has admitted it."""

    dial: int


class Disconnected(Frozen, frozen=True):
    """The channel has ended, and its name is not reused. The host also sends this for a dial that never connected."""

    channel: Channel
    reason: str


class Arrived(Frozen, frozen=True):
    """One whole frame was received. It is untrusted until the session has checked its seal."""

    channel: Channel
    frame: bytes


class Flushed(Frozen, frozen=True):
    """`size` bytes of earlier `Send` effects on this channel have left the host's queue."""

    channel: Channel
    size: int


class Heard(Frozen, frozen=True):
    """A UDP datagram was received. It is untrusted until the core has checked its MAC."""

    address: str
    datagram: bytes


class Persisted(Frozen, frozen=True):
    """Everything in the `Persist` of this ticket, and in all earlier ones, is on disk."""

    ticket: int


class PersistFailed(Frozen, frozen=True):
    """A write or sync failed. How much of the ticket is on disk is unknown, and a second fsync would prove nothing."""

    ticket: int
    reason: str


class Stopping(Frozen, frozen=True):
    """The host was asked to stop the node; the core says good-bye to its peers."""


HostInput: TypeAlias = (
    Woken
    | Drained
    | Serve
    | Knocked
    | Connected
    | Disconnected
    | Arrived
    | Flushed
    | Heard
    | Persisted
    | PersistFailed
    | Stopping
)


# File operations in a `Persist`. Names are relative to the node's data directory.


class WriteAt(Frozen, frozen=True):
    file: str
    position: int
    data: bytes
    lazy: bool = False
    """`Persisted` does not wait for the sync of this write. The written data survives a crash of the process at once,
    and a power loss only after a later sync.
    """


class Replace(Frozen, frozen=True):
    """Replace the content atomically: after a crash the file has `data` or its previous content, never a mixture."""

    file: str
    data: bytes


class Rename(Frozen, frozen=True):
    file: str
    to: str


class Remove(Frozen, frozen=True):
    file: str


Operation: TypeAlias = WriteAt | Replace | Rename | Remove


# Client calls that a layer above gossip answers. That layer defines their bodies and payloads.


class Requested(Frozen, frozen=True):
    """A client of this node makes a call. It ends with a `Settled` of the same number, or with `Withdrawn`."""

    call: int
    client: str
    body: bytes
    payload: bytes


class Withdrawn(Frozen, frozen=True):
    """The client no longer waits for the call."""

    call: int


class Settled(Frozen, frozen=True):
    """The answer to a call. A refusal has a `kind`, for programs, and a `reason`, for people."""

    call: int
    payload: bytes = b""
    kind: str = ""
    reason: str = ""


# Effects tell the host what to do. Their names are imperatives.


class Admit(Frozen, frozen=True):
    request: bytes
    user: str


class Refuse(Frozen, frozen=True):
    request: bytes
    reason: str


class Dial(Frozen, frozen=True):
    """Connect to the endpoint with this ZAP user name and proof. Ends in `Connected` or `Disconnected`."""

    dial: int
    endpoint: str
    name: bytes
    proof: bytes


class HangUp(Frozen, frozen=True):
    """Close the channel and discard its queue. No `Disconnected` follows."""

    channel: Channel


class Send(Frozen, frozen=True):
    """Queue one frame. The host preserves the order and reports flushed bytes with `Flushed`."""

    channel: Channel
    frame: bytes


class Cast(Frozen, frozen=True):
    """Broadcast one datagram on the beacon's interface."""

    datagram: bytes


class Persist(Frozen, frozen=True):
    """Perform the operations in order, then sync. The host answers with `Persisted` or `PersistFailed`."""

    ticket: int
    operations: tuple[Operation, ...]


class Report(Frozen, frozen=True):
    """An event for the operator's log. `peer` names the peer that caused it, if one did."""

    event: str
    peer: str = ""
    detail: Mapping[str, str | int] = {}


class Halt(Frozen, frozen=True):
    """Stop this node, because continuing would break a guarantee."""

    reason: str
    again: bool = False
    """Restart the node at once: what it needs is on its disk now."""
    removed: bool = False
    """The cluster removed this node. It says good-bye first and must not be restarted."""


HostEffect: TypeAlias = Admit | Refuse | Dial | HangUp | Send | Cast | Persist | Report | Halt
