"""Decides which leaves a message adds to the Merkle tree over the log.

Each pack that gets offsets adds one leaf, in the order of the offsets. Each granted configuration entry that changes
identities or nodes also adds one. A refused pack and a copy of an applied pack add none.
"""

from __future__ import annotations

from hashlib import sha256

from chaplain.journal.execution.state import StateDraft
from chaplain.journal.messages import config
from chaplain.journal.messages.cluster import ConfigEntry
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.membership import is_opening
from chaplain.journal.messages.write_request import Heading
from chaplain.link.auth.identity import KEY_BYTES
from chaplain.proofs import leaf

NO_KEY = bytes(KEY_BYTES)
"""In place of the signer's key, for a stage of a change that a master ordered: such a stage has no signature."""


def write_pack(draft: StateDraft, entry: IngestEntry, heading: Heading, key: bytes) -> int:
    """Append the pack's messages to its stream, and its leaf to the tree. Returns the offset of the first message."""
    base = draft.write(entry.stream, heading.messages, heading.digest)
    at = draft.position
    place = (at.regime, at.index, at.timestamp_ns, entry.stream, base, heading.messages)
    draft.leaves.append(leaf.encode_pack(place, (heading.client_id, heading.first_id), key, heading.digest))
    return base


def add_configuration(draft: StateDraft, number: int, entry: ConfigEntry) -> None:
    """Append the leaf of a configuration entry that changed identities or nodes."""
    key = NO_KEY
    if is_opening(entry.entry_type, entry.stage):
        signer = draft.client(config.decode(entry.entry_type, entry.stage, entry.data).signer)
        assert signer is not None, "an entry was granted without its signer"
        key = signer.key
    at = draft.position
    named = (number, entry.entry_type, entry.stage, key, sha256(entry.data).digest())
    draft.leaves.append(leaf.encode(leaf.ConfigurationLeaf(at.regime, at.index, at.timestamp_ns, *named)))
