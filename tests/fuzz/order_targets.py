"""What serializers say to each other, and the small files beside their log."""

from __future__ import annotations

import re
from pathlib import Path

from chaplain.errors import Malformed
from chaplain.journal.consensus.hard_state import decode_hard_state, encode_hard_state
from chaplain.journal.messages import consensus
from chaplain.journal.messages.cluster import decode_body, encode_body
from chaplain.journal.storage.records import decode_sync_hint, encode_sync_hint
from chaplain.segment.layout import checksum

_DOCUMENT = Path(__file__).parents[2] / "docs" / "protocol" / "journal-order.md"
_EXAMPLES = {
    name: bytes.fromhex("".join(text.split()))
    for name, text in re.findall(r"```hex (\w+)\n(.*?)```", _DOCUMENT.read_text(), re.DOTALL)
}

SEEDS = {
    "target_order_message": [data for name, data in _EXAMPLES.items() if name not in ("body", "standing", "jot")],
    "target_body": [_EXAMPLES["body"]],
    "target_standing": [_EXAMPLES["standing"]],
    "target_jot": [_EXAMPLES["jot"]],
}


def target_order_message(data: bytes) -> None:
    try:
        message = consensus.decode(data)
    except Malformed:
        return
    assert consensus.decode(consensus.encode(message)) == message


def target_body(data: bytes) -> None:
    try:
        body = decode_body(data)
    except Malformed:
        return
    assert encode_body(body) == data, "two spellings of one body would be two hashes"


def target_standing(data: bytes) -> None:
    """With a checksum that holds: what is behind it is decoded, too."""
    for given in (data, data[:-4] + checksum(data[:-4]).to_bytes(4, "big")):
        try:
            standing = decode_hard_state(given)
        except Malformed:
            continue
        assert decode_hard_state(encode_hard_state(standing)) == standing


def target_jot(data: bytes) -> None:
    for given in (data, data[:-4] + checksum(data[:-4]).to_bytes(4, "little")):
        try:
            jot = decode_sync_hint(given)
        except Malformed:
            continue
        assert decode_sync_hint(encode_sync_hint(jot)) == jot
