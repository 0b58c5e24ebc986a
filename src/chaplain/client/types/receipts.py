"""The receipts of one batch, created lazily: most receipts are never looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import overload

from msgspec.structs import force_setattr

from chaplain.client.types.journal import PLACE_UNKNOWN, Receipt, ReceiptOrigin
from chaplain.core import Frozen


class ReceiptSequence(Sequence[Receipt]):
    """An immutable sequence of receipts that compares equal to a list of them. Adding to it returns a list."""

    __slots__ = ("_origin", "_place")

    def __init__(self, place: ReceiptPlace, origin: ReceiptOrigin | None = None) -> None:
        self._place = place
        self._origin = origin

    def from_client(self, origin: ReceiptOrigin) -> ReceiptSequence:
        """The same receipts, which know their client."""
        return ReceiptSequence(self._place, origin)

    def __len__(self) -> int:
        return self._place.messages

    def __iter__(self) -> Iterator[Receipt]:
        return iter(self._some(range(len(self))))

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return self._some(range(len(self))[index])
        found = _one(self._place, range(len(self))[index])
        return found if self._origin is None else receipt_from(found, self._origin)

    def _some(self, numbers: range) -> list[Receipt]:
        """The receipts of these message numbers, from 0. Shared fields are looked up once."""
        place, count = self._place, len(numbers)
        unknown, together = place.base_offset == PLACE_UNKNOWN, place.requests == 1
        offsets = repeat(PLACE_UNKNOWN, count) if unknown else _shifted(numbers, place.base_offset)
        ids = repeat(place.first_id, count) if together else _shifted(numbers, place.first_id)
        stream, regime, index, timestamp_ns = place.stream, place.regime, place.index, place.timestamp_ns
        hash_, client_id = place.hash, place.client_id
        made = [
            Receipt(stream, offset, regime, index, timestamp_ns, hash_, client_id, message_id)
            for offset, message_id in zip(offsets, ids, strict=True)
        ]
        return made if self._origin is None else [receipt_from(one, self._origin) for one in made]

    def __add__(self, other: Iterable[Receipt]) -> list[Receipt]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Receipt]) -> list[Receipt]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReceiptSequence):
            return self._place == other._place
        return [*self] == other

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return repr([*self])


def receipt_from(receipt: Receipt, origin: ReceiptOrigin) -> Receipt:
    """The same receipt, which knows its client. Only for a receipt that no caller has yet, because it is changed."""
    force_setattr(receipt, "origin", origin)
    return receipt


def last_receipt(place: ReceiptPlace) -> Receipt:
    """The receipt of the last message of the batch."""
    return _one(place, place.messages - 1)


def _one(place: ReceiptPlace, number: int) -> Receipt:
    """The receipt of one message: as `_some`, without the cost of ranges."""
    return Receipt(
        place.stream,
        PLACE_UNKNOWN if place.base_offset == PLACE_UNKNOWN else place.base_offset + number,
        place.regime,
        place.index,
        place.timestamp_ns,
        place.hash,
        place.client_id,
        place.first_id if place.requests == 1 else place.first_id + number,
    )


def _shifted(numbers: range, by: int) -> range:
    return range(numbers.start + by, numbers.stop + by, numbers.step)


class ReceiptPlace(Frozen, frozen=True):
    """Position in the log of consecutive requests that one caller wrote together."""

    client_id: int
    first_id: int
    requests: int
    stream: str
    base_offset: int
    messages: int
    index: int = 0
    regime: int = 0
    timestamp_ns: int = 0
    hash: bytes = b""
