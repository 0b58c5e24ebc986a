"""One-line mutations of what bounds the cost of a client. A test must catch each."""

from __future__ import annotations

from simulator.mutate import caught_by_tests

CLIENT_SERVICE = "unit/client_service/test_client_service.py"
READING = "unit/journal/clients/test_subscriptions.py"
QUEUES = "unit/link/test_client_queues.py"
FAIR = "unit/node/test_fair_queue.py"
STATUS = "unit/node/test_status.py"
PRINTS = "unit/journal/execution/test_fingerprint.py"
DOOR = "unit/link/test_strangers_core.py"
TURNS = "unit/runtime/test_request_scheduler.py"
CONTENTION = "unit/node/test_contention.py"
CLIENT_COSTS = "unit/journal/clients/test_costs.py"
NODE = "unit/node/test_client_turns.py"

BUGS = [
    caught_by_tests(
        "listeners keep a pool after their right is gone",
        "client_service.core",
        "                return self._revoke_access()",
        "                return []",
        CLIENT_SERVICE,
        "listener_that_lost_its_right_is_ended_with_the_reason",
        "request_without_the_right_to_its_stream_is_refused",
        "waiting_call_ends_when_its_right_is_lost",
    ),
    caught_by_tests(
        "credit has no bound",
        "journal.clients.subscriptions",
        "reader.credit_bytes = min(reader.credit_bytes + max(0, size_bytes), window_bytes)",
        "reader.credit_bytes += max(0, size_bytes)",
        READING,
        "window",
    ),
    caught_by_tests(
        "reads of an identity are not counted together",
        "journal.clients.subscriptions",
        "            or self._by_owner[owner] >= settings.reads_per_identity_max\n",
        "",
        READING,
        "identity",
    ),
    caught_by_tests(
        "every message looks at every reader",
        "journal.clients.subscriptions",
        "self.by_stream.get(written.stream, {}).values()",
        "self._readers.values()",
        READING,
        "message_wakes_only_readers_of_its_streams",
    ),
    caught_by_tests(
        "what waits for one client counts for another",
        "link.sessions.client_queues",
        "after = self._by_identity.get(key, 0) + size_bytes",
        "after = self.total_bytes + size_bytes",
        QUEUES,
        "key_that_reads_nothing_leaves_the_share_of_another_key",
    ),
    caught_by_tests(
        "sessions of a key have a budget each",
        "link.core",
        "            and not event.urgent\n",
        "            and outgoing.queued_bytes > 1 << 30\n",
        QUEUES,
        "share_one",
    ),
    caught_by_tests(
        "what waited for a session that ended stays counted",
        "link.sessions.tables",
        "        self.add_queued(outgoing, -outgoing.queued_bytes)\n",
        "",
        QUEUES,
        "queued_bytes_of_an_ended_session_are_released",
    ),
    caught_by_tests(
        "whoever came first is served first",
        "node.fair_queue",
        "        del self._owners[owner]\n        if found.sessions:\n            self._owners[owner] = found\n",
        "        if not found.sessions:\n            del self._owners[owner]\n",
        FAIR,
        "client_with_one_request_waits_for_one_of_each_other_client",
        "session_with_one_request_waits_for_one_of_each_sister_session",
        "waiting_clients_are_served_between_two_requests_of_one_client",
        "waiting_requests_are_bounded_per_session_client_and_in_total",
    ),
    caught_by_tests(
        "requests wait without a bound",
        "node.fair_queue",
        "            of_session > self._session_bytes_max\n            or ",
        "            ",
        FAIR,
        "bounded",
    ),
    caught_by_tests(
        "requests take all the time",
        "runtime.request_scheduler",
        "        if not self._clients.contended:\n",
        "        if True:\n",
        TURNS,
        "share",
    ),
    caught_by_tests(
        "light clients wait while the node rests",
        "runtime.request_scheduler",
        "            if not (self._clients.light_waiting if light else self._clients.waiting):\n",
        "            if light or not self._clients.waiting:\n",
        TURNS,
        "light_clients",
    ),
    caught_by_tests(
        "a client that costs much stays light",
        "node.core",
        "        if self.contended:\n            self._requests.charge",
        "        if False:\n            self._requests.charge",
        NODE,
        "busy_node_serves_only_light_clients",
    ),
    caught_by_tests(
        "statements for one database too many are logged",
        "journal.ingest.admission",
        "        if heading.message_type == STATEMENTS and not self._execution.may_have_database(event.stream):\n",
        "        if False:\n",
        "unit/journal/ingest/test_precheck.py",
        "database_too_many",
    ),
    caught_by_tests(
        "the client service charges nobody",
        "client_service.core",
        "[Charge(client.key, units)] if units else []",
        "[]",
        CLIENT_SERVICE,
        "charged",
    ),
    caught_by_tests(
        "the statements of a pack cost nothing",
        "journal.clients.costs",
        "            return costs.STATEMENT * statements_in(payload)\n",
        "            return 0\n",
        CONTENTION,
        "cost_of",
    ),
    caught_by_tests(
        "the journal charges nobody",
        "journal.core",
        "        if units := extra_cost(message, parcel.payload):\n",
        "        if units := 0:\n",
        CLIENT_COSTS,
        "charged",
    ),
    caught_by_tests(
        "what a node says waits for clients",
        "node.core",
        "        if not peer.client:\n            self._route_parcel(event)\n        elif",
        "        if",
        NODE,
        "messages_between_nodes_do_not_wait_for_clients",
    ),
    caught_by_tests(
        "a status is made for everybody who asks",
        "node.snapshot",
        "if version != self._version or now_ns - self._made_ns >= FRESH_NS:",
        "if True:",
        STATUS,
        "once",
    ),
    caught_by_tests(
        "a status writes down the whole state",
        "journal.execution.state",
        "        rest = msgspec.msgpack.encode(fields)\n",
        "        rest = self.export()\n",
        STATUS,
        "exports",
    ),
    caught_by_tests(
        "changes wait to be hashed without a bound",
        "journal.model.set_hash",
        "if len(self._pending) >= PENDING_MAX:",
        "if False:",
        PRINTS,
        "mapping_hash_bounds_its_pending_changes",
    ),
    caught_by_tests(
        "an address that floods the door shuts it for all",
        "link.zmq.strangers",
        "self._places_max // 2 if self._blocked.others else self._places_max",
        "self._general_max // 2 if self._blocked.others else self._general_max",
        DOOR,
        "flooding_address_is_shut_out_while_another_is_admitted",
    ),
    caught_by_tests(
        "no place is kept for members",
        "link.zmq.strangers",
        "admitted = {one for one in self._members if room",
        "admitted = {one for one in () if room",
        DOOR,
        "flood_from_many_addresses_leaves_places_for_members",
    ),
]
