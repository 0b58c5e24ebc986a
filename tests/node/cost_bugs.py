"""One-line bugs of what bounds the cost of clients; `tests.executor.planted_bugs` plants them, and tests judge."""

from __future__ import annotations

from simulator.mutate import Bug

DESK, READING, QUEUES = (
    "../desk/test_desk.py",
    "../journal/test_journal_reading.py",
    "../link/test_link_client_queues.py",
)
FAIR, STATUS, PRINTS = "../node/test_fair_queue.py", "../node/test_status.py", "../journal/test_fingerprint.py"
DOOR, TURNS, NODE = "../link/test_strangers_core.py", "../runtime/test_turns.py", "../node/test_client_turns.py"


def _bug(name: str, module: str, old: str, new: str, *tests: str) -> Bug:
    return Bug(name, f"chaplain.{module}", old, new, "", tests)


COST_BUGS = [
    _bug(
        "listeners keep a pool after their right is gone",
        "client_service.core",
        "                return self._forbid_what_goes_on()",
        "                return []",
        DESK,
        "right",
    ),
    _bug(
        "credit has no bound",
        "journal.clients.subscriptions",
        "reader.credit_bytes = min(reader.credit_bytes + max(0, size_bytes), window_bytes)",
        "reader.credit_bytes += max(0, size_bytes)",
        READING,
        "window",
    ),
    _bug(
        "reads of an identity are not counted together",
        "journal.clients.subscriptions",
        "            or self._by_owner[owner] >= settings.reads_per_identity_max\n",
        "",
        READING,
        "identity",
    ),
    _bug(
        "every message looks at every reader",
        "journal.clients.subscriptions",
        "self._by_stream.get(written.stream, {}).values()",
        "self._readers.values()",
        READING,
        "costs_only",
    ),
    _bug(
        "what waits for one client counts for another",
        "link.sessions.client_queues",
        "after = self._by_identity.get(key, 0) + size_bytes",
        "after = self.total_bytes + size_bytes",
        QUEUES,
        "leaves_its_part",
    ),
    _bug(
        "sessions of a key have a budget each",
        "link.core",
        "if line.key and not event.urgent and not",
        "if line.key and line.queued_bytes > 1 << 30 and not",
        QUEUES,
        "share_one",
    ),
    _bug(
        "what waited for a session that ended stays counted",
        "link.sessions.tables",
        "        self.queue(line, -line.queued_bytes)\n",
        "",
        QUEUES,
        "given_back",
    ),
    _bug(
        "whoever came first is served first",
        "node.fair_queue",
        "        del self._owners[owner]\n        if found.sessions:\n            self._owners[owner] = found\n",
        "        if not found.sessions:\n            del self._owners[owner]\n",
        FAIR,
        "client",
    ),
    _bug(
        "requests wait without a bound",
        "node.fair_queue",
        "            of_session > self._session_bytes_max\n            or ",
        "            ",
        FAIR,
        "bounded",
    ),
    _bug(
        "requests take all the time",
        "runtime.turns",
        "        if waits() and contended():\n",
        "        if False:\n",
        TURNS,
        "share",
    ),
    _bug(
        "what a node says waits for clients",
        "node.core",
        "        if not peer.client:\n            self._hand_on(event)\n        elif",
        "        if",
        NODE,
        "waits_for_no_client",
    ),
    _bug(
        "a status is made for everybody who asks",
        "node.snapshot",
        "if version != self._version or now_ns - self._made_ns >= FRESH_NS:",
        "if True:",
        STATUS,
        "once",
    ),
    _bug(
        "a status writes down the whole state",
        "journal.execution.state",
        "        rest = msgspec.msgpack.encode("
        "self._export((), (), (), counters, self.epochs.export_without_decisions()))\n",
        "        rest = self.export()\n",
        STATUS,
        "exports",
    ),
    _bug(
        "changes wait to be hashed without a bound",
        "journal.model.set_hash",
        "if len(self._pending) >= PENDING_MAX:",
        "if False:",
        PRINTS,
        "bounded",
    ),
    _bug(
        "an address that floods the door shuts it for all",
        "link.zmq.strangers",
        "self._places_max // 2 if self._shut.others else self._places_max",
        "self._open_places // 2 if self._shut.others else self._open_places",
        DOOR,
        "another_gets_in",
    ),
    _bug(
        "no place is kept for members",
        "link.zmq.strangers",
        "kept_in = {one for one in self._members if room",
        "kept_in = {one for one in () if room",
        DOOR,
        "leave_places",
    ),
]
