"""One-line mutations of named consumers; the `consumers` workload must catch each."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

_EXECUTION = "chaplain.journal.execution.consumers"
_BY = ("consumers", "requests", "assert")


def _bug(name: str, old: str, new: str, *, module: str = _EXECUTION, seeds: int = 60) -> Bug:
    return Bug(name, module, old, new, "consumers", _BY, seeds, "liveness")


BUGS = [
    _bug(
        "count the acknowledgement of a worker that does not hold the slot",
        "        if slot.holder == command.token and slot.since <= command.epoch\n",
        "        if slot.since <= command.epoch\n",
    ),
    _bug(
        "let an acknowledgement cover slots that its worker does not know",
        "        if slot.holder == command.token and slot.since <= command.epoch\n",
        "        if slot.holder == command.token\n",
    ),
    _bug(
        "remove a worker at the second challenge",
        "    if now_ns < other.challenged_until_ns:\n        return consumer\n",
        "",
    ),
    _bug(
        "let no command answer a challenge",
        "active_ns=now_ns, challenged_until_ns=0)",
        "active_ns=now_ns)",
    ),
    _bug(
        "move slots before their holder releases them",
        "    if now_ns < consumer.balanced_ns + consumer.lease_ns:\n        return consumer\n",
        "",
    ),
    _bug(
        "release the slots of other workers",
        "number in named and slot.holder == command.token and slot.target",
        "slot.target",
    ),
    _bug(
        "give a slot to a worker that is gone",
        "        if slot.holder in present:\n",
        "        if slot.holder:\n",
    ),
    _bug(
        "lease a message again within its lease",
        "        if span.due_ns > now_ns or (",
        "        if (",
    ),
    _bug(
        "finish the messages of another worker",
        "            if span.token != token:\n                return None\n",
        "",
    ),
    _bug(
        "forget the messages of a worker that leaves",
        "    return _balanced(replace(consumer, workers=workers, spans=spans), now_ns)",
        "    return _balanced(replace(consumer, workers=workers, spans=spans[:-1]), now_ns)",
    ),
    _bug(
        "do not count deliveries",
        "        deliveries = min(span.deliveries + 1, DELIVERIES_MAX)\n",
        "        deliveries = 1\n",
    ),
    _bug(
        "skip a message when new ones are leased",
        "        consumer = replace(consumer, next_offset=first + count)",
        "        consumer = replace(consumer, next_offset=first + count + 1)",
    ),
    _bug(
        "let a position decrease",
        "position=max(slot.position, command.through, offsets.get(number, 0))",
        "position=max(command.through, offsets.get(number, 0))",
    ),
    caught_by_tests(
        "forget consumers in the fingerprint",
        "journal.execution.consumers",
        "        self.hash.note(key)\n",
        "",
        "unit/journal/execution/test_consumers.py",
        "fingerprint",
    ),
    _bug(
        "acknowledge what the application still has",
        "            return held.outstanding[0]\n",
        "            return held.next\n",
        module="chaplain.client.protocol.consumers.slot_progress",
    ),
    _bug(
        "acknowledge what the reader has passed before it was delivered",
        "        return held.next if held.behind else max(held.next, self._read_next)\n",
        "        return max(held.next, self._read_next)\n",
        module="chaplain.client.protocol.consumers.slot_progress",
    ),
    _bug(
        "finish messages that were not acknowledged",
        "            ranges = joined(sorted(self._finished))[:RANGES_MAX]\n",
        "            ranges = joined(sorted(self._finished | self.delivered))[:RANGES_MAX]\n",
        module="chaplain.client.protocol.consumers.queue_progress",
    ),
]
