"""The tree over the log as the rest of the journal sees it: its tiles, signed checkpoints, and answers to questions.

Combines `tiles`, which writes the tree, with `signer`, which signs checkpoints of it. Decides only which of these two
parts receives an input. Most applied messages cause no work in either part: tiles become full once in 256 leaves, and
checkpoints are signed at most once in `sign_ns`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chaplain.core import soonest
from chaplain.errors import Malformed
from chaplain.journal.events import FileRead, Part, ReadFile
from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.peer import TreeSignature
from chaplain.journal.model.results import AppliedMessage
from chaplain.journal.settings import JournalSettings
from chaplain.journal.tree.signer import CheckpointSigner, SignerEffect
from chaplain.journal.tree.tiles import OnDisk, TileWriter, cut
from chaplain.link.auth.identity import Identity
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.tiles import Tile, parse_path

READS_MAX = 256
"""Bound of tiles that are read from disk at a time. Further reads are refused as busy."""
WAITING_MAX = 1024
"""Bound of clients that wait for a checkpoint. Further clients get the newest one at once and ask again."""
CHECKPOINT = "checkpoint"
"""The name under which the newest complete checkpoint is served; tiles have the names of tlog-tiles."""
TreeEffect: TypeAlias = SignerEffect | ReadFile
Answer: TypeAlias = Callable[[bytes | None], None]
"""Takes the octets, or None if this node does not have them."""


def signed_file(settings: JournalSettings) -> str:
    return f"{settings.tree_folder}signed"


class TreeService:
    """Tile writer and checkpoint signer of one node."""

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
        """`signed` is the content of the file `signed_file`."""
        self._execution = execution
        self._witnessed = settings.witnessed
        self._published: SignedCheckpoint | None = None
        """With witnesses: the newest checkpoint that was offered to them, with their cosignatures."""
        self._published_covers = 0
        self._offered = (0, 0)
        """Size of the checkpoint that is being offered, and the message that it covers."""
        self.tiles = TileWriter(settings.tree_folder, execution)
        self.signer = CheckpointSigner(
            settings, execution, identity, signed, may_sign=may_sign, is_master=is_master, durable=durable
        )
        self.due_ns: int | None = None
        """When to call `on_timer`. `take_effects` updates it."""
        self._reads: dict[int, tuple[Tile, Answer]] = {}
        self._waiting: list[tuple[int, Answer]] = []
        """Questions for a checkpoint that covers a message."""
        self._covered = 0
        """The message up to which `_waiting` was answered."""
        self._token = 0
        self._read_effects: list[ReadFile] = []

    @property
    def size(self) -> int:
        return self._execution.state.tree.size

    # Checkpoints for others.

    @property
    def served(self) -> SignedCheckpoint | None:
        """The newest checkpoint for clients: the newest complete one; with witnesses, the newest one that was offered
        to them. A witness that is down therefore delays a checkpoint, and never prevents one.
        """
        return self._published if self._witnessed else self.signer.complete

    @property
    def covers(self) -> int:
        """The last message that the served checkpoint covers."""
        return self._published_covers if self._witnessed else self.signer.covers

    def unpublished(self) -> SignedCheckpoint | None:
        """The newest complete checkpoint, if it was not published yet."""
        complete = self.signer.complete
        published = 0 if self._published is None else self._published.checkpoint.size
        if complete is None or complete.checkpoint.size <= published:
            return None
        self._offered = (complete.checkpoint.size, self.signer.covers)
        return complete

    def publish(self, signed: SignedCheckpoint) -> None:
        """Serve the checkpoint that `unpublished` returned last, to which cosignatures of witnesses were added."""
        size, covers = self._offered
        assert signed.checkpoint.size == size, "only a checkpoint that was offered is published"
        self._published, self._published_covers = signed, covers

    @property
    def checkpoint_size(self) -> int:
        """The size of the newest complete checkpoint; 0 if there is none."""
        complete = self.signer.complete
        return 0 if complete is None else complete.checkpoint.size

    def checkpoint_age_ns(self, now_ns: int) -> int:
        """Time since the newest complete checkpoint became complete at this node; 0 if there is none."""
        return 0 if self.signer.complete is None else now_ns - self.signer.complete_ns

    def on_applied(self, executed: AppliedMessage) -> bool:
        """A message was applied. Return True if it made work for `take_effects`."""
        finished = self._execution.state.tree.take_finished()
        if finished:
            self.tiles.add(finished)
        self.signer.on_applied(executed.position)
        return bool(finished or self._waiting) or self.signer.wants_to_sign

    @property
    def wants_to_sign(self) -> bool:
        """True if a checkpoint waits until its messages are on disk here. Each finished write may then make it
        possible.
        """
        return self.signer.wants_to_sign

    def on_timer(self, now_ns: int) -> None:
        self.signer.on_timer(now_ns)

    def on_connected(self, node: int) -> None:
        self.signer.on_connected(node)

    def on_disconnected(self, node: int) -> None:
        self.signer.on_disconnected(node)

    def on_signature(self, now_ns: int, node: int, message: TreeSignature) -> None:
        self.signer.on_signature(now_ns, node, message)

    def on_written(self, now_ns: int, part: Part, ticket: int) -> None:
        if part is Part.TILES:
            self.tiles.on_written(ticket)
        else:
            self.signer.on_written(now_ns, ticket)

    # Questions.

    def ask(self, name: str, answer: Answer, index: int = 0) -> bool:
        """Answer with a tile, at once or after a read of the disk; or with the newest complete checkpoint, when it
        covers message `index`. Return False, without an answer, if too many tiles are being read. Raises `Malformed` if
        the name is neither that of a tile nor `CHECKPOINT`.
        """
        if name == CHECKPOINT:
            if index <= self.covers or len(self._waiting) >= WAITING_MAX:
                self._answer_checkpoint(answer)
            else:
                self._waiting.append((index, answer))
            return True
        found = self.find(name)
        if not isinstance(found, OnDisk):
            answer(found)
            return True
        if len(self._reads) >= READS_MAX:
            return False
        self._token += 1
        self._reads[self._token] = (found.tile, answer)
        self._read_effects.append(ReadFile(self._token, found.file))
        return True

    def find(self, name: str) -> bytes | OnDisk | None:
        """The newest complete checkpoint, a tile, or the file that contains the tile; None if this node has none of
        them. Raises `Malformed` if the name is neither that of a tile nor `CHECKPOINT`.
        """
        if name != CHECKPOINT:
            return self.tiles.find(parse_path(name))
        return None if self.served is None else self.served.text.encode()

    def _answer_checkpoint(self, answer: Answer) -> None:
        answer(None if self.served is None else self.served.text.encode())

    def answer_waiting(self) -> None:
        """Answer the questions whose message is covered now. The answers become effects of the parts that asked."""
        if not self._waiting:
            return
        covers = self.covers
        if covers > self._covered:
            self._covered = covers
            ready = [answer for index, answer in self._waiting if index <= covers]
            self._waiting = [one for one in self._waiting if one[0] > covers]
            for answer in ready:
                self._answer_checkpoint(answer)

    def on_file_read(self, event: FileRead) -> None:
        tile, answer = self._reads.pop(event.token)
        try:
            answer(None if event.data is None else cut(tile, event.data))
        except Malformed:
            answer(None)  # a damaged file counts as missing: another node has the same tile

    # Effects.

    def take_effects(self, now_ns: int) -> list[tuple[Part, TreeEffect]]:
        """Remove and return the effects."""
        signer = self.signer
        signer.after_step(now_ns)
        effects: list[tuple[Part, TreeEffect]] = [(Part.TILES, effect) for effect in self.tiles.due(now_ns)]
        if signer.effects:
            effects += [(Part.SIGNER, effect) for effect in signer.effects]
            signer.effects = []
        if self._read_effects:
            effects += [(Part.TILES, effect) for effect in self._read_effects]
            self._read_effects = []
        self.due_ns = soonest((self.tiles.due_ns, signer.due_ns))
        return effects
