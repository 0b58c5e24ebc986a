"""Packs that lie in the log and wait to be committed, and the transactions that committed some: a part of the state.

    staged        in the log, without offsets; committed, or forgotten after a while
    owed          committed: they get offsets in this order, once a copy of each is ordered again
    transactions  of each writer of batches, the last version that was committed

Decides nothing: the rules are in `transaction`. `HoldingDraft` lies over it as `Draft` lies over the state.

Invariants: a pack is staged or owed, never both; what is owed is paid in order; `paid` never passes `pledged`.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from chaplain.journal.model.records import Key, Staged, StagedPacksRecord, Transaction
from chaplain.journal.model.set_hash import MappingHash, SetHash


class StagedPacks:
    """Changed by `HoldingDraft.commit` alone."""

    def __init__(self, held: StagedPacksRecord = StagedPacksRecord()) -> None:  # noqa: B008 frozen
        self.staged: dict[Key, Staged] = {}
        """In the order in which they came."""
        self.committed: deque[Staged] = deque()
        self.transactions: dict[tuple[bytes, str], Transaction] = {}
        """The longest unused first."""
        self.replayed = held.replayed
        self._staged_hash = MappingHash(lambda: self.staged)
        self._committed_hash = SetHash()
        self._transactions_hash = MappingHash(lambda: self.transactions)
        self.hashes: tuple[SetHash, ...] = (self._staged_hash, self._committed_hash, self._transactions_hash)
        """Of all that is here but `paid`. Their order in `staged`, `owed` and `transactions` follows from the values:
        time, ticket and time.
        """
        for staged in held.staged:
            self.stage(staged.key, staged)
        for owed in held.committed:
            self.put_committed(owed)
        for transaction in held.transactions:
            self.put_transaction(transaction)

    def stage(self, key: Key, staged: Staged | None) -> None:
        """Keep this pack, or with None forget it."""
        self._staged_hash.note(key)
        if staged is not None:
            self.staged[key] = staged
        else:
            self.staged.pop(key, None)

    def put_committed(self, staged: Staged) -> None:
        self._committed_hash.add((self.committed_total, staged))
        self.committed.append(staged)

    def mark_replayed(self) -> None:
        self._committed_hash.remove((self.replayed, self.committed.popleft()))
        self.replayed += 1

    def put_transaction(self, transaction: Transaction) -> None:
        """It is the last used from now on."""
        self.forget_transaction((transaction.acl, transaction.app))
        self.transactions[transaction.acl, transaction.app] = transaction

    def forget_transaction(self, key: tuple[bytes, str]) -> None:
        self._transactions_hash.note(key)
        self.transactions.pop(key, None)

    @property
    def committed_total(self) -> int:
        """Packs ever committed."""
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
        self._staged: dict[Key, Staged | None] = {}
        self._committed: list[Staged] = []
        self._replayed = 0
        self._transactions: dict[tuple[bytes, str], Transaction] = {}
        self._forgotten: list[tuple[bytes, str]] = []

    # Staged.

    def staged(self, key: Key) -> Staged | None:
        return self._staged[key] if key in self._staged else self._base.staged.get(key)

    @property
    def staged_count(self) -> int:
        new = sum((one is not None) - (key in self._base.staged) for key, one in self._staged.items())
        return len(self._base.staged) + new

    def put_staged(self, staged: Staged) -> None:
        self._staged[staged.key] = staged

    def expire(self, horizon_ns: int) -> None:
        """Forget what was staged before this; called before anything else changes."""
        for key, staged in self._base.staged.items():
            if staged.timestamp_ns >= horizon_ns:
                break
            self._staged[key] = None

    # Owed.

    @property
    def committed_total(self) -> int:
        return self._base.committed_total + len(self._committed)

    def put_committed(self, committed: list[Staged]) -> None:
        for staged in committed:
            assert self.staged(staged.key) == staged, "something was committed that is not staged"
            self._staged[staged.key] = None
        self._committed += committed

    def next_to_replay(self) -> Staged | None:
        """What gets its offsets next."""
        if self._replayed < len(self._base.committed):
            return self._base.committed[self._replayed]
        return next(islice(self._committed, self._replayed - len(self._base.committed), None), None)

    def mark_replayed(self) -> None:
        assert self.next_to_replay() is not None, "something was paid that is not owed"
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
        """Make room by the longest unused one, if that was used before this."""
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
