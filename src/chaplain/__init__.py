"""chaplain: events in an order that can be proven."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaplain.client.aio import AsyncClient as AsyncClient
    from chaplain.client.aio.consumer import AsyncConsumedMessage as AsyncConsumedMessage
    from chaplain.client.aio.consumer import AsyncConsumer as AsyncConsumer
    from chaplain.client.aio.cursor import AsyncCursor as AsyncCursor
    from chaplain.client.aio.graph import AsyncGraph as AsyncGraph
    from chaplain.client.aio.journal import AsyncJournal as AsyncJournal
    from chaplain.client.aio.journal import AsyncReader as AsyncReader
    from chaplain.client.aio.journal import AsyncWriter as AsyncWriter
    from chaplain.client.aio.listeners import AsyncListener as AsyncListener
    from chaplain.client.aio.listeners import AsyncMemberChannel as AsyncMemberChannel
    from chaplain.client.aio.listeners import AsyncPool as AsyncPool
    from chaplain.client.aio.sequence import AsyncSequenceStream as AsyncSequenceStream
    from chaplain.client.aio.sql import AsyncSql as AsyncSql
    from chaplain.client.api.graph_calls import GraphEvent as GraphEvent
    from chaplain.client.api.sequence_calls import Published as Published
    from chaplain.client.api.sequence_calls import SequenceEvent as SequenceEvent
    from chaplain.client.sync import Client as Client
    from chaplain.client.sync.consumer import ConsumedMessage as ConsumedMessage
    from chaplain.client.sync.consumer import Consumer as Consumer
    from chaplain.client.sync.cursor import Cursor as Cursor
    from chaplain.client.sync.graph import Graph as Graph
    from chaplain.client.sync.journal import Journal as Journal
    from chaplain.client.sync.journal import Reader as Reader
    from chaplain.client.sync.journal import Writer as Writer
    from chaplain.client.sync.listeners import Listener as Listener
    from chaplain.client.sync.listeners import MemberChannel as MemberChannel
    from chaplain.client.sync.listeners import Pool as Pool
    from chaplain.client.sync.sequence import SequenceStream as SequenceStream
    from chaplain.client.sync.sql import Sql as Sql
    from chaplain.client.types.codecs import Codec as Codec
    from chaplain.client.types.consumers import ConsumerRecord as ConsumerRecord
    from chaplain.client.types.journal import Message as Message
    from chaplain.client.types.journal import Receipt as Receipt
    from chaplain.client.types.results import Acknowledgement as Acknowledgement
    from chaplain.client.types.results import Answer as Answer
    from chaplain.client.types.results import Delivery as Delivery
    from chaplain.client.types.results import Event as Event
    from chaplain.client.types.results import Member as Member
    from chaplain.client.types.results import MemberMessage as MemberMessage
    from chaplain.client.types.results import MemberNews as MemberNews
    from chaplain.client.types.results import PoolMessage as PoolMessage
    from chaplain.client.types.results import Question as Question
    from chaplain.client.types.sql import Result as Result
    from chaplain.embedded import EmbeddedClient as EmbeddedClient
    from chaplain.embedded import open as open  # noqa: A004  part of the public API
    from chaplain.errors import Busy as Busy
    from chaplain.errors import ChaplainError as ChaplainError
    from chaplain.errors import Closed as Closed
    from chaplain.errors import ConfigError as ConfigError
    from chaplain.errors import DiskFull as DiskFull
    from chaplain.errors import Dropped as Dropped
    from chaplain.errors import Forbidden as Forbidden
    from chaplain.errors import Inaccessible as Inaccessible
    from chaplain.errors import LeaseLost as LeaseLost
    from chaplain.errors import Malformed as Malformed
    from chaplain.errors import Missing as Missing
    from chaplain.errors import Misused as Misused
    from chaplain.errors import NotExecutor as NotExecutor
    from chaplain.errors import Refused as Refused
    from chaplain.errors import StatementFailed as StatementFailed
    from chaplain.errors import StorageError as StorageError
    from chaplain.errors import Undecodable as Undecodable
    from chaplain.errors import Unknown as Unknown
    from chaplain.errors import Unproven as Unproven
    from chaplain.errors import Unreachable as Unreachable

__version__ = "0.1.0"

_NAMES = {
    "chaplain.client.aio": ("AsyncClient",),
    "chaplain.client.aio.consumer": ("AsyncConsumedMessage", "AsyncConsumer"),
    "chaplain.client.aio.cursor": ("AsyncCursor",),
    "chaplain.client.aio.graph": ("AsyncGraph",),
    "chaplain.client.aio.journal": ("AsyncJournal", "AsyncReader", "AsyncWriter"),
    "chaplain.client.aio.listeners": ("AsyncListener", "AsyncMemberChannel", "AsyncPool"),
    "chaplain.client.aio.sequence": ("AsyncSequenceStream",),
    "chaplain.client.aio.sql": ("AsyncSql",),
    "chaplain.client.api.graph_calls": ("GraphEvent",),
    "chaplain.client.api.sequence_calls": ("Published", "SequenceEvent"),
    "chaplain.client.sync": ("Client",),
    "chaplain.client.sync.consumer": ("ConsumedMessage", "Consumer"),
    "chaplain.client.sync.cursor": ("Cursor",),
    "chaplain.client.sync.graph": ("Graph",),
    "chaplain.client.sync.journal": ("Journal", "Reader", "Writer"),
    "chaplain.client.sync.listeners": ("Listener", "MemberChannel", "Pool"),
    "chaplain.client.sync.sequence": ("SequenceStream",),
    "chaplain.client.sync.sql": ("Sql",),
    "chaplain.client.types.codecs": ("Codec",),
    "chaplain.client.types.consumers": ("ConsumerRecord",),
    "chaplain.client.types.journal": ("Message", "Receipt"),
    "chaplain.client.types.results": (
        "Acknowledgement",
        "Answer",
        "Delivery",
        "Event",
        "Member",
        "MemberMessage",
        "MemberNews",
        "PoolMessage",
        "Question",
    ),
    "chaplain.client.types.sql": ("Result",),
    "chaplain.embedded": ("EmbeddedClient", "open"),
    "chaplain.errors": (
        "Busy",
        "ChaplainError",
        "Closed",
        "ConfigError",
        "DiskFull",
        "Dropped",
        "Forbidden",
        "Inaccessible",
        "LeaseLost",
        "Malformed",
        "Missing",
        "Misused",
        "NotExecutor",
        "Refused",
        "StatementFailed",
        "StorageError",
        "Undecodable",
        "Unknown",
        "Unproven",
        "Unreachable",
    ),
}
"""The public names by the module that defines them."""

# Names are imported on first use: a tool that only reads segments needs neither sockets nor cryptography.
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "Acknowledgement",
    "Answer",
    "AsyncClient",
    "AsyncConsumedMessage",
    "AsyncConsumer",
    "AsyncCursor",
    "AsyncGraph",
    "AsyncJournal",
    "AsyncListener",
    "AsyncMemberChannel",
    "AsyncPool",
    "AsyncReader",
    "AsyncSequenceStream",
    "AsyncSql",
    "AsyncWriter",
    "Busy",
    "ChaplainError",
    "Client",
    "Closed",
    "Codec",
    "ConfigError",
    "ConsumedMessage",
    "Consumer",
    "ConsumerRecord",
    "Cursor",
    "Delivery",
    "DiskFull",
    "Dropped",
    "EmbeddedClient",
    "Event",
    "Forbidden",
    "Graph",
    "GraphEvent",
    "Inaccessible",
    "Journal",
    "LeaseLost",
    "Listener",
    "Malformed",
    "Member",
    "MemberChannel",
    "MemberMessage",
    "MemberNews",
    "Message",
    "Missing",
    "Misused",
    "NotExecutor",
    "Pool",
    "PoolMessage",
    "Published",
    "Question",
    "Reader",
    "Receipt",
    "Refused",
    "Result",
    "SequenceEvent",
    "SequenceStream",
    "Sql",
    "StatementFailed",
    "StorageError",
    "Undecodable",
    "Unknown",
    "Unproven",
    "Unreachable",
    "Writer",
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
