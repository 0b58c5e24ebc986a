"""Status of an executor's databases for users, and combined fingerprints for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from chaplain.executor.apply_queue import ApplyQueue
from chaplain.executor.fingerprint import combined


def of_queues(queues: Mapping[str, ApplyQueue]) -> dict[str, object]:
    return {
        stream: {
            "position": queue.applied,
            "state": str(queue.phase),
            "behind": queue.behind,
            "kept": queue.kept,
            "fingerprint": queue.fingerprint.hex(),
            **({"trouble": queue.trouble} if queue.trouble else {}),
            **({"damage": queue.damage} if queue.damage else {}),
            **({"needs_copy": True} if queue.needs_copy else {}),
        }
        for stream, queue in sorted(queues.items())
    }


def fingerprints(queues: Mapping[str, ApplyQueue], states: Mapping[int, bytes]) -> dict[str, str]:
    """Fingerprints of the journal's state with all databases, at positions that other executors reach, too."""
    position = min(queue.next_unapplied() - 1 for queue in queues.values())
    found: dict[str, str] = {}
    for index, state in states.items():
        of_databases = _at(queues, index) if index <= position else None
        if of_databases is not None:
            found[str(index)] = sha256(state + of_databases).hexdigest()
    return found


def _at(queues: Mapping[str, ApplyQueue], index: int) -> bytes | None:
    prints = {}
    for stream, queue in queues.items():
        if queue.messages_with_statements[0] <= index:
            known = queue.divergence.at(index)
            if known is None:
                return None
            prints[stream] = known
    return combined(prints)
