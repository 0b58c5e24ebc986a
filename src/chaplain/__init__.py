"""chaplain: events in an order that can be proven, without a broker."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaplain.client.aio import AsyncClient as AsyncClient
    from chaplain.client.graph import GraphEvent as GraphEvent
    from chaplain.client.journal_results import Message as Message
    from chaplain.client.journal_results import Receipt as Receipt
    from chaplain.client.results import Acknowledgement as Acknowledgement
    from chaplain.client.results import Answer as Answer
    from chaplain.client.results import Event as Event
    from chaplain.client.results import Member as Member
    from chaplain.client.results import MemberNews as MemberNews
    from chaplain.client.results import PoolMessage as PoolMessage
    from chaplain.client.results import Question as Question
    from chaplain.client.sql_results import Result as Result
    from chaplain.client.sync import Client as Client
    from chaplain.errors import Busy as Busy
    from chaplain.errors import ChaplainError as ChaplainError
    from chaplain.errors import Closed as Closed
    from chaplain.errors import ConfigError as ConfigError
    from chaplain.errors import DiskFull as DiskFull
    from chaplain.errors import Dropped as Dropped
    from chaplain.errors import Malformed as Malformed
    from chaplain.errors import Missing as Missing
    from chaplain.errors import Misused as Misused
    from chaplain.errors import NotExecutor as NotExecutor
    from chaplain.errors import Refused as Refused
    from chaplain.errors import StatementFailed as StatementFailed
    from chaplain.errors import StorageError as StorageError
    from chaplain.errors import Unknown as Unknown
    from chaplain.errors import Unreachable as Unreachable

__version__ = "0.1.0"

# Imported when first used: a tool that only reads segments needs neither sockets nor cryptography.
_HOMES = {
    "Client": "chaplain.client.sync",
    "AsyncClient": "chaplain.client.aio",
    "Acknowledgement": "chaplain.client.results",
    "Answer": "chaplain.client.results",
    "Event": "chaplain.client.results",
    "GraphEvent": "chaplain.client.graph",
    "Member": "chaplain.client.results",
    "MemberNews": "chaplain.client.results",
    "Message": "chaplain.client.journal_results",
    "PoolMessage": "chaplain.client.results",
    "Question": "chaplain.client.results",
    "Receipt": "chaplain.client.journal_results",
    "Result": "chaplain.client.sql_results",
    **dict.fromkeys(
        (
            "Busy",
            "ChaplainError",
            "Closed",
            "ConfigError",
            "DiskFull",
            "Dropped",
            "Malformed",
            "Missing",
            "Misused",
            "NotExecutor",
            "Refused",
            "StatementFailed",
            "StorageError",
            "Unknown",
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
