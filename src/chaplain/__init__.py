"""chaplain: events in an order that can be proven, without a broker."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaplain.client.aio import AsyncClient as AsyncClient
    from chaplain.client.graph import GraphEvent as GraphEvent
    from chaplain.client.journal_results import Message as Message
    from chaplain.client.journal_results import Receipt as Receipt
    from chaplain.client.results import Answer as Answer
    from chaplain.client.results import Event as Event
    from chaplain.client.results import Member as Member
    from chaplain.client.results import PoolMessage as PoolMessage
    from chaplain.client.results import Question as Question
    from chaplain.client.sql_results import Result as Result
    from chaplain.client.sync import Client as Client

__version__ = "0.1.0"

# Imported when first used: a tool that only reads segments needs neither sockets nor cryptography.
_HOMES = {
    "Client": "chaplain.client.sync",
    "AsyncClient": "chaplain.client.aio",
    "Answer": "chaplain.client.results",
    "Event": "chaplain.client.results",
    "GraphEvent": "chaplain.client.graph",
    "Member": "chaplain.client.results",
    "Message": "chaplain.client.journal_results",
    "PoolMessage": "chaplain.client.results",
    "Question": "chaplain.client.results",
    "Receipt": "chaplain.client.journal_results",
    "Result": "chaplain.client.sql_results",
}

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Event",
    "GraphEvent",
    "Member",
    "Message",
    "PoolMessage",
    "Question",
    "Receipt",
    "Result",
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
