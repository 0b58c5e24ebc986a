"""Planted bugs in the tree over the log, its tiles, and the checkpoints that nodes sign."""

from __future__ import annotations

from simulator.mutate import caught_by_tests

LEAVES = "unit/journal/execution/test_leaves.py"

BUGS = [
    caught_by_tests(
        "a leaf names another offset",
        "journal.execution.leaves",
        "    ids = (base, heading.messages, heading.client_id, heading.first_id)\n",
        "    ids = (0, heading.messages, heading.client_id, heading.first_id)\n",
        LEAVES,
    ),
    caught_by_tests(
        "a staged pack has a leaf before its commit",
        "journal.execution.state_machine",
        "        if reason not in _ACCEPTED:\n",
        "        leaves.write_pack(draft, entry, heading, bytes(32)) if heading.message_type else None\n"
        "        if reason not in _ACCEPTED:\n",
        LEAVES,
    ),
    caught_by_tests(
        "the tree of a snapshot continues with another right edge",
        "journal.model.log_tree",
        "    tree._edge = tree._tiles.edge()\n",
        "    tree._edge.size = tree._tiles.size\n",
        LEAVES,
    ),
    caught_by_tests(
        "the fingerprint leaves out the tree",
        "journal.model.log_tree",
        'return LogTreeRecord(self.size.to_bytes(8, "big"), (self.root(),))',
        "return LogTreeRecord(b'', ())",
        LEAVES,
    ),
    caught_by_tests(
        "a lease has a leaf",
        "journal.execution.state_machine",
        "                if draft.rights_changes != changes:\n",
        "                if entries[-1].reason is Reason.APPLIED:\n",
        LEAVES,
    ),
    caught_by_tests(
        "entries of a snapshot are not compared with its tiles",
        "journal.model.log_tree",
        "or hashed != tree._tiles.partial(0):",
        "and hashed != tree._tiles.partial(0):",
        LEAVES,
    ),
]
