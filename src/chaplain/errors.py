"""The errors that a user of chaplain may meet. Each message says what happened and what to do.

Some also inherit from the built-in exception that a program may expect. `Unknown` does not: programs repeat a call that
ends in a `ConnectionError` or a `TimeoutError`, but a write with an unknown outcome must not be repeated without its
id.
"""

from __future__ import annotations

ASSERTIONS_OFF = (
    "chaplain does not run with assertions switched off, because they protect agreed data: start Python without -O, "
    "and without PYTHONOPTIMIZE in its environment"
)
"""The error for a program that starts Python without assertions."""


PYARROW_MISSING = "pyarrow is not installed: pip install 'chaplain[tables]'"


class ChaplainError(Exception):
    """Base of all errors that chaplain raises on purpose."""


class Malformed(ChaplainError, ValueError):
    """Bytes that do not follow their format. Decoders raise no other error, whatever their input."""


class Undecodable(ChaplainError, ValueError):
    """The codec of a journal cannot decode a message. The reader continues; `raw` has the message's bytes."""


class Unproven(ChaplainError):
    """A proof or a checkpoint is wrong, or lacks the signatures that a policy demands."""


class Misused(ChaplainError, ValueError, TypeError):
    """An argument has a wrong type or is out of range; nothing was sent. Both `ValueError` and `TypeError` catch it."""


class ConfigError(ChaplainError):
    """A setting is missing, unknown or out of range."""


class Refused(ChaplainError):
    """The other side refused the request and gave a reason."""


class Forbidden(Refused, PermissionError):
    """The client lacks a right: an admin can grant it."""


class LeaseLost(Refused):
    """The lease of a consumed message ended before it was acknowledged: another worker has it, or will get it."""


class NotExecutor(Refused):
    """None of the nodes that this client may use executes statements."""


class Unreachable(ChaplainError, ConnectionError, TimeoutError):
    """No node that could answer was reached in time."""


class StorageError(ChaplainError):
    """The disk failed, or contains data that must not be overwritten."""


class Inaccessible(StorageError):
    """A file or directory cannot be opened or read, so nothing is known about its content.

    It is not damage: a verification that cannot read a file must not report it as whole or as broken.
    """


class Unknown(ChaplainError):
    """The connection was lost between a request and its answer: the request may or may not have taken effect.

    A request that is not a journal write takes effect within 6 s of being sent, or never.
    """

    def __init__(self, reason: str = "", id: tuple[int, int] | None = None) -> None:  # noqa: A002 the surface's name
        super().__init__(reason)
        self.id = id
        """The id of a journal write, for `resolve`; None for other requests."""


class StatementFailed(Refused):
    """A statement was executed and failed: its transaction changed nothing, on any node.

    Without a `result` the statement was not ordered: a node reserved for this client found the error in a dry run.
    """

    def __init__(self, reason: str = "", kind: str = "error", result: object = None) -> None:
        super().__init__(reason)
        self.kind = kind
        """For programs: refused, limit, constraint or error."""
        self.result = result


class Missing(ChaplainError, LookupError):
    """There is no such stream, offset or client."""


class Dropped(Missing):
    """Retention deleted the offset; the message names the first offset that is retained."""


class DiskFull(ChaplainError):
    """The nodes that the message names have no disk space left. Nothing of this request was written; reads work."""


class Busy(ChaplainError):
    """The request exceeds a bound; nothing of it was sent."""


class Closed(ChaplainError):
    """The client was closed, or belongs to the parent process of a fork."""
