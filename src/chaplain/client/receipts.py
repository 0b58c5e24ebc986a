"""The receipts of what was written together: one a message, made when somebody looks at it, for most are never seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import overload

from chaplain.client.journal_events import Place
from chaplain.client.journal_results import PLACE_UNKNOWN, Receipt


class Receipts(Sequence[Receipt]):
    """Like a list of them, and equal to one, but never changed: what is added to it makes a list."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    def __len__(self) -> int:
        return self._place.messages

    def __iter__(self) -> Iterator[Receipt]:
        place, count = self._place, self._place.messages
        offset, first_id = place.base_offset, place.first_id
        offsets = repeat(offset, count) if offset == PLACE_UNKNOWN else range(offset, offset + count)
        ids = repeat(first_id, count) if place.requests == 1 else range(first_id, first_id + count)
        stream, regime, index, timestamp_ns = place.stream, place.regime, place.index, place.timestamp_ns
        hash_, client_id = place.hash, place.client_id
        return iter(
            [
                Receipt(stream, offset, regime, index, timestamp_ns, hash_, client_id, message_id)
                for offset, message_id in zip(offsets, ids, strict=True)
            ]
        )

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self._at(number) for number in range(len(self))[index]]
        return self._at(range(len(self))[index])

    def _at(self, number: int) -> Receipt:
        place = self._place
        offset = PLACE_UNKNOWN if place.base_offset == PLACE_UNKNOWN else place.base_offset + number
        message_id = place.first_id if place.requests == 1 else place.first_id + number
        moment = (place.regime, place.index, place.timestamp_ns, place.hash)
        return Receipt(place.stream, offset, *moment, place.client_id, message_id)

    def __add__(self, other: Iterable[Receipt]) -> list[Receipt]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Receipt]) -> list[Receipt]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Receipts):
            return self._place == other._place
        return [*self] == other

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return repr([*self])
