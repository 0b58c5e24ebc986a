"""Executes packs that contain commands to consumers, or acknowledge messages together with statements.

    pack of type CONSUMER      each message is a command to a consumer of the pack's stream; the pack is always accepted
    pack of STATEMENTS         if its first message has an acknowledgement in a header, both are accepted or neither is

Decides what the pack's verdict is. The rules about consumers are in `consumers`.
"""

from __future__ import annotations

from chaplain.errors import Malformed
from chaplain.journal.execution import consumers
from chaplain.journal.execution.consumers import Context
from chaplain.journal.execution.state import StateDraft
from chaplain.journal.messages.consumer import commands_of, header_of
from chaplain.journal.messages.ingest import IngestEntry
from chaplain.journal.messages.write_request import COLUMNS_AT
from chaplain.journal.model.records import ClientIdentity
from chaplain.journal.storage.verdict import Reason
from chaplain.rights import may_read
from chaplain.segment.pack import HEADERS


def execute(draft: StateDraft, client: ClientIdentity, entry: IngestEntry) -> tuple[Reason, int]:
    """Execute the commands of a pack. Returns the number of refused ones in place of an offset.

    A pack with a command that does not follow its format is refused, and nothing of it is executed.
    """
    try:
        commands = commands_of(entry.raw)
    except Malformed:
        return Reason.BAD_COMMAND, 0
    return Reason.COMMITTED, consumers.execute(draft.consumers, _context(draft, client, entry.stream), commands)


def acknowledge(draft: StateDraft, client: ClientIdentity, entry: IngestEntry) -> Reason:
    """Execute the acknowledgement in the headers of a pack of statements, if there is one.

    APPLIED if the statements may be executed.
    """
    if not entry.raw[COLUMNS_AT] & HEADERS:
        return Reason.APPLIED
    try:
        found = header_of(entry.raw)
    except Malformed:
        return Reason.BAD_COMMAND
    if found is None:
        return Reason.APPLIED
    stream, command = found
    if not may_read(client, stream):
        return Reason.NO_RIGHT
    counts = consumers.acknowledge(draft.consumers, _context(draft, client, stream), command)
    return Reason.APPLIED if counts else Reason.LEASE_LOST


def _context(draft: StateDraft, client: ClientIdentity, stream: str) -> Context:
    return Context(client.acl, client.admin, stream, draft.position.timestamp_ns, draft.next_offset(stream))
