"""Planted bugs in the tree over the log, its tiles, and the checkpoints that nodes sign."""

from __future__ import annotations

from simulator.mutate import caught_by_tests

LEAVES = "unit/journal/execution/test_leaves.py"
SIGNED = "unit/journal/tree/test_checkpoints.py"
VERIFIED = "unit/verification/test_tree_check.py"

BUGS = [
    caught_by_tests(
        "a leaf names another offset",
        "journal.execution.leaves",
        "entry.stream, base, heading.messages)\n",
        "entry.stream, 0, heading.messages)\n",
        LEAVES,
    ),
    caught_by_tests(
        "a staged pack has a leaf before its commit",
        "journal.execution.state_machine",
        "        if reason not in _ACCEPTED and reason not in CONDITIONAL:\n",
        "        leaves.write_pack(draft, entry, heading, bytes(32)) if heading.message_type else None\n"
        "        if reason not in _ACCEPTED and reason not in CONDITIONAL:\n",
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
    caught_by_tests(
        "sign before the record is on disk",
        "journal.tree.signer",
        "        self.effects.append(Persist(self._ticket, (signed_record.write(self.file, record, self._slot),)))\n",
        "        self._publish(record, ask=True)\n"
        "        self.effects.append(Persist(self._ticket, (signed_record.write(self.file, record, self._slot),)))\n",
        SIGNED,
    ),
    caught_by_tests(
        "a restarted node forgets what it signed",
        "journal.tree.signer",
        "        self.last = signed_record.read(signed)\n",
        "        self.last = None\n",
        SIGNED,
    ),
    caught_by_tests(
        "a restarted node repeats a signature that it has not compared",
        "journal.tree.signer",
        "self.last is not None and not self._unconfirmed and not self.refused",
        "self.last is not None and not self.refused",
        SIGNED,
    ),
    caught_by_tests(
        "sign whatever another node signed",
        "journal.tree.signer",
        "        if boundary.edge.root() != wanted.root:\n            return  # reported when the signature arrived\n",
        "        boundary = Boundary(wanted.size, 0, wanted.time_s * SECOND_NS, boundary.edge)\n"
        "        self._next_ns = now_ns\n"
        "        self._remember(wanted)\n"
        "        return\n",
        SIGNED,
    ),
    caught_by_tests(
        "a wrong signature counts",
        "journal.tree.signer",
        "        return all(checkpoints.holds(verifier, checkpoint, line) for verifier, line in pairs)\n",
        "        return any(checkpoints.holds(verifier, checkpoint, line) for verifier, line in pairs)\n",
        SIGNED,
    ),
    caught_by_tests(
        "a signature counts for the node that brings it",
        "journal.tree.signer",
        "        if not self._holds(node, member.key, message):\n",
        "        if not any(self._holds(one.node, one.key, message) for one in config.nodes):\n",
        SIGNED,
    ),
    caught_by_tests(
        "one signature counts twice",
        "journal.tree.signer",
        "            if not config.quorum.reached(by_node):\n",
        "            if len(by_node) < 1:\n",
        SIGNED,
    ),
    caught_by_tests(
        "a torn record loses both slots",
        "journal.tree.signed_record",
        "slot_number * SLOT_BYTES",
        "0 * SLOT_BYTES",
        SIGNED,
    ),
    caught_by_tests(
        "a restarted node replaces the record that counts",
        "journal.tree.signer",
        "        self._slot = signed_record.free_slot(signed)\n",
        "        self._slot = 1\n",
        SIGNED,
    ),
    caught_by_tests(
        "two records are written at a time",
        "journal.tree.signer",
        "or not self._may_sign() or self._writing or (",
        "or not self._may_sign() or (",
        SIGNED,
    ),
    caught_by_tests(
        "two records are written at a time on request",
        "journal.tree.signer",
        "        if wanted is None or self.refused or self._writing:\n",
        "        if wanted is None or self.refused:\n",
        SIGNED,
    ),
    caught_by_tests(
        "a node without its vote signs what others signed",
        "journal.tree.signer",
        "        if boundary.index > self._durable() or not self._may_sign():\n",
        "        if boundary.index > self._durable():\n",
        SIGNED,
    ),
    caught_by_tests(
        "bundles of entries are not written",
        "journal.tree.tiles",
        "        self._waiting.update((one.tile, one.data) for one in finished)\n",
        "        self._waiting.update((one.tile, one.data) for one in finished if one.tile.level != BUNDLES)\n",
        SIGNED,
    ),
    caught_by_tests(
        "a snapshot is written before the tiles that it covers",
        "journal.snapshots.checkpointer",
        "(*self._before(), Replace(file, data))",
        "(Replace(file, data),)",
        SIGNED,
    ),
    caught_by_tests(
        "a checkpoint is returned before it covers the message",
        "journal.tree.service",
        "            if index <= self.covers or len(self._waiting) >= WAITING_MAX:\n",
        "            if self.signer.complete is not None:\n",
        SIGNED,
    ),
    caught_by_tests(
        "a checkpoint is served before witnesses were asked",
        "journal.tree.service",
        "        return self._published if self._witnessed else self.signer.complete\n",
        "        return self.signer.complete\n",
        SIGNED,
    ),
    caught_by_tests(
        "a witness's signature is not checked",
        "runtime.http.witness_client",
        "for key in self._keys if checkpoints.holds(key, tree, one))",
        "for key in self._keys if tree)",
        "unit/runtime/test_witness_client.py",
    ),
    caught_by_tests(
        "a witness that is down prevents checkpoints",
        "runtime.http.witness_client",
        '            self._pause(asked[one], f"no answer within {ANSWER_S} s")\n',
        "            found += one.result(3600)\n",
        "unit/runtime/test_witness_client.py",
    ),
    caught_by_tests(
        "a verification does not compare packs with their leaves",
        "verification.tree_check",
        "                if there != shape:\n",
        "                if there is None:\n",
        VERIFIED,
    ),
    caught_by_tests(
        "a verification ignores the root of the checkpoint",
        "verification.tree_check",
        "return [] if root == tree.root else",
        "return [] if root else",
        VERIFIED,
    ),
    caught_by_tests(
        "a verification ignores leaves without a message",
        "verification.record_reader",
        "        breaks += leaves.check_end()\n",
        "",
        VERIFIED,
    ),
    caught_by_tests(
        "subtrees are joined in the wrong order",
        "verification.tree_check",
        "        root = node_hash(left.hash, root)\n",
        "        root = node_hash(root, left.hash)\n",
        VERIFIED,
    ),
]
