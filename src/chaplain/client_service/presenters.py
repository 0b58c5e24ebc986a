"""How values look to a client: names, ids and answers in a form that JSON can represent."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

from chaplain.client_service.messages import NAME_BYTES_MAX
from chaplain.errors import Malformed
from chaplain.gossip.events import BUILT_IN, Acknowledged, EventId, QueryAnswer
from chaplain.wire import parcel
from chaplain.wire.parcel import Parcel

TALLY_BYTES_MAX = 1 << 20
"""Total size of the answers in a tally."""


def bad_name(name: str) -> str:
    """Why this cannot name a pool, an event or a question; empty if it can. Names travel as strings of mesh.txt."""
    if 0 < len(name) <= NAME_BYTES_MAX and name.isascii() and name.isprintable() and " " not in name:
        return ""
    return f"a name has 1 to {NAME_BYTES_MAX} visible ASCII characters, not {name[:40]!r}"


def bad_question(question: str) -> str:
    """Why a client cannot answer this question; empty if it can."""
    if question in BUILT_IN:
        return f"every node answers {question!r} by itself: choose another name"
    return bad_name(question)


def broadcast(content: bytes, speaker: int) -> Parcel:
    """Decode a broadcast. Raises `Malformed` if it names another node than the one that sent it."""
    opened = parcel.decode(content)
    if opened.node != speaker:
        raise Malformed(f"broadcast: {speaker:08x} speaks for {opened.node:08x}")
    return opened


def client_name(body: bytes) -> str:
    """The name of the client that broadcast to a pool, as its node reports it. A hostile node can send any name."""
    if len(body) > NAME_BYTES_MAX:
        raise Malformed(f"broadcast: a client's name has at most {NAME_BYTES_MAX} octets, not {len(body)}")
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise Malformed("broadcast: a client's name is UTF-8") from None


def id_text(event: EventId) -> str:
    return f"{event.origin:08x}-{event.epoch:x}-{event.counter:x}"


def query_id(text: str) -> EventId:
    try:
        origin, epoch, counter = (int(part, 16) for part in text.split("-"))
    except ValueError:
        raise Malformed(f"query: {text[:60]!r} is not the id of a question") from None
    return EventId(origin, epoch, counter)


def value(data: bytes) -> str | dict[str, str]:
    """Text as text; bytes that are not UTF-8 as base64, marked as such."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def answer(given: QueryAnswer, node_id: Callable[[int], int]) -> dict[str, object]:
    """The answer to a question, as JSON."""
    return {
        "question": given.question,
        "value": None if given.value is None else value(given.value),
        "votes": given.votes,
        "members": given.members,
        "decided": given.decided,
        "voters": sorted(node_id(identifier) for identifier in given.voters),
        "missing": sorted(node_id(identifier) for identifier in given.missing),
        "declined": sorted(node_id(identifier) for identifier in given.declined),
        "tally": [[value(content), votes] for content, votes in _first_few(given.tally)],
        "reason": given.reason,
    }


def acknowledgement(event: Acknowledged, node_id: Callable[[int], int]) -> dict[str, object]:
    """The acknowledgements of an event, as JSON."""
    return {
        "acknowledged": sorted(node_id(identifier) for identifier in event.seen_by),
        "missing": sorted(node_id(identifier) for identifier in event.missing),
    }


def _first_few(tally: tuple[tuple[bytes, int], ...]) -> Iterator[tuple[bytes, int]]:
    """The answers with the most votes, up to `TALLY_BYTES_MAX`: each of thousands of members may give its own."""
    left_bytes = TALLY_BYTES_MAX
    for content, votes in tally:
        left_bytes -= len(content)
        if left_bytes < 0:
            return
        yield content, votes
