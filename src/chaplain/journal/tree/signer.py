"""Signs checkpoints of the tree over the log, and collects the signatures of the other serializers.

    master: something new was executed ──▶ remember the checkpoint on disk ──▶ sign, send to all (ask)
    others: signature received, same root here ──▶ remember on disk ──▶ sign, send to all
    each:   signatures of a quorum for one size and root ──▶ the checkpoint is complete

The master chooses the size, so that all nodes sign the same one. A node signs a size only after it has executed it and
has it on its own disk, and only if it computed the same root itself. It does not trust the signatures of others.

Decides what this node signs and when a checkpoint is complete. Does not know the voters: `may_sign` returns whether
this node has its vote. A node with a wiped disk gets its vote back only after it has caught up.

Invariants:
- the node never signs two roots for one size, and never a smaller size than before. A checkpoint is on disk before its
  signature leaves. A restarted node compares it with the tree when the tree reaches that size;
- a signature counts once for each node, only if it is right, and only if the node is a serializer now.

One case is not checked: a node installs a snapshot of its peers whose tree is larger than the tree that the node signed
last. The node trusts the quorum that confirmed the snapshot, as for all other contents of the snapshot.

Bounds: `SIZES_MAX` sizes of this node's tree, `KEPT_PER_NODE` signatures of each node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from chaplain.core import Frozen, Persist, Report
from chaplain.journal.events import ToPeer
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.peer import TreeSignature
from chaplain.journal.model.records import LogPosition
from chaplain.journal.settings import JournalSettings
from chaplain.journal.tree import signed_record
from chaplain.journal.tree.signed_record import SignedRecord
from chaplain.link.auth.identity import Identity
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import cosignature
from chaplain.proofs.checkpoint import Checkpoint, SignedCheckpoint
from chaplain.proofs.merkle import SIZE_MAX, RightEdge
from chaplain.proofs.note import Signature, VerifierKey
from chaplain.units import SECOND_NS

SIZES_MAX = 4096
"""Sizes of the tree after the latest messages, any of which the node can still sign."""
KEPT_PER_NODE = 4
"""Bound of the stored signatures of one node; the largest sizes are kept. Several are necessary, because a slow node
may answer when others have already signed the next size."""
RETRY_NS = SECOND_NS // 20
"""The master looks again after this time if no executed message is on its own disk yet, or if it has no vote now."""

SignerEffect: TypeAlias = ToPeer | Persist | Report


class Boundary(Frozen, frozen=True):
    """The tree after one message."""

    size: int
    index: int
    timestamp_ns: int
    edge: RightEdge

    @property
    def record(self) -> SignedRecord:
        return SignedRecord(self.size, self.edge.root(), max(1, self.timestamp_ns // SECOND_NS))


class CheckpointSigner:
    """The signatures of one node, and those it received."""

    def __init__(
        self,
        settings: JournalSettings,
        execution: JournalExecution,
        identity: Identity,
        signed: bytes | None,
        *,
        may_sign: Callable[[], bool],
        is_master: Callable[[], bool],
        durable: Callable[[], int],
    ) -> None:
        """`signed` is the content of the file. `durable` returns the last message that is on this node's disk."""
        self._settings = settings
        self._execution = execution
        self._identity = identity
        self._may_sign, self._is_master, self._durable = may_sign, is_master, durable
        self.origin = checkpoints.origin_of(execution.cluster)
        self.file = f"{settings.tree_folder}signed"
        self.last = signed_record.read(signed)
        """The checkpoint that this node signed last. It is on disk once `_ticket` is not in `_writing`."""
        self._slot = signed_record.free_slot(signed)
        """The slot for the next record."""
        self.refused = ""
        """The reason for which this node signs no more checkpoints: its tree contradicts the signed one."""
        self.complete: SignedCheckpoint | None = None
        """The newest checkpoint with the signatures of a quorum."""
        self._covers = 0
        """The last message that the newest complete checkpoint covers, or a later one if `_boundaries` no longer has
        the size."""
        self.complete_ns = 0
        """When the newest complete checkpoint became complete here."""
        self._unconfirmed = self.last is not None
        """True while the tree of this restarted node is smaller than the tree that it signed last."""
        self._boundaries: OrderedDict[int, Boundary] = OrderedDict()
        self._passed = 0
        """The size of the tree before the latest message."""
        self._received: dict[int, dict[int, TreeSignature]] = {}
        """Signatures by node and size, including this node's own."""
        self._connected: dict[int, None] = {}
        self._wanted: SignedRecord | None = None
        """The newest checkpoint that another serializer signed and this node may sign, too."""
        self._writing: dict[int, SignedRecord] = {}
        self._ticket = 0
        self._next_ns = 0
        self._due_ns: int | None = None
        self.effects: list[SignerEffect] = []
        # A tree that was loaded from a snapshot does not contain the sizes before it.
        self._passed = max(0, execution.state.tree.size - 1)
        self._note_size(execution.state.tree.edge(), execution.state.position)

    @property
    def covers(self) -> int:
        """The last message that the newest complete checkpoint covers."""
        newest = None if self.complete is None else self._boundaries.get(self.complete.checkpoint.size)
        return self._covers if newest is None else max(self._covers, newest.index)

    # What this node has executed.

    def on_applied(self, at: LogPosition) -> None:
        edge = self._execution.state.tree.edge()
        if edge.size != self._passed:
            self._note_size(edge, at)

    def _note_size(self, edge: RightEdge, at: LogPosition) -> None:
        before, self._passed = self._passed, edge.size
        boundary = Boundary(edge.size, at.index, at.timestamp_ns, edge)
        self._boundaries[edge.size] = boundary
        if len(self._boundaries) > SIZES_MAX:
            self._boundaries.popitem(last=False)
        if self._unconfirmed:
            self._confirm(before, boundary)

    def _confirm(self, before: int, boundary: Boundary) -> None:
        """Compare the tree with the checkpoint that this node signed before it restarted."""
        last = self.last
        assert last is not None
        if boundary.size < last.size:
            return
        self._unconfirmed = False
        if not before < last.size:
            return  # the tree was loaded from a snapshot that is newer
        if boundary.size > last.size:
            self._refuse("no message ends at the size of the tree that this node signed")
        elif boundary.edge.root() != last.root:
            self._refuse("the tree has another root than the one that this node signed")
        elif self._connected:
            self._publish(last, ask=False)

    def _refuse(self, reason: str) -> None:
        assert self.last is not None
        self.refused = reason
        self.effects.append(Report("signs no checkpoints", detail={"reason": reason, "size": self.last.size}))

    # When to sign.

    @property
    def due_ns(self) -> int | None:
        """When this node starts a checkpoint, or signs one that was not yet possible."""
        if not self._has_news():
            return self._due_ns
        return self._next_ns if self._due_ns is None else min(self._next_ns, self._due_ns)

    def _has_news(self) -> bool:
        newest = 0 if self.complete is None else self.complete.checkpoint.size
        return self._passed > newest and not self.refused and self._is_master()

    def on_timer(self, now_ns: int) -> None:
        if self._due_ns is not None and now_ns >= self._due_ns:
            self._due_ns = None
            self._sign_wanted(now_ns)
        if now_ns >= self._next_ns and self._has_news():
            self._start(now_ns)

    def _start(self, now_ns: int) -> None:
        """Begin a checkpoint of the newest size that is on this node's disk, or send the last signature again."""
        durable, last = self._durable(), self.last
        newest = next((one for one in reversed(self._boundaries.values()) if one.index <= durable and one.size), None)
        if newest is None or not self._may_sign() or self._writing or (last is not None and newest.size < last.size):
            self._next_ns = now_ns + RETRY_NS
            return
        self._next_ns = now_ns + self._settings.sign_ns
        if last is None or newest.size > last.size:
            self._remember(newest.record)
        else:
            self._publish(last, ask=True)

    def _sign_wanted(self, now_ns: int) -> None:
        """Sign the size that another serializer signed, as soon as this node has executed it and has it on disk."""
        wanted, last = self._wanted, self.last
        if wanted is None or self.refused or self._writing:
            return  # a write under way: two writes at a time could tear both slots
        if last is not None and wanted.size <= last.size:
            self._wanted = None
            return
        boundary = self._boundaries.get(wanted.size)
        if boundary is None:
            if wanted.size < self._passed:
                self._wanted = None
            return
        if boundary.index > self._durable() or not self._may_sign():
            return
        if now_ns < self._next_ns:
            self._due_ns = self._next_ns
            return
        self._wanted = None
        if boundary.edge.root() != wanted.root:
            return  # reported when the signature arrived
        self._next_ns = now_ns + self._settings.sign_ns // 2
        self._remember(boundary.record)

    @property
    def wants_to_sign(self) -> bool:
        """True if a checkpoint of another serializer waits until this node has executed and stored its messages."""
        return self._wanted is not None and self._due_ns is None

    def after_step(self, now_ns: int) -> None:
        """Something was executed or written: a wanted checkpoint may be possible now."""
        if self.wants_to_sign:
            self._sign_wanted(now_ns)

    # Signing.

    def _remember(self, record: SignedRecord) -> None:
        """Write the checkpoint to disk before it is signed. The signature follows after the sync."""
        last = self.last
        assert last is None or record.size > last.size, "signed sizes only grow"
        assert not self.refused, "a node whose tree contradicts its signatures signs nothing"
        self.last = record
        self._ticket += 1
        self._writing[self._ticket] = record
        self.effects.append(Persist(self._ticket, (signed_record.write(self.file, record, self._slot),)))
        self._slot = 1 - self._slot

    def on_written(self, now_ns: int, ticket: int) -> None:
        """The record is on disk: sign."""
        self._publish(self._writing.pop(ticket), ask=self._is_master())
        self._update_complete(now_ns)

    def _publish(self, record: SignedRecord, *, ask: bool, to: Iterable[int] = ()) -> None:
        """Send this node's signature to these peers, by default to all."""
        message = self._signature_of(record, ask=ask)
        self._store(self._settings.node, message)
        self.effects += [ToPeer(node, message) for node in to or self._connected]

    def _signature_of(self, record: SignedRecord, *, ask: bool) -> TreeSignature:
        text = Checkpoint(self.origin, record.size, record.root).text
        as_log = self._identity.sign_note(text.encode())
        as_cosigner = self._identity.sign_note(cosignature.signed_octets(record.time_s, text))
        return TreeSignature(record.size, record.root, record.time_s, as_log, as_cosigner, ask)

    # Signatures of others.

    def on_connected(self, node: int) -> None:
        """Send this node's last signature to the peer, so that each node can complete the newest checkpoint."""
        self._connected[node] = None
        can_repeat = self.last is not None and not self._unconfirmed and not self.refused and not self._writing
        if can_repeat and self.last is not None:
            self._publish(self.last, ask=False, to=(node,))
        own = self._received.get(self._settings.node, {})
        if self.complete is not None and self.complete.checkpoint.size in own:
            self.effects.append(ToPeer(node, own[self.complete.checkpoint.size]))

    def on_disconnected(self, node: int) -> None:
        self._connected.pop(node, None)

    def on_signature(self, now_ns: int, node: int, message: TreeSignature) -> None:
        config = self._execution.cluster_config
        member = config.node(node)
        if member is None or node not in config.quorum.voters:
            return  # it became or was a serializer in a configuration that this node does not know
        if not self._holds(node, member.key, message):
            self.effects.append(Report("wrong signature of a checkpoint", str(node), {"size": message.size}))
            return
        boundary = self._boundaries.get(message.size)
        if boundary is not None and boundary.edge.root() != message.root:
            self.effects.append(Report("signed another tree", str(node), {"size": message.size}))
            return
        self._store(node, message)
        self._update_complete(now_ns)
        own = self._received.get(self._settings.node, {}).get(message.size)
        if own is not None:
            if message.ask:
                self.effects.append(ToPeer(node, TreeSignature(*_fields(own), ask=False)))
        elif self._wanted is None or message.size > self._wanted.size:
            self._wanted = SignedRecord(message.size, message.root, message.time_s)
            self._sign_wanted(now_ns)

    def _keys(self, node: int, key: bytes) -> tuple[VerifierKey, VerifierKey]:
        cluster = self._execution.cluster
        return checkpoints.log_key(cluster, key), checkpoints.node_key(cluster, node, key)

    def _lines(self, node: int, key: bytes, message: TreeSignature) -> tuple[Signature, Signature]:
        """The signature lines of a message."""
        as_log, cosigner = self._keys(node, key)
        stated = message.time_s.to_bytes(8, "big") + message.as_cosigner
        return Signature(as_log.name, as_log.id, message.as_log), Signature(cosigner.name, cosigner.id, stated)

    def _holds(self, node: int, key: bytes, message: TreeSignature) -> bool:
        """True if the size is possible and both signatures are right."""
        if not 0 < message.size <= SIZE_MAX:
            return False
        checkpoint = Checkpoint(self.origin, message.size, message.root)
        pairs = zip(self._keys(node, key), self._lines(node, key, message), strict=True)
        return all(checkpoints.holds(verifier, checkpoint, line) for verifier, line in pairs)

    def _store(self, node: int, message: TreeSignature) -> None:
        kept = self._received.setdefault(node, {})
        kept.setdefault(message.size, message)
        while len(kept) > KEPT_PER_NODE:
            del kept[min(kept)]

    def _update_complete(self, now_ns: int) -> None:
        """Find the newest checkpoint that a quorum of the present serializers has signed."""
        config = self._execution.cluster_config
        newest = 0 if self.complete is None else self.complete.checkpoint.size
        signed: dict[tuple[int, bytes], dict[int, TreeSignature]] = {}
        for node in config.quorum.voters:
            for message in self._received.get(node, {}).values():
                if message.size >= newest:
                    signed.setdefault((message.size, message.root), {})[node] = message
        for (size, root), by_node in sorted(signed.items(), reverse=True):
            if not config.quorum.reached(by_node):
                continue
            if size > newest:
                self._covers = self.covers
                self.complete_ns = now_ns
            self.complete = checkpoints.assemble(
                Checkpoint(self.origin, size, root),
                {node: self._lines(node, self._key_of(node), message) for node, message in by_node.items()},
            )
            return

    def _key_of(self, node: int) -> bytes:
        member = self._execution.cluster_config.node(node)
        assert member is not None, "a serializer is a member"
        return member.key


def _fields(message: TreeSignature) -> tuple[int, bytes, int, bytes, bytes]:
    return message.size, message.root, message.time_s, message.as_log, message.as_cosigner
