"""Receipts for writers: sent to the sessions that use a lane on this node, after the message was executed here.

Decides the answer to each verdict, and which sessions get it. Does not decide verdicts. A session subscribes to a lane
when it writes on it or asks for its state. The receipts come from this node, even if another node ordered the request.

Invariants: only a decided request gets a receipt: it was applied, or its conditions did not hold and it never will be
applied. The requests of one run have contiguous ids and offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from chaplain.journal.messages.client import AlreadyWritten, GoBack, NodeMessage, NotWritten, Receipts, Run
from chaplain.journal.model.reason import CONDITIONAL, REASONS, kind_of
from chaplain.journal.model.receipts import run_of
from chaplain.journal.model.records import LogPosition
from chaplain.journal.model.results import AppliedMessage, DataVerdict, PackVerdict
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.layout import NO_OFFSET

_WITH_RECEIPT = (Reason.APPLIED, Reason.DUPLICATE, Reason.COMMITTED, *CONDITIONAL)


def refusal(pack: PackVerdict) -> NotWritten:
    kind, why = kind_of(pack.reason), REASONS[pack.reason]
    return NotWritten(pack.client_id, pack.first_id, pack.requests, kind, why, pack.expected_id)


def _fresh_run(position: LogPosition, pack: PackVerdict) -> Run:
    return Run(
        pack.client_id,
        pack.first_id,
        pack.requests,
        pack.stream,
        pack.base_offset,
        0 if pack.reason in CONDITIONAL else pack.messages,
        position.index,
        position.regime,
        position.timestamp_ns,
        position.hash,
        pack.reason if pack.reason in CONDITIONAL else 0,
    )


class LaneSubscriptions:
    """Sessions by lane."""

    def __init__(self) -> None:
        self._lanes: dict[int, list[bytes]] = {}
        self._instances: dict[bytes, list[int]] = {}

    def subscribe(self, instance: bytes, client_id: int) -> None:
        subscribers = self._lanes.setdefault(client_id, [])
        if instance not in subscribers:
            subscribers.append(instance)
            self._instances.setdefault(instance, []).append(client_id)

    def unsubscribe(self, instance: bytes) -> None:
        for client_id in self._instances.pop(instance, []):
            self._lanes[client_id].remove(instance)
            if not self._lanes[client_id]:
                del self._lanes[client_id]

    def answers(self, executed: AppliedMessage) -> Iterator[tuple[bytes, NodeMessage]]:
        """Receipts and refusals for one cluster message, in order for each client."""
        waiting: dict[bytes, list[Run]] = {}
        for pack in _packs(executed):
            for instance in self._lanes.get(pack.client_id, ()):
                runs = waiting.setdefault(instance, [])
                if pack.reason in _WITH_RECEIPT and not _has_no_offset(pack):
                    _extend(runs, _run(executed.position, pack))
                    continue
                if runs:
                    yield instance, Receipts(tuple(runs))
                    runs.clear()
                yield instance, _void_answer(pack)
        for instance, runs in waiting.items():
            if runs:
                yield instance, Receipts(tuple(runs))


def _packs(executed: AppliedMessage) -> Sequence[PackVerdict]:
    entries = executed.verdict.entries
    if len(entries) == 1 and isinstance(entries[0], DataVerdict):
        return entries[0].packs
    return [pack for entry in entries if isinstance(entry, DataVerdict) for pack in entry.packs]


def _run(position: LogPosition, pack: PackVerdict) -> Run:
    if pack.original is not None:
        return run_of(pack.client_id, pack.original)
    assert pack.reason in _WITH_RECEIPT, "a receipt for something that was not applied"
    return _fresh_run(position, pack)


def _extend(runs: list[Run], run: Run) -> None:
    """Add a run, or merge it into the last one if it continues that."""
    last = runs[-1] if runs else None
    if (
        last is not None
        and (last.client_id, last.stream, last.index) == (run.client_id, run.stream, run.index)
        and not last.refusal
        and not run.refusal
        and last.first_id + last.requests == run.first_id
        and last.base_offset + last.messages == run.base_offset
    ):
        requests, messages = last.requests + run.requests, last.messages + run.messages
        runs[-1] = msgspec.structs.replace(last, requests=requests, messages=messages)
    else:
        runs.append(run)


def _has_no_offset(pack: PackVerdict) -> bool:
    """True if the pack was accepted before, and has no offset yet (a staged or committed two-phase write)."""
    return pack.original is not None and pack.original.base_offset == NO_OFFSET


def _void_answer(pack: PackVerdict) -> NodeMessage:
    if pack.reason is Reason.STAGED or _has_no_offset(pack):
        return AlreadyWritten(pack.client_id, pack.first_id + pack.requests - 1)
    if pack.reason is Reason.OLD:
        return AlreadyWritten(pack.client_id, pack.expected_id - 1)
    if pack.reason is Reason.GAP:
        return GoBack(pack.client_id, pack.expected_id)
    return refusal(pack)
