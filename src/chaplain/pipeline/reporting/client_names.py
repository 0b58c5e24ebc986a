"""Finds the names of the clients that used each lane, for the report.

A row states the lane of its writer (`client_id`). The log states which identity leased a lane, and the name of an
identity; the names of the founding clients are in the `node.toml` beside the log. Names are shown, not proven:
`verify` checks the signatures of these entries.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import groupby
from pathlib import Path

from chaplain.config import NODE_FILE, load_node
from chaplain.errors import ChaplainError, Malformed
from chaplain.journal.messages import config as config_message
from chaplain.journal.messages.cluster import ConfigEntry, decode_body
from chaplain.journal.messages.config import AddIdentity, LeaseLane, acl_id
from chaplain.journal.messages.membership import is_opening
from chaplain.journal.model.results import ConfigVerdict
from chaplain.journal.storage import verdict as verdicts
from chaplain.journal.storage.records import verdict_of
from chaplain.journal.storage.verdict import Reason
from chaplain.pipeline.source.offset_index import open_index, read_places
from chaplain.segment.record import Kind, Record
from chaplain.verification.batches import split_first


def client_names(cluster: str | Path, path: str | Path) -> dict[int, str]:
    """Return the client's name of each lane that the log of a cluster, or of a node's folder, leased."""
    index = open_index(str(path), str(cluster))
    places = [place for place in index.places if place.kind in (Kind.META, Kind.VERDICT)]
    if not places:
        return {}
    found = _Names(Path(places[0].path).parent)
    for _, of_file in groupby(places, lambda place: place.path):
        with suppress(ChaplainError, OSError):  # a lane without a name is shown by its number
            for record in read_places(list(of_file)):
                found.take(record)
    return {lane: found.names[acl] for lane, acl in found.lanes.items() if acl in found.names}


class _Names:
    def __init__(self, segments: Path) -> None:
        self.names: dict[bytes, str] = {}
        self.lanes: dict[int, bytes] = {}
        self._bodies: dict[bytes, bytes] = {}
        """Bodies whose verdict was not read yet, by the hash of their message."""
        with suppress(ChaplainError, OSError):
            founders = sorted(load_node(segments.resolve().parent / NODE_FILE, environment={}).clients)
            self.names = {acl_id(0, 0, number): name for number, name in enumerate(founders, 1)}

    def take(self, record: Record) -> None:
        if record.kind == Kind.META and record.part == 0:
            self._bodies[record.chain_hash] = split_first(record)[0]
            return
        raw = self._bodies.pop(record.chain_hash, None)
        if record.kind != Kind.VERDICT or raw is None:
            return
        body, decided = decode_body(raw), verdicts.decode(verdict_of(record))
        for entry, result in zip(body.entries, decided.entries, strict=False):
            if (
                isinstance(entry, ConfigEntry)
                and isinstance(result, ConfigVerdict)
                and result.reason is Reason.APPLIED
                and is_opening(entry.entry_type, entry.stage)
            ):
                self._apply(entry, result)

    def _apply(self, entry: ConfigEntry, result: ConfigVerdict) -> None:
        try:
            message = config_message.decode(entry.entry_type, entry.stage, entry.data).message
        except Malformed:
            return
        if isinstance(message, AddIdentity):
            self.names[result.acl] = message.name
        elif isinstance(message, LeaseLane):
            self.lanes[result.client_id] = message.acl
