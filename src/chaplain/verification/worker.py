"""A worker process of `process_pool`: it verifies one task after the other, and returns the result of each.

    python -m chaplain.verification.worker DESCRIPTOR

The descriptor is a socket to the process that started it. The first frame is a `Setup`, every other one a `Task`, which
is answered with an `Outcome`. The worker ends when the socket is closed, so it does not outlive its parent for longer
than one task. It holds one record at a time.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from chaplain.core import Frozen
from chaplain.errors import ChaplainError
from chaplain.verification.batches import Keys
from chaplain.verification.chain_selection import SelectedMessage
from chaplain.verification.proof_segments import ProofSegment
from chaplain.verification.record_reader import check
from chaplain.verification.tree_check import LeafRange


class Setup(Frozen, frozen=True):
    """Settings that all tasks of a verification share."""

    keys: Keys | None
    siblings: tuple[str, ...]


class Task(Frozen, frozen=True):
    messages: list[SelectedMessage]
    signed: bool
    """Whether signatures are verified; see `plan.keys_of`."""
    leaf_range: LeafRange | None = None


class Outcome(Frozen, frozen=True):
    segment: ProofSegment | None = None
    """The result; None if the task failed."""
    error: str = ""
    kind: str = ""
    """The name of a class in `chaplain.errors`; empty if the error is a bug, and `error` its traceback."""


_setups = msgspec.msgpack.Decoder(Setup)
_tasks = msgspec.msgpack.Decoder(Task)


def serve(connection: Connection[Any, Any]) -> None:
    """Run tasks until the other side closes the connection."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        setup = _setups.decode(connection.recv_bytes())
        while True:
            task = _tasks.decode(connection.recv_bytes())
            connection.send_bytes(msgspec.msgpack.encode(_run(task, setup)))


def _run(task: Task, setup: Setup) -> Outcome:
    try:
        return Outcome(check(task.messages, setup.keys if task.signed else None, setup.siblings, task.leaf_range))
    except ChaplainError as error:
        return Outcome(error=str(error), kind=type(error).__name__)
    except Exception:
        return Outcome(error=traceback.format_exc())


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
