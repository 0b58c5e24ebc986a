"""A journal with everything in it: lanes of two identities, streams, regimes, empty messages, requests that are void.

Made by the real executor, so that it is right by construction; the same seed gives the same journal, and two seeds may
share a beginning.
"""

from __future__ import annotations

import random
from functools import lru_cache

from chaplain.journal.execution.state_machine import JournalExecution
from chaplain.journal.messages.config import AddIdentity
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.signing import SignatureType
from chaplain.link.auth.identity import to_text
from chaplain.segment.record import Record
from tests.support.execution_stage import ADMIN, ADMIN_ACL, BOB, CLUSTER, Stage, pack, petition, stored

STREAMS = ("orders", "orders", "orders", "audit")
NODE_TOML = f"""cluster = "{CLUSTER}"
id = 1
[clients]
default = "{to_text(ADMIN.key)}"
"""
Groups = list[list[Record]]


class Author:
    """Draws requests; each lane counts its own."""

    def __init__(self, stage: Stage) -> None:
        (bob,) = stage.config(
            petition(AddIdentity("bob", SignatureType.ED25519, BOB.key, ("*",), ("*",)), nonce=b"bob".ljust(16))
        )
        lanes = [(stage.lane(1), ADMIN), (stage.lane(2, BOB, bob.acl), BOB), (stage.lane(3, ADMIN, ADMIN_ACL), ADMIN)]
        self.next_ids = {lane: [1, signer] for lane, signer in lanes}
        self.last: IngestEntry | None = None

    def entry(self, chance: random.Random) -> IngestEntry:
        lane = chance.choice(sorted(self.next_ids))
        first_id, signer = self.next_ids[lane]
        rows = chance.randint(2, 12)
        values = [b"%d/%d/%d" % (lane, first_id + row, chance.randrange(10**6)) for row in range(rows)]
        self.last = pack(lane, first_id, values, stream=chance.choice(STREAMS), signer=signer)
        self.next_ids[lane][0] += rows
        return self.last

    def entry_by_another(self) -> IngestEntry:
        """What Bob signed for a lane of the admin's."""
        lane = min(self.next_ids)
        entry = pack(lane, self.next_ids[lane][0], [b"bob was here"], stream="orders", signer=BOB)
        self.next_ids[lane][0] += 1
        return entry


def rich_journal(seed: int = 1, messages: int = 28, parts_at: int | None = None) -> Groups:
    """The records of each message. From `parts_at` on another story is told."""
    return list(_rich_journal(seed, messages, parts_at))


@lru_cache(maxsize=64)
def _rich_journal(seed: int, messages: int, parts_at: int | None) -> Groups:
    return recorded(rich_stage(seed, messages, parts_at))


def rich_stage(seed: int = 1, messages: int = 28, parts_at: int | None = None) -> Stage:
    """The messages of `rich_journal`."""
    stage = Stage()
    author = Author(stage)
    chance = random.Random(f"rich {seed}")
    regime = 1
    for number in range(messages):
        if number == parts_at:
            chance = random.Random(f"other {seed}")
        regime += chance.random() < 0.1
        listed = []
        for node in range(1, chance.randint(0, 2) + (chance.random() < 0.8) + 1):
            again = [author.last] if author.last and chance.random() < 0.15 else []
            listed.append(
                stage.prefix.ingest([*again, *[author.entry(chance) for _ in range(chance.randint(1, 3))]], node)
            )
        stage.prefix.order(listed, regime=regime)
    return stage


def recorded(stage: Stage, believe: bool = False) -> Groups:
    """The stage's prefix as records; `believe` leaves signatures unchecked."""
    execution = JournalExecution(stage.founding)
    groups = []
    for settled in stage.prefix.messages:
        for entry in settled.body.data_entries if believe else ():
            execution.cache_checks(entry.digest, [True])
        groups.append(stored(settled, execution.apply(settled)))
    return groups
