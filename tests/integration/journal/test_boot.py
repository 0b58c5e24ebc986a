"""A node's own boot id survives its jot: else no restart would ever count as one on the same boot."""

from __future__ import annotations

from chaplain.journal.storage.records import SyncHint, decode_sync_hint, encode_sync_hint
from chaplain.runtime.layers.journal import boot_id


def test_boot_id_fits_into_a_hint() -> None:
    assert decode_sync_hint(encode_sync_hint(SyncHint(boot_id(), 1, 1))).boot == boot_id()
