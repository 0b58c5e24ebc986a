"""What every protocol core is, and what passes between a node and its host.

A core decides; a host acts. A core never looks at a clock, socket, disk, thread or logger: time comes in as
integer nanoseconds, chance as a `random.Random` given at construction, everything else as an input. What the
core wants done comes back as effects, in the order they are to be performed.

Two hosts run the same node: the runtime (ZeroMQ, files) and the simulator (a made-up world). They agree on
nothing but this module.

Invariants every core keeps:
- equal inputs at equal times give equal effects (no order of a `set` ever becomes an order of effects);
- only `step` changes state; `deadline` reads it;
- a promise about durability follows a `Persisted` input, never a `Persist` effect.

Cores state their invariants with `assert`, and some of these protect agreed data. Importing this module fails where
Python drops assertions (`python -O`, `PYTHONOPTIMIZE`): nodes and clients alike import it.
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
        """Take one input at a time and answer with the effects it calls for."""
        ...

    def deadline(self) -> int | None:
        """When the core wants to be woken next, in nanoseconds, or None if only an input can change it."""
        ...


def soonest(due: Iterable[int | None]) -> int | None:
    """The first of these moments. A core is asked for its deadline after every step, so this is a plain loop."""
    first = None
    for when in due:
        if when is not None and (first is None or when < first):
            first = when
    return first


STATUS_STREAMS_MAX = 256
"""Streams of each kind that a node's status lists, so that making it takes bounded time. It says how many there are."""

Channel: TypeAlias = int | bytes
"""One direction of talk with someone: an `int` is a connection we dialled (the core chose the number), `bytes` is
the routing id of someone who dialled us."""


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """Base of all inputs, effects and messages: slotted, immutable, compared by value.

    Subclasses repeat `frozen=True` for the type checker's sake.
    """


# Inputs: what happened, in the past tense.


class Woken(Frozen, frozen=True):
    """The deadline has come."""


class Drained(Frozen, frozen=True):
    """Everything that was waiting has been stepped: form batches now. Comes once per wake-up of the host."""


class Serve(Frozen, frozen=True):
    """Serve the next request of a client, if one waits. The host says so before `Drained`, as often as it has time."""

    light: bool = False
    """Only of a client that caused little cost lately: the node is too busy for others."""


class Knocked(Frozen, frozen=True):
    """A stranger wants to be let in to our socket; answer with `Admit` or `Refuse` of the same request."""

    request: bytes
    name: bytes
    proof: bytes
    address: str


class Connected(Frozen, frozen=True):
    """The connection we dialled is up and has been admitted."""

    dial: int


class Disconnected(Frozen, frozen=True):
    """The channel is gone and will not come back under this name. Also follows a dial that never connected."""

    channel: Channel
    reason: str


class Arrived(Frozen, frozen=True):
    """One whole frame came in. Hostile until the seal is checked."""

    channel: Channel
    frame: bytes


class Flushed(Frozen, frozen=True):
    """So many bytes given to `Send` on this channel have left the host's queue."""

    channel: Channel
    size: int


class Heard(Frozen, frozen=True):
    """A datagram came in. Hostile until its MAC is checked."""

    address: str
    datagram: bytes


class Persisted(Frozen, frozen=True):
    """Everything in the `Persist` of this ticket, and in all before it, is on disk."""

    ticket: int


class PersistFailed(Frozen, frozen=True):
    """The disk refused. What of the ticket reached it is unknown, and asking again proves nothing."""

    ticket: int
    reason: str


class Stopping(Frozen, frozen=True):
    """The host was asked to end; say good-bye."""


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


# Operations on files, carried by `Persist`. Names are relative to the node's data directory.


class WriteAt(Frozen, frozen=True):
    file: str
    position: int
    data: bytes
    lazy: bool = False
    """`Persisted` need not wait for it: it outlives the process at once, the machine's power some time later."""


class Replace(Frozen, frozen=True):
    """The file holds exactly `data` afterwards, or what it held before: nothing between."""

    file: str
    data: bytes


class Rename(Frozen, frozen=True):
    file: str
    to: str


class Remove(Frozen, frozen=True):
    file: str


Operation: TypeAlias = WriteAt | Replace | Rename | Remove


# Calls of clients that a layer above gossip answers. Their bodies and payloads are that layer's own.


class Requested(Frozen, frozen=True):
    """A client of this node wants something; ends in `Settled` of the same call, or in `Withdrawn`."""

    call: int
    client: str
    body: bytes
    payload: bytes


class Withdrawn(Frozen, frozen=True):
    """Nobody waits for the call any more."""

    call: int


class Settled(Frozen, frozen=True):
    """The answer to a call. With a `kind`, for programs, and a `reason`, for people, it is a refusal."""

    call: int
    payload: bytes = b""
    kind: str = ""
    reason: str = ""


# Effects: what to do, in the imperative.


class Admit(Frozen, frozen=True):
    request: bytes
    user: str


class Refuse(Frozen, frozen=True):
    request: bytes
    reason: str


class Dial(Frozen, frozen=True):
    """Connect to the endpoint, showing this name and proof. Ends in `Connected` or `Disconnected`."""

    dial: int
    endpoint: str
    name: bytes
    proof: bytes


class HangUp(Frozen, frozen=True):
    """Forget the channel and what is queued on it; no `Disconnected` follows."""

    channel: Channel


class Send(Frozen, frozen=True):
    """Queue one frame. The host keeps the order and says how much has left with `Flushed`."""

    channel: Channel
    frame: bytes


class Cast(Frozen, frozen=True):
    """Send one datagram to everybody on the beacon's interface."""

    datagram: bytes


class Persist(Frozen, frozen=True):
    """Perform the operations in order, then sync. Ends in `Persisted` or `PersistFailed`."""

    ticket: int
    operations: tuple[Operation, ...]


class Report(Frozen, frozen=True):
    """Something a person should be able to see. `peer` names who caused it, if anyone did."""

    event: str
    peer: str = ""
    detail: Mapping[str, str | int] = {}


class Halt(Frozen, frozen=True):
    """Stop this node: going on would break a promise."""

    reason: str
    again: bool = False
    """Start it again at once: what it needs is on its disk now."""
    removed: bool = False
    """The cluster has let this node go: it says good-bye first, and is not to be started again."""


HostEffect: TypeAlias = Admit | Refuse | Dial | HangUp | Send | Cast | Persist | Report | Halt
