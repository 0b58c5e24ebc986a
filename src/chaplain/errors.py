"""The errors a user of chaplain may meet. Each message says what happened and what to do."""

from __future__ import annotations

ASSERTIONS_OFF = (
    "chaplain does not run with assertions switched off, because they protect agreed data: start Python without -O, "
    "and without PYTHONOPTIMIZE in its environment"
)
"""The error for a program that is started that way."""


class ChaplainError(Exception):
    """Base of all errors raised on purpose."""


class Malformed(ChaplainError, ValueError):
    """Bytes that do not follow their format. Decoders raise nothing else, whatever they are given."""


class Misused(ChaplainError, ValueError, TypeError):
    """A call was given something of a wrong type or out of range; nothing was sent. Both of Python's words catch it."""


class ConfigError(ChaplainError):
    """A setting is missing, unknown or out of range."""


class Refused(ChaplainError):
    """The other side would not talk to us, and said why."""


class NotExecutor(Refused):
    """No node that this client may ask executes statements."""


class Unreachable(ChaplainError):
    """Nobody who could answer was reached in time."""


class StorageError(ChaplainError):
    """The disk failed, or holds something that must not be overwritten."""


class Unknown(ChaplainError):
    """The connection was lost between a request and its answer: it may or may not have happened.

    What is no write to the journal has happened within 6 s of being sent, or it never will.
    """

    def __init__(self, reason: str = "", id: tuple[int, int] | None = None) -> None:  # noqa: A002 the surface's name
        super().__init__(reason)
        self.id = id
        """Of a write to the journal: what `resolve` wants."""


class StatementFailed(Refused):
    """A statement was executed and failed: its transaction changed nothing, on any node.

    Without a `result` it was not even ordered: a node that is reserved for this client found out before.
    """

    def __init__(self, reason: str = "", kind: str = "error", result: object = None) -> None:
        super().__init__(reason)
        self.kind = kind
        """For programs: refused, limit, constraint or error."""
        self.result = result


class Missing(ChaplainError, LookupError):
    """There is no such stream, offset or client."""


class Dropped(Missing):
    """The offset was dropped to keep the log small; the message names the first one that is kept."""


class DiskFull(ChaplainError):
    """Nodes have no room for more, and say which: nothing of this request is written. Reading goes on."""


class Busy(ChaplainError):
    """More was asked for than the bound allows; nothing of this request was sent."""


class Closed(ChaplainError):
    """The client was closed, or belongs to the process before a fork."""
