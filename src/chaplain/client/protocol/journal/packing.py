"""Turn batches into signed packs.

Decides which batches share a pack: consecutive ones for the same stream, up to a size. Works on whole columns: the only
operation per message takes its length. Knows nothing of lanes but the ids it is given.

Invariant: a batch is in one pack only, and the order of batches is the order of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeAlias

from chaplain.client.protocol.journal.events import Batch
from chaplain.client.protocol.journal.signer import PackSigner
from chaplain.journal.messages.consumer import COMMANDS_BYTES_MAX, COMMANDS_MAX, CONSUMER
from chaplain.journal.messages.signing import SLOT_BYTES
from chaplain.journal.messages.write_request import REQUEST_ID_MAX
from chaplain.segment.pack import Pack, encode_pack

PACK_BYTES = 512 * 1024
"""Batches are combined up to this size; a larger batch gets a pack of its own."""
PACK_MESSAGES = 8192
"""Batches are combined up to this number of messages."""
PACK_HEAD_BYTES = 256
"""Upper bound of the size of a pack's head."""
MESSAGE_BYTES = 16
"""Upper bound of what a message takes in a pack in addition to its own bytes."""
REQUEST_BYTES_MAX = 4 * 1024 * 1024 - 64 * 1024
"""A larger batch is refused: the cluster accepts packs of up to 4 MiB, and the ingest message around the pack must fit
into a record.
"""


def packed_bytes(batch: Batch) -> int:
    """Upper bound of the size of a pack that contains only this batch."""
    return PACK_HEAD_BYTES + batch.size_bytes + MESSAGE_BYTES * len(batch.values)


def choose(waiting: Iterable[Batch], requests_max: int, bytes_max: int = PACK_BYTES) -> int:
    """How many of the waiting batches go into the next pack; 0 if too few ids are left for the first."""
    count = messages = size_bytes = requests = 0
    kind: tuple[str, int, bool] | None = None
    for batch in waiting:
        number = len(batch.values)
        messages += number
        size_bytes += packed_bytes(batch)
        requests += 1 if batch.transaction else number
        kind = kind or batch.pack_kind
        if batch.message_type == CONSUMER:
            fits = size_bytes <= min(bytes_max, COMMANDS_BYTES_MAX) and messages <= COMMANDS_MAX
        else:
            fits = size_bytes <= bytes_max and messages <= PACK_MESSAGES
        fits = fits and batch.pack_kind == kind
        if (count and not fits) or requests > requests_max:
            break
        count += 1
    return count


def make_pack(client_id: int, first_id: int, batches: Sequence[Batch], signer: PackSigner) -> bytes:
    """One signed pack of these batches, which are for one stream."""
    batch = batches[0]
    values, keys, headers, counts = _one(batch) if len(batches) == 1 else _together(batches)
    assert first_id + (len(values) if counts is None else len(counts)) - 1 <= REQUEST_ID_MAX
    kind = signer.type
    pack = Pack(
        client_id=client_id,
        first_id=first_id,
        values=values,
        keys=keys,
        headers=headers,
        request_counts=counts,
        message_type=batch.message_type,
        signature_type=kind,
        signature=bytes(SLOT_BYTES[kind]),
        isolated=batch.isolated,
    )
    return signer.sign(encode_pack(pack), batch.stream)


_Column: TypeAlias = tuple[bytes | None, ...] | None
_Columns: TypeAlias = tuple[tuple[bytes, ...], _Column, _Column, tuple[int, ...] | None]
"""Values, keys, headers, and the number of messages of each request. All but the values may be None."""


def _one(batch: Batch) -> _Columns:
    values = tuple(batch.values)
    keys = None if batch.keys is None else tuple(batch.keys)
    headers = None if batch.headers is None else tuple(batch.headers)
    return values, keys, headers, (len(values),) if batch.transaction and len(values) > 1 else None


def _together(batches: Sequence[Batch]) -> _Columns:
    assert all(batch.pack_kind == batches[0].pack_kind for batch in batches)
    values = tuple(chain.from_iterable(batch.values for batch in batches))
    keys = _column([batch.keys for batch in batches], batches)
    headers = _column([batch.headers for batch in batches], batches)
    return values, keys, headers, _counts(batches)


def _column(columns: Sequence[Sequence[bytes | None] | None], batches: Sequence[Batch]) -> _Column:
    """One column over all batches; None if no batch has it."""
    if all(column is None for column in columns):
        return None
    pairs = zip(columns, batches, strict=True)
    return tuple(
        chain.from_iterable([None] * len(batch.values) if column is None else column for column, batch in pairs)
    )


def _counts(batches: Sequence[Batch]) -> tuple[int, ...] | None:
    """The number of messages of each request; None if each request has one."""
    if not any(batch.transaction and len(batch.values) > 1 for batch in batches):
        return None
    counts = ((len(batch.values),) if batch.transaction else (1,) * len(batch.values) for batch in batches)
    return tuple(chain.from_iterable(counts))
