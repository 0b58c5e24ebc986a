"""Packs that wait in the log for a commit, and the transactions that committed some: a part of the execution state.

    staged        in the log, without offsets; a commit takes them, or they expire
    committed     committed and without offsets; each gets them, in this order, when a node orders a copy of it again
    transactions  for each writer of batches, the last version that it committed

Decides nothing: the rules are in `two_phase`. `StagedPacksDraft` overlays it as `StateDraft` overlays the state.

Invariants: a pack is staged or committed, never both. Committed packs are replayed in order. `replayed` never exceeds
`committed_total`.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice

from chaplain.journal.model.records import PackKey, Staged, StagedPacksRecord, Transaction
from chaplain.journal.model.set_hash import MappingHash, SetHash


class StagedPacks:
    """The staged and committed packs. Only `StagedPacksDraft.commit` changes them."""

    def __init__(self, record: StagedPacksRecord = StagedPacksRecord()) -> None:  # noqa: B008 frozen
        self.staged: dict[PackKey, Staged] = {}
        """In the order in which they were staged."""
        self.committed: deque[Staged] = deque()
        self.transactions: dict[tuple[bytes, str], Transaction] = {}
        """The least recently used first."""
        self.replayed = record.replayed
        self._staged_by: Counter[bytes] = Counter()
        """Number of staged packs of each identity."""
        self._staged_hash = MappingHash(lambda: self.staged)
        self._committed_hash = SetHash()
        self._transactions_hash = MappingHash(lambda: self.transactions)
        self.hashes: tuple[SetHash, ...] = (self._staged_hash, self._committed_hash, self._transactions_hash)
        """Hashes of everything here except `replayed`. They do not depend on the order of the collections, which
        follows from the timestamps of staged packs and transactions, and from the tickets of committed packs.
        """
        for staged in record.staged:
            self.stage(staged.key, staged)
        for owed in record.committed:
            self.put_committed(owed)
        for transaction in record.transactions:
            self.put_transaction(transaction)

    def stage(self, key: PackKey, staged: Staged | None) -> None:
        """Store this pack; None deletes it."""
        self._staged_hash.note(key)
        before = self.staged.get(key)
        if before is not None:
            self._staged_by[before.acl] -= 1
        if staged is not None:
            self._staged_by[staged.acl] += 1
            self.staged[key] = staged
        else:
            self.staged.pop(key, None)

    def staged_by(self, acl: bytes) -> int:
        return self._staged_by[acl]

    def put_committed(self, staged: Staged) -> None:
        """Append a pack to those that wait for their replay."""
        self._committed_hash.add((self.committed_total, staged))
        self.committed.append(staged)

    def mark_replayed(self) -> None:
        """Remove the first committed pack: it has its offsets now."""
        self._committed_hash.remove((self.replayed, self.committed.popleft()))
        self.replayed += 1

    def put_transaction(self, transaction: Transaction) -> None:
        """Store the transaction as the most recently used one."""
        self.forget_transaction((transaction.acl, transaction.app))
        self.transactions[transaction.acl, transaction.app] = transaction

    def forget_transaction(self, key: tuple[bytes, str]) -> None:
        self._transactions_hash.note(key)
        self.transactions.pop(key, None)

    @property
    def committed_total(self) -> int:
        """Number of packs that were ever committed."""
        return self.replayed + len(self.committed)

    def export(self) -> StagedPacksRecord:
        return StagedPacksRecord(
            tuple(self.staged.values()),
            tuple(self.committed),
            tuple(self.transactions.values()),
            self.replayed,
        )


class StagedPacksDraft:
    """The changes that one message would make."""

    def __init__(self, staged_packs: StagedPacks) -> None:
        self._base = staged_packs
        self._staged: dict[PackKey, Staged | None] = {}
        self._staged_change: dict[bytes, int] = {}
        """Change of the number of staged packs of each identity."""
        self._committed: list[Staged] = []
        self._replayed = 0
        self._transactions: dict[tuple[bytes, str], Transaction] = {}
        self._forgotten: list[tuple[bytes, str]] = []

    # Staged.

    def staged(self, key: PackKey) -> Staged | None:
        return self._staged[key] if key in self._staged else self._base.staged.get(key)

    @property
    def staged_count(self) -> int:
        return len(self._base.staged) + sum(self._staged_change.values())

    def staged_by(self, acl: bytes) -> int:
        """Number of staged packs of one identity."""
        return self._base.staged_by(acl) + self._staged_change.get(acl, 0)

    def put_staged(self, staged: Staged) -> None:
        self._staged_change[staged.acl] = self._staged_change.get(staged.acl, 0) + 1
        self._staged[staged.key] = staged

    def drop_staged(self, staged: Staged) -> None:
        assert self.staged(staged.key) == staged, "a pack was dropped that is not staged"
        self._staged_change[staged.acl] = self._staged_change.get(staged.acl, 0) - 1
        self._staged[staged.key] = None

    def expire(self, horizon_ns: int) -> None:
        """Delete the packs that were staged before this time. Must be called before any other change."""
        for staged in self._base.staged.values():
            if staged.timestamp_ns >= horizon_ns:
                break
            self.drop_staged(staged)

    # Committed.

    @property
    def committed_total(self) -> int:
        return self._base.committed_total + len(self._committed)

    def put_committed(self, committed: list[Staged]) -> None:
        """Move staged packs to the committed ones."""
        for staged in committed:
            self.drop_staged(staged)
        self._committed += committed

    def next_to_replay(self) -> Staged | None:
        """The committed pack that gets its offsets next."""
        if self._replayed < len(self._base.committed):
            return self._base.committed[self._replayed]
        return next(islice(self._committed, self._replayed - len(self._base.committed), None), None)

    def mark_replayed(self) -> None:
        assert self.next_to_replay() is not None, "a pack was replayed that is not committed"
        self._replayed += 1

    # Transactions.

    def transaction(self, acl: bytes, app: str) -> Transaction | None:
        return self._transactions.get((acl, app)) or self._base.transactions.get((acl, app))

    def put_transaction(self, transaction: Transaction) -> None:
        key = (transaction.acl, transaction.app)
        self._transactions.pop(key, None)
        self._transactions[key] = transaction

    @property
    def transactions_count(self) -> int:
        new = sum(key not in self._base.transactions for key in self._transactions)
        return len(self._base.transactions) + new - len(self._forgotten)

    def forget_transaction(self, horizon_ns: int) -> bool:
        """Delete the least recently used transaction if it was last used before this time. Returns whether it did."""
        for key, transaction in islice(self._base.transactions.items(), len(self._forgotten), None):
            if transaction.timestamp_ns < horizon_ns and key not in self._transactions:
                self._forgotten.append(key)
                return True
            break
        return False

    def commit(self) -> None:
        staged_packs = self._base
        for key, staged in self._staged.items():
            staged_packs.stage(key, staged)
        for staged in self._committed:
            staged_packs.put_committed(staged)
        for _ in range(self._replayed):
            staged_packs.mark_replayed()
        for forgotten in self._forgotten:
            staged_packs.forget_transaction(forgotten)
        for transaction in self._transactions.values():
            staged_packs.put_transaction(transaction)
