"""What an executor tells people about its databases, and what others compare theirs with."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from chaplain.executor.apply_queue import ApplyQueue
from chaplain.executor.fingerprint import combined


def of_feeds(feeds: Mapping[str, ApplyQueue]) -> dict[str, object]:
    return {
        stream: {
            "position": feed.applied,
            "state": str(feed.phase),
            "behind": feed.behind,
            "kept": feed.kept,
            "fingerprint": feed.fingerprint.hex(),
            **({"trouble": feed.trouble} if feed.trouble else {}),
            **({"damage": feed.damage} if feed.damage else {}),
            **({"needs_copy": True} if feed.needs_copy else {}),
        }
        for stream, feed in sorted(feeds.items())
    }


def fingerprints(feeds: Mapping[str, ApplyQueue], states: Mapping[int, bytes]) -> dict[str, str]:
    """Of the journal's state and all databases together, at positions that other executors come by, too."""
    position = min(feed.undone() - 1 for feed in feeds.values())
    found: dict[str, str] = {}
    for index, state in states.items():
        of_databases = _at(feeds, index) if index <= position else None
        if of_databases is not None:
            found[str(index)] = sha256(state + of_databases).hexdigest()
    return found


def _at(feeds: Mapping[str, ApplyQueue], index: int) -> bytes | None:
    prints = {}
    for stream, feed in feeds.items():
        if feed.touched[0] <= index:
            known = feed.comparison.at(index)
            if known is None:
                return None
            prints[stream] = known
    return combined(prints)
