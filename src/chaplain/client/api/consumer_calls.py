"""Calls about named consumers as data: commands to send, and how to read the state."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chaplain.client.api import conditions, journal_calls
from chaplain.client.api.calls import PreparedCall, reader
from chaplain.client.protocol.consumers.state import ConsumerPage, ConsumerState
from chaplain.client.protocol.journal.batch_builder import BatchBuilder
from chaplain.client.protocol.journal.events import AskCommand, Batch, WriteCommand
from chaplain.client.types.consumers import ConsumerRecord
from chaplain.client.types.journal import Receipt
from chaplain.client.types.receipts import ReceiptPlace
from chaplain.journal.messages.client import AskConsumers
from chaplain.journal.messages.consumer import (
    CONSUMER,
    HEADER,
    Acknowledge,
    Command,
    Finish,
    encode,
    encode_header,
)
from chaplain.segment.headers import encode_headers

_page = reader(ConsumerPage)


def batch_of(stream: str, commands: Sequence[Command]) -> Batch:
    """The commands as one batch."""
    builder = BatchBuilder()
    for command in commands:
        builder.add(encode(command))
    return msgspec.structs.replace(builder.batch(stream), message_type=CONSUMER)


def tell(stream: str, commands: Sequence[Command]) -> PreparedCall[ReceiptPlace]:
    """Execute commands. The place in the log has the number of refused commands in place of an offset."""
    batch = batch_of(stream, commands)
    return PreparedCall(lambda call, timeout_ns: WriteCommand(call, batch, timeout_ns), _as_it_is)


def state(stream: str, name: str, token: int = 0) -> PreparedCall[tuple[int, ConsumerState | None]]:
    """The state of one consumer, with the index of the last cluster message that the node has executed."""

    def read(payload: bytes) -> tuple[int, ConsumerState | None]:
        page = _page(payload)
        return page.index, page.consumers[0] if page.consumers else None

    question = AskConsumers(0, stream, name, token)
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, question, timeout_ns), read)


def page(stream: str, after: tuple[str, str]) -> PreparedCall[ConsumerPage]:
    question = AskConsumers(0, stream, after=after)
    return PreparedCall(lambda call, timeout_ns: AskCommand(call, question, timeout_ns), _page)


def record_of(described: ConsumerState) -> ConsumerRecord:
    return ConsumerRecord(**{field: getattr(described, field) for field in ConsumerRecord.__struct_fields__})


def writing(batch: Batch, stream: str, command: Acknowledge | Finish) -> PreparedCall[Receipt]:
    """Write a batch of one message only if the acknowledgement counts."""
    return journal_calls.write_one(conditions.with_acknowledgement(batch, {HEADER: encode_header(stream, command)}))


def with_acknowledgement(batch: Batch, stream: str, command: Acknowledge | Finish) -> Batch:
    """Statements that are executed only if the acknowledgement counts."""
    cell = encode_headers({HEADER: encode_header(stream, command)})
    headers = (cell, *[None] * (len(batch.values) - 1))
    return msgspec.structs.replace(batch, headers=headers, size_bytes=batch.size_bytes + len(cell))


def _as_it_is(place: ReceiptPlace) -> ReceiptPlace:
    return place
