"""chaplain: events in an order that can be proven, without a broker."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaplain.client.aio import AsyncClient as AsyncClient
    from chaplain.client.api.graph_calls import GraphEvent as GraphEvent
    from chaplain.client.sync import Client as Client
    from chaplain.client.types.journal import Message as Message
    from chaplain.client.types.journal import Receipt as Receipt
    from chaplain.client.types.results import Acknowledgement as Acknowledgement
    from chaplain.client.types.results import Answer as Answer
    from chaplain.client.types.results import Event as Event
    from chaplain.client.types.results import Member as Member
    from chaplain.client.types.results import MemberNews as MemberNews
    from chaplain.client.types.results import PoolMessage as PoolMessage
    from chaplain.client.types.results import Question as Question
    from chaplain.client.types.sql import Result as Result
    from chaplain.errors import Busy as Busy
    from chaplain.errors import ChaplainError as ChaplainError
    from chaplain.errors import Closed as Closed
    from chaplain.errors import ConfigError as ConfigError
    from chaplain.errors import DiskFull as DiskFull
    from chaplain.errors import Dropped as Dropped
    from chaplain.errors import Inaccessible as Inaccessible
    from chaplain.errors import Malformed as Malformed
    from chaplain.errors import Missing as Missing
    from chaplain.errors import Misused as Misused
    from chaplain.errors import NotExecutor as NotExecutor
    from chaplain.errors import Refused as Refused
    from chaplain.errors import StatementFailed as StatementFailed
    from chaplain.errors import StorageError as StorageError
    from chaplain.errors import Unknown as Unknown
    from chaplain.errors import Unproven as Unproven
    from chaplain.errors import Unreachable as Unreachable

__version__ = "0.1.0"

# Names are imported on first use: a tool that only reads segments needs neither sockets nor cryptography.
_HOMES = {
    "Client": "chaplain.client.sync",
    "AsyncClient": "chaplain.client.aio",
    "Acknowledgement": "chaplain.client.types.results",
    "Answer": "chaplain.client.types.results",
    "Event": "chaplain.client.types.results",
    "GraphEvent": "chaplain.client.api.graph_calls",
    "Member": "chaplain.client.types.results",
    "MemberNews": "chaplain.client.types.results",
    "Message": "chaplain.client.types.journal",
    "PoolMessage": "chaplain.client.types.results",
    "Question": "chaplain.client.types.results",
    "Receipt": "chaplain.client.types.journal",
    "Result": "chaplain.client.types.sql",
    **dict.fromkeys(
        (
            "Busy",
            "ChaplainError",
            "Closed",
            "ConfigError",
            "DiskFull",
            "Dropped",
            "Inaccessible",
            "Malformed",
            "Missing",
            "Misused",
            "NotExecutor",
            "Refused",
            "StatementFailed",
            "StorageError",
            "Unknown",
            "Unproven",
            "Unreachable",
        ),
        "chaplain.errors",
    ),
}

__all__ = [
    "Acknowledgement",
    "Answer",
    "AsyncClient",
    "Busy",
    "ChaplainError",
    "Client",
    "Closed",
    "ConfigError",
    "DiskFull",
    "Dropped",
    "Event",
    "GraphEvent",
    "Inaccessible",
    "Malformed",
    "Member",
    "MemberNews",
    "Message",
    "Missing",
    "Misused",
    "NotExecutor",
    "PoolMessage",
    "Question",
    "Receipt",
    "Refused",
    "Result",
    "StatementFailed",
    "StorageError",
    "Unknown",
    "Unproven",
    "Unreachable",
    "__version__",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'chaplain' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
