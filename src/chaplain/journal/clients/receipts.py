"""Answers to writers: in runs, to whoever attends the lane at this node, after the message was executed here.

Decides what a client is told about each verdict and to whom. Refuses to decide verdicts. A client attends a lane when
it writes on it or asks for it; whichever node ordered the request, the answer comes from here.

Invariants: a receipt is given for what was applied and for nothing else; requests in one run are contiguous in ids and
in offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from chaplain.journal.messages.client import AlreadyWritten, GoBack, NodeMessage, NotWritten, Receipts, Run
from chaplain.journal.model.records import AppliedRequest, LogPosition
from chaplain.journal.model.results import AppliedMessage, DataVerdict, PackVerdict
from chaplain.journal.storage.verdict import Reason
from chaplain.segment.layout import NO_OFFSET

REASONS = {
    Reason.UNKNOWN_LANE: "no such lane: lease a new one",
    Reason.REMOVED: "this client was removed: ask an admin to add it again under a new key",
    Reason.COMPROMISED: "two different requests were signed for one id: the key is in other hands; make a new identity",
    Reason.FENCED: "the lane is fenced: nothing more is written on it; lease a new one",
    Reason.MALFORMED: "the request does not follow its format",
    Reason.SIGNATURE: "the pack is damaged or its signature is not that of the lane's identity",
    Reason.NO_RIGHT: "this client may not write to this stream: ask an admin for the right",
    Reason.STREAMS_FULL: "the cluster has as many streams as it may have: write to one that is there",
    Reason.TOO_LARGE: "the pack is larger than the cluster takes: make smaller ones",
    Reason.NOT_STAGED: "not everything that is to be committed is staged: it expired, or never was; stage it again",
    Reason.STAGED_FULL: "too much is staged and not committed: commit some, or wait until some has expired",
    Reason.TRANSACTIONS_FULL: "as many apps commit batches as may: use one that is there",
    Reason.UNKNOWN_TYPE: "the petition does not follow its format",
    Reason.UNKNOWN_SIGNER: "nobody active has this ACL id: is the client added, and not removed?",
    Reason.NOT_ALLOWED: "only an admin may do this to others",
    Reason.NAME_TAKEN: "another client has this name: choose another, or remove it first",
    Reason.KEY_TAKEN: "another client has this key: each needs its own",
    Reason.LANES_FULL: "too many lanes are in use: release some, or wait",
    Reason.IDENTITIES_FULL: "the cluster has as many identities as it may have",
    Reason.UNKNOWN_CLIENT: "there is no such client",
    Reason.BAD_SECRET: "the key or the wrapped secret does not fit the signature type",
    Reason.LAST_ADMIN: "it is the only admin, and without one nobody can be let in: add another with --admin first",
    Reason.EXPIRED: "it was signed too many messages ago, or in an epoch that there never was: sign it again",
    Reason.CHANGE_UNDER_WAY: "another change of these nodes is under way: `cluster status` shows its stage",
    Reason.UNKNOWN_NODE: "there is no such node, or it was removed: `member add` lets one in",
    Reason.NODE_TAKEN: "this node id was given before, and ids are never given again: choose another",
    Reason.ROLE_HELD: "the node has this role already",
    Reason.ROLE_MISSING: "the node does not have this role",
    Reason.NEEDED: "it is the last one in this role: give the role to another node first",
    Reason.NOT_DUE: "this stage is not due",
    Reason.BAD_ADDRESS: "a node's address is tcp://address:port",
    Reason.INDEX_ONLY: "serializers are index-only here: a node holds data or it serializes, and stays with that",
}


_WITH_RECEIPT = (Reason.APPLIED, Reason.DUPLICATE, Reason.COMMITTED)


def kind_of(reason: Reason) -> str:
    """For programs."""
    return reason.name.lower()


def run_of(client_id: int, remembered: AppliedRequest) -> Run:
    """The receipt of something that was applied before."""
    moment = remembered.moment
    return Run(
        client_id,
        remembered.first_id,
        remembered.requests,
        remembered.stream,
        remembered.base_offset,
        remembered.messages,
        moment.index,
        moment.regime,
        moment.timestamp_ns,
        moment.hash,
    )


def answer_of(client_id: int, remembered: AppliedRequest) -> Receipts | AlreadyWritten:
    """What to say again about something that was taken before; what is staged lies nowhere yet."""
    if remembered.base_offset == NO_OFFSET:
        return AlreadyWritten(client_id, remembered.last_id)
    return Receipts((run_of(client_id, remembered),))


def refusal(pack: PackVerdict) -> NotWritten:
    kind, why = kind_of(pack.reason), REASONS[pack.reason]
    return NotWritten(pack.client_id, pack.first_id, pack.requests, kind, why, pack.expected_id)


def _fresh_run(moment: LogPosition, pack: PackVerdict) -> Run:
    return Run(
        pack.client_id,
        pack.first_id,
        pack.requests,
        pack.stream,
        pack.base_offset,
        pack.messages,
        moment.index,
        moment.regime,
        moment.timestamp_ns,
        moment.hash,
    )


class LaneSubscriptions:
    """Who wants to hear about which lane."""

    def __init__(self) -> None:
        self._lanes: dict[int, list[bytes]] = {}
        self._instances: dict[bytes, list[int]] = {}

    def attend(self, instance: bytes, client_id: int) -> None:
        attending = self._lanes.setdefault(client_id, [])
        if instance not in attending:
            attending.append(instance)
            self._instances.setdefault(instance, []).append(client_id)

    def leave(self, instance: bytes) -> None:
        for client_id in self._instances.pop(instance, []):
            self._lanes[client_id].remove(instance)
            if not self._lanes[client_id]:
                del self._lanes[client_id]

    def answers(self, executed: AppliedMessage) -> Iterator[tuple[bytes, NodeMessage]]:
        """Everything there is to say about one cluster message, in order for each client."""
        waiting: dict[bytes, list[Run]] = {}
        for pack in _packs(executed):
            for instance in self._lanes.get(pack.client_id, ()):
                runs = waiting.setdefault(instance, [])
                if pack.reason in _WITH_RECEIPT and not _placeless(pack):
                    _extend(runs, _run(executed.moment, pack))
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


def _run(moment: LogPosition, pack: PackVerdict) -> Run:
    if pack.original is not None:
        return run_of(pack.client_id, pack.original)
    assert pack.reason in (Reason.APPLIED, Reason.COMMITTED), "a receipt for something that was not applied"
    return _fresh_run(moment, pack)


def _extend(runs: list[Run], run: Run) -> None:
    """Add a run, as a part of the last one if it goes on from there."""
    last = runs[-1] if runs else None
    if (
        last is not None
        and (last.client_id, last.stream, last.index) == (run.client_id, run.stream, run.index)
        and last.first_id + last.requests == run.first_id
        and last.base_offset + last.messages == run.base_offset
    ):
        requests, messages = last.requests + run.requests, last.messages + run.messages
        runs[-1] = msgspec.structs.replace(last, requests=requests, messages=messages)
    else:
        runs.append(run)


def _placeless(pack: PackVerdict) -> bool:
    """Whether it was taken before, and has no place yet."""
    return pack.original is not None and pack.original.base_offset == NO_OFFSET


def _void_answer(pack: PackVerdict) -> NodeMessage:
    if pack.reason is Reason.STAGED or _placeless(pack):
        return AlreadyWritten(pack.client_id, pack.first_id + pack.requests - 1)
    if pack.reason is Reason.OLD:
        return AlreadyWritten(pack.client_id, pack.expected_id - 1)
    if pack.reason is Reason.GAP:
        return GoBack(pack.client_id, pack.expected_id)
    return refusal(pack)
