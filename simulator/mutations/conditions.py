"""One-line mutations of conditional writes; the `conditions` workload, or a test, must catch each."""

from __future__ import annotations

from simulator.mutate import Bug, caught_by_tests

_EXECUTION = "chaplain.journal.execution.conditions"
_MACHINE = "chaplain.journal.execution.state_machine"
_BY = ("requests", "assert")
_TESTS = "unit/journal/execution/test_conditions.py"


def _bug(name: str, old: str, new: str, *, module: str = _EXECUTION, seeds: int = 60) -> Bug:
    return Bug(name, module, old, new, "conditions", _BY, seeds)


BUGS = [
    _bug(
        "let a copy of a refused write be decided again",
        "        if reason not in _ACCEPTED and reason not in CONDITIONAL:\n",
        "        if reason not in _ACCEPTED:\n",
        module=_MACHINE,
    ),
    _bug(
        "write although the stream is behind the expected offset",
        "            return _HOLDS if condition.offset == head else (Reason.CONFLICT, head)\n",
        "            return _HOLDS if condition.offset >= head else (Reason.CONFLICT, head)\n",
    ),
    _bug(
        "write over a message at the expected version's successor",
        "        return _HOLDS if last < since else (Reason.CONFLICT, last)\n",
        "        return _HOLDS if last <= since else (Reason.CONFLICT, last)\n",
    ),
    _bug(
        "grant what cannot be decided about a key",
        "TrackedStream(stream, head, now_ns, {})",
        "TrackedStream(stream, 0, now_ns, {})",
    ),
    _bug(
        "track only the first message of a pack",
        "            last[key] = base + number\n",
        "            last[key] = base\n",
    ),
    _bug(
        "track a tag at the first message of its request",
        "tags, base + heading.messages - 1)\n",
        "tags, base)\n",
        module=_MACHINE,
    ),
    _bug(
        "check the offset only before all packs of a message",
        "draft.next_offset(stream), asked, now_ns)\n",
        "draft.state.streams[stream].next_offset if stream in draft.state.streams else 0, asked, now_ns)\n",
        module=_MACHINE,
    ),
    _bug(
        "accept every token after the first",
        "    if known is not None and condition.token < known.token:\n",
        "    if known is not None and condition.token < 0:\n",
    ),
    _bug(
        "send a refusal as the continuation of a receipt",
        "        and not last.refusal\n        and not run.refusal\n",
        "",
        module="chaplain.journal.clients.receipts",
    ),
    caught_by_tests(
        "forget a key without raising the floor",
        "journal.execution.conditions",
        "        floor = max(floor, tracked.keys.pop(next(iter(tracked.keys))) + 1)\n",
        "        tracked.keys.pop(next(iter(tracked.keys)))\n",
        _TESTS,
        "forgotten",
    ),
    caught_by_tests(
        "forget a stream that is in use",
        "journal.execution.conditions",
        "        if now_ns - oldest.used_ns < STREAM_SPARE_NS:\n            return False\n",
        "",
        _TESTS,
        "tracked_streams",
    ),
    caught_by_tests(
        "leave tracked keys out of the snapshot",
        "journal.execution.conditions",
        "        return ConditionsRecord(streams, tuple(",
        "        return ConditionsRecord((), tuple(",
        _TESTS,
        "snapshot",
    ),
]
