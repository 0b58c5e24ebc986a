"""What the parts of a serializer share: settings, chance, memory, log, payloads, and the one way to speak."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from chaplain.core import Report
from chaplain.journal.consensus.events import Agreed, LogWritten, NeedPayload
from chaplain.journal.consensus.hard_state import HardStateStore
from chaplain.journal.consensus.payload_queue import PayloadQueue
from chaplain.journal.consensus.persist_barrier import PersistBarrier
from chaplain.journal.messages.cluster import DataEntry
from chaplain.journal.messages.consensus import OrderMessage
from chaplain.journal.model.cluster_config import ClusterConfig
from chaplain.journal.model.log_entry import LogEntry
from chaplain.journal.model.quorum import Quorum
from chaplain.journal.settings import ConsensusSettings
from chaplain.journal.storage.last_known_members import LastKnownMembers
from chaplain.journal.storage.log import ReplicatedLog

REFERENCES_TOLD = 8
"""Ingest messages that are named, as node/journal/index, when they are missing."""


class ConsensusContext:
    def __init__(
        self,
        settings: ConsensusSettings,
        chance: random.Random,
        quill: PersistBarrier,
        keeper: HardStateStore,
        log: ReplicatedLog,
    ) -> None:
        self.settings = settings
        self.chance = chance
        self.quill = quill
        self.keeper = keeper
        self.log = log
        self.shelf = PayloadQueue(settings.shelf_bytes_max, settings.shelf_idle_ns)
        self.up: list[int] = []
        """Peers we have a connection with, in the order in which they came."""
        self.firsts: dict[int, tuple[int, int]] = {}
        """Where the log of a peer begins, and how far it went when it told us."""
        self.keeps: Callable[[int, int, int], bool] = _keeps_all
        """Given the time: whether a message of this index and timestamp is to be kept here."""
        self.room = True
        """The disk has room for more."""
        self.leaving = False
        self._token = 0
        self.roster: LastKnownMembers | None = None
        """Who belongs to the cluster, if somebody knew more of it than our log says."""
        self._assembly: ClusterConfig | None = None
        self._quorum = Quorum(())
        self._peers: tuple[int, ...] = ()
        self._voters: tuple[int, ...] = ()
        self._candidates: frozenset[int] = frozenset()
        self._electorates: tuple[Quorum, ...] = ()
        self._holders: tuple[int, ...] = ()
        self._lacks: list[DataEntry] = []
        self._lack_ns: int | None = None
        self.missing = ""
        """What index-only serializers ordered and nobody who is here gives us, for people; after a while."""
        self.mark_due_ns: int | None = None
        """When the agreed mark is to be written, unless a message comes first."""

    @property
    def quorum(self) -> Quorum:
        """Who has to agree to the next message, as far as the agreed prefix that we have says."""
        self._look()
        return self._quorum

    @property
    def teachers(self) -> Quorum:
        """Of whom a majority is asked by whoever lacks what they have: those of the roster, if the log is behind it."""
        roster = self.roster
        return self.quorum if roster is None or self.log.agreed >= roster.index else roster.quorum

    @property
    def peers(self) -> tuple[int, ...]:
        """Everybody else who is told what is ordered."""
        self._look()
        return self._peers

    @property
    def voters(self) -> tuple[int, ...]:
        """Everybody else who has a vote."""
        self._look()
        return self._voters

    def may_be_master(self, node: int) -> bool:
        """Whether the node serializes, or is nominated to, as far as we know. Others get no vote, and a regime that
        only they name is no reason to do anything.
        """
        self._look()
        return node in self._candidates or node in self.teachers.voters

    @property
    def electorates(self) -> tuple[Quorum, ...]:
        """Sets of serializers; what a majority of any of them says is believed: ours, and the roster's while it is
        ahead of us.

        While two sets count jointly, one of them is enough here: a master may have been elected before Implement was
        agreed, by the old set, or after Confirm, by the new one. Nothing is agreed, and nobody elected, by this rule.
        """
        self._look()
        teachers = self.teachers
        return self._electorates if teachers is self._quorum else (*self._electorates, *_each_set(teachers))

    def key_of(self, node: int) -> bytes:
        """The node's public key, by the agreed configuration or by the roster; empty if neither knows the node."""
        placed = self.log.execution.cluster_config.node(node)
        if placed is not None:
            return placed.key
        return bytes.fromhex(self.roster.keys.get(node, "")) if self.roster is not None else b""

    @property
    def holders(self) -> tuple[int, ...]:
        """Everybody else who holds data, where serializers do not."""
        self._look()
        return self._holders

    def _look(self) -> None:
        """Derive again what depends on the assembly, if there is a new one."""
        assembly = self.log.execution.cluster_config
        if assembly is not self._assembly:
            self._assembly, self._quorum = assembly, assembly.quorum
            self._peers = tuple(node for node in assembly.members if node != self.settings.node)
            self._voters = tuple(node for node in self._quorum.voters if node != self.settings.node)
            self._electorates = _each_set(self._quorum)
            nominated = assembly.new_set
            self._candidates = frozenset((*self._quorum.voters, *(nominated.nodes if nominated else ())))
            self._holders = tuple(filter(assembly.holds_data, self._peers)) if self.log.copies else ()

    def next_token(self) -> int:
        """Names one read of the log."""
        self._token += 1
        return self._token

    def tell_all(self, message: OrderMessage) -> None:
        self.quill.tell_all(self.peers, message)

    def report(self, event: str, node: int = 0, **detail: str | int) -> None:
        self.quill.say(Report(event, str(node) if node else "", detail))

    def written(self) -> LogWritten:
        """What will be proven when all that was written to the log so far is on disk."""
        log = self.log
        reach = log.tail.index if log.tail is not None and log.has_no_gap else log.agreed
        return LogWritten(log.written, reach)

    def gather(self, entries: tuple[DataEntry, ...], master: int) -> tuple[bytes, ...] | None:
        """The payloads of these; None if some are not here, which are asked for then."""
        found: list[bytes] = []
        missing: list[DataEntry] = []
        for entry in entries:
            payload = self.log.cached_payload(entry)
            if payload is None:
                payload = self.shelf.find(entry)
            if payload is None:
                missing.append(entry)
                self.quill.say(NeedPayload(entry.reference, entry.digest, master))
            else:
                found.append(payload)
        self.shelf.want(missing)
        self._lacks = missing
        return None if missing else tuple(found)

    def settle_tail(self, now_ns: int, master: int = 0) -> bool:
        """The tail is agreed: execution has it, and the rest of the journal hears of it.

        An index-only serializer may have to wait for what it refers to: then it is not settled yet.
        """
        tail = self.log.tail
        assert tail is not None
        payloads = self.gather(tail.entries, master) if tail.lacks_payloads else tail.payloads
        if payloads is None:
            return False
        self.announce(now_ns, [self.log.commit_tail(payloads)])
        return True

    def announce(self, now_ns: int, messages: Iterable[LogEntry]) -> None:
        for message in messages:
            self.shelf.ordered(message.entries)
            self.quill.say(Agreed(message.body, message.ballot, message.hash, message.payloads))
        self._lacks, self._lack_ns, self.missing = [], None, ""
        self.mark_due_ns = now_ns + self.settings.mark_ns

    def _tell_missing(self, now_ns: int) -> None:
        """Nothing is ever skipped: if what was ordered cannot be had, people must know what it is."""
        if not self._lacks or not self.log.copies:
            self._lack_ns = None
        elif self._lack_ns is None:
            self._lack_ns = now_ns
        elif now_ns - self._lack_ns >= self.settings.patience_ns:
            self._lack_ns = now_ns
            found = [entry.reference for entry in self._lacks]
            self.missing = ", ".join(f"{one.node}/{one.journal}/{one.index}" for one in found[:REFERENCES_TOLD])
            more = f" and {len(found) - REFERENCES_TOLD} more" if len(found) > REFERENCES_TOLD else ""
            self.report("payloads are missing", 0, index=self.log.agreed + 1, references=self.missing + more)

    def woken(self, now_ns: int) -> None:
        self.shelf.expire(now_ns)
        self._tell_missing(now_ns)
        if self.mark_due_ns is not None and now_ns >= self.mark_due_ns:
            if self.quill.busy:
                self.mark_due_ns = now_ns + self.settings.heartbeat_ns  # a slow disk has better things to do
            else:
                self.write_mark()

    def write_mark(self) -> None:
        self.mark_due_ns = None
        self.quill.write(self.log.mark(self.keeper.regime), self.written())


def _each_set(quorum: Quorum) -> tuple[Quorum, ...]:
    return tuple(Quorum((members,)) for members in quorum.sets)


def _keeps_all(_now_ns: int, _index: int, _timestamp_ns: int) -> bool:
    return True
