"""One-line mutations of what index-only serializers need; the `indexonly` workload must catch each."""

from __future__ import annotations

from simulator.mutate import Bug

_BY = ("copies", "requests", "retention", "assert")


def _bug(name: str, module: str, old: str, new: str, *, by: tuple[str, ...] = _BY) -> Bug:
    return Bug(name, f"chaplain.journal.{module}", old, new, "indexonly", by, 100)


BUGS = [
    _bug(
        "order before the copies are there",
        "consensus.master",
        "            if spreading.enough:",
        "            if spreading:",
    ),
    _bug(
        "show it to serializers at once",
        "consensus.master",
        "        if log.copies and message.entries:",
        "        if log.copies > len(message.entries) > 0:",
    ),
    _bug(
        "count a copy that is not synced",
        "consensus.follower",
        "        self._bench.quill.promise(node, acknowledge)",
        "        self._bench.quill.tell(node, acknowledge)",
    ),
    _bug(
        "count the same node twice",
        "consensus.acks",
        "            self._have.add(node)",
        "            self._have.add((node, len(self._have)))",
    ),
    _bug(
        "be content with fewer copies",
        "consensus.acks",
        "        return len(self._have) >= self._copies",
        "        return len(self._have) >= max(1, self._copies - 1)",
    ),
    _bug(
        "count a copy of something else",
        "consensus.acks",
        "        if same and node in self._holders:",
        "        if node in self._holders:",
    ),
    _bug(
        "write it down before there are copies",
        "consensus.master",
        "        self._spreading = PreReplication(now_ns, message",
        "        self._put_forward(message)\n        self._spreading = PreReplication(now_ns, message",
    ),
    _bug(
        "an index-only serializer keeps payloads",
        "storage.log",
        "        preview = _NO_PREVIEW if self.index_only else execution.preview(",
        "        preview = _NO_PREVIEW if message.lacks_payloads else execution.preview(",
    ),
    _bug(
        "do without payloads after a restart",
        "storage.log",
        "            return  # other nodes must send the payloads of this message and of all later ones",
        "            pass",
        by=("crash", *_BY),
    ),
]
