"""Messages between serializers: proposals, acknowledgements, elections, catch-up, vote recovery and repair.

    message = protocol 1 | purpose 1 | regime 4 | index 8 | flags 1 | node 1 | fields of the purpose

Decides which octets are which message. No message contains its sender: the connection identifies it. A pair of index
and ballot describes the end of a log, as (lastLogIndex, lastLogTerm) does in Raft. The ballot `KNOWN_AGREED` says that
the last message is known to be agreed. Byte tables and hex examples: docs/protocol/journal-order.md.

A *life* is a counter of a node: how often it returned without its votes. Nodes ignore votes and acknowledgements from a
lower life than the highest that they know of that node.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages.cluster import DIGEST_BYTES
from chaplain.link.auth.identity import SIGNATURE_BYTES
from chaplain.wire.primitives import ByteReader, put_number

ORDER_PROTOCOL = 2
"""Version of these messages. In version 1, votes had no signatures and masters sent no election proof."""

KNOWN_AGREED = 0xFFFFFFFF
"""Compares higher than every ballot. No regime has this number."""

_HEAD = struct.Struct(">BBIQBB")
_HEAD_BYTES = _HEAD.size
_PROOF = struct.Struct(">32sIB")
"""The fields of an acknowledgement when `lives` is empty: hash, life, and a count of 0."""

Lives = dict[int, int]
"""The highest known life of each node that ever returned without its votes."""
SignedVotes = dict[int, bytes]
"""Signatures of the nodes that voted for one candidate in one regime, by node; see `consensus.election_proof`."""


class Propose(Frozen, frozen=True):
    """The master proposes this body at its index. All earlier messages are agreed."""

    regime: int
    index: int
    body: bytes


class ProposalAck(Frozen, frozen=True):
    """The sender has the message and all its payloads on disk, stored under this regime."""

    regime: int
    index: int
    hash: bytes
    life: int
    lives: Lives


class AgreedMark(Frozen, frozen=True):
    """The master's heartbeat: everything up to this index is agreed (Raft: the commit index)."""

    regime: int
    index: int
    hash: bytes


class MarkHeard(Frozen, frozen=True):
    """Answer to an `AgreedMark`, or to a message of an earlier regime. `regime` is the regime that the sender has
    promised, `index` the end of its log, `agreed` the end of its agreed prefix.
    """

    regime: int
    index: int
    agreed: int


class Canvass(Frozen, frozen=True):
    """Pre-vote request: would the receiver vote for the sender in this regime?"""

    regime: int
    index: int
    ballot: int


class Canvassed(Frozen, frozen=True):
    """Answer to a pre-vote; it does not bind the voter. `promised` is the regime that the voter is in."""

    regime: int
    granted: bool
    promised: int


class AskVote(Frozen, frozen=True):
    """Request for a vote. `handover` says that the old master asked the sender to campaign."""

    regime: int
    index: int
    ballot: int
    handover: bool


class Vote(Frozen, frozen=True):
    """Answer to `AskVote`. A granted vote is on the voter's disk and signed; the voter no longer takes part in earlier
    regimes.
    """

    regime: int
    granted: bool
    promised: int
    life: int
    lives: Lives
    signature: bytes = b""


class Fetch(Frozen, frozen=True):
    """Request for agreed messages from this index on; with `tail`, also for the message that the receiver holds after
    them.
    """

    index: int
    tail: bool


class Supplied(Frozen, frozen=True):
    """One message with its payloads."""

    body: bytes
    payloads: tuple[bytes, ...]


class Supply(Frozen, frozen=True):
    """Agreed messages from `index` on. If `tail_ballot` is not 0, the last one is stored under that ballot and not
    known to be agreed.
    """

    index: int
    agreed: int
    messages: tuple[Supplied, ...]
    tail_ballot: int = 0


class RecoveryQuestion(Frozen, frozen=True):
    """The sender may have lost its votes. Life 0 only asks for the sender's highest known life; any other value begins
    that life.
    """

    nonce: int
    life: int


class RecoveryAnswer(Frozen, frozen=True):
    """The messages that the answering node has stored and the votes that it has given, all on its disk.

    `standing` is its voting state; `asker_life` is the highest life of the asking node that it knows.
    """

    nonce: int
    regime: int
    index: int
    ballot: int
    standing: int
    asker_life: int
    lives: Lives


class Handover(Frozen, frozen=True):
    """The sender's regime ended with this message; the receiver should campaign now."""

    regime: int
    index: int


class Recall(Frozen, frozen=True):
    """Request for one agreed message and the ones before it, `count` messages in total."""

    index: int
    count: int = 1


class RecalledMessage(Frozen, frozen=True):
    """An agreed message with the verdict that execution stored for it. The verdict is the same on every node."""

    body: bytes
    verdict: bytes
    payloads: tuple[bytes, ...]


class Recalled(Frozen, frozen=True):
    """The message with this index, then the ones before it, newest first."""

    index: int
    messages: tuple[RecalledMessage, ...]


class ElectionProof(Frozen, frozen=True):
    """A quorum elected the sender master of this regime; `votes` are the signed votes."""

    regime: int
    votes: SignedVotes


OrderMessage: TypeAlias = (
    Propose
    | ProposalAck
    | AgreedMark
    | MarkHeard
    | Canvass
    | Canvassed
    | AskVote
    | Vote
    | Fetch
    | Supply
    | RecoveryQuestion
    | RecoveryAnswer
    | Handover
    | Recall
    | Recalled
    | ElectionProof
)


def _head(purpose: int, regime: int = 0, index: int = 0, flags: int = 0, node: int = 0) -> bytes:
    try:
        return _HEAD.pack(ORDER_PROTOCOL, purpose, regime, index, flags, node)
    except struct.error as error:
        raise ValueError(f"order message: {error}") from None


def _put_lives(lives: Mapping[int, int]) -> bytes:
    if not lives:
        return b"\0"
    pairs = (put_number(node, 1) + put_number(lives[node], 4) for node in sorted(lives))
    return put_number(len(lives), 1) + b"".join(pairs)


def encode(message: OrderMessage, node: int = 0) -> bytes:
    """Encode a message. `node` becomes the head's Master node id: the master, candidate or node that the message is
    about.
    """
    match message:
        case Propose():
            return _head(1, message.regime, message.index, 0, node) + message.body
        case ProposalAck():
            fields = message.hash + put_number(message.life, 4) + _put_lives(message.lives)
            return _head(2, message.regime, message.index, 0, node) + fields
        case AgreedMark():
            return _head(3, message.regime, message.index, 0, node) + message.hash
        case MarkHeard():
            return _head(4, message.regime, message.index, 0, node) + put_number(message.agreed, 8)
        case Canvass():
            return _head(5, message.regime, message.index, 0, node) + put_number(message.ballot, 4)
        case Canvassed():
            return _head(6, message.regime, 0, message.granted, node) + put_number(message.promised, 4)
        case AskVote():
            return _head(7, message.regime, message.index, message.handover, node) + put_number(message.ballot, 4)
        case Vote():
            if len(message.signature) != (SIGNATURE_BYTES if message.granted else 0):
                raise ValueError(f"vote: a signature of {len(message.signature)} octets")
            fields = put_number(message.promised, 4) + put_number(message.life, 4) + _put_lives(message.lives)
            return _head(8, message.regime, 0, message.granted, node) + fields + message.signature
        case Fetch():
            return _head(9, 0, message.index, message.tail, node)
        case Supply():
            return _encode_supply(message, node)
        case RecoveryQuestion():
            return _head(11, 0, 0, 0, node) + put_number(message.nonce, 8) + put_number(message.life, 4)
        case RecoveryAnswer():
            numbers = ((message.nonce, 8), (message.ballot, 4), (message.standing, 1), (message.asker_life, 4))
            fields = b"".join(put_number(value, size) for value, size in numbers) + _put_lives(message.lives)
            return _head(12, message.regime, message.index, 0, node) + fields
        case Handover():
            return _head(13, message.regime, message.index, 0, node)
        case Recall():
            return _head(14, 0, message.index, 0, node) + put_number(message.count, 2)
        case Recalled():
            pieces = [_head(15, 0, message.index, 0, node), put_number(len(message.messages), 2)]
            return b"".join([*pieces, *map(_put_recalled, message.messages)])
        case ElectionProof():
            votes = (put_number(voter, 1) + message.votes[voter] for voter in sorted(message.votes))
            return b"".join((_head(16, message.regime, 0, 0, node), put_number(len(message.votes), 1), *votes))
        case _:
            assert_never(message)


def _encode_supply(supply: Supply, node: int) -> bytes:
    pieces = [_head(10, 0, supply.index, 0, node), put_number(supply.agreed, 8)]
    pieces += [put_number(supply.tail_ballot, 4), put_number(len(supply.messages), 2)]
    pieces += map(_put_supplied, supply.messages)
    return b"".join(pieces)


def _put_supplied(message: Supplied) -> bytes:
    sizes = (len(message.body), len(message.payloads), *map(len, message.payloads))
    return b"".join((*(put_number(size, 4) for size in sizes), message.body, *message.payloads))


def _put_recalled(recalled: RecalledMessage) -> bytes:
    return (
        put_number(len(recalled.verdict), 4)
        + _put_supplied(Supplied(recalled.body, recalled.payloads))
        + recalled.verdict
    )


def decode(data: bytes) -> OrderMessage:
    if len(data) < _HEAD_BYTES:
        raise Malformed(f"order message: a head has {_HEAD_BYTES} octets, not {len(data)}")
    protocol, purpose, regime, index, flags, _ = _HEAD.unpack_from(data)
    if protocol != ORDER_PROTOCOL:
        raise Malformed(f"order message: protocol {protocol}, this program speaks {ORDER_PROTOCOL}")
    if flags > 1 or (flags and purpose not in _FLAGGED):
        raise Malformed("order message: unknown flags")
    if regime == KNOWN_AGREED:
        raise Malformed("order message: no regime has this number")
    if purpose == _PROPOSE:
        return Propose(regime, index, data[_HEAD_BYTES:])
    if purpose == _ACKNOWLEDGE and len(data) == _HEAD_BYTES + _PROOF.size:
        digest, life, lives = _PROOF.unpack_from(data, _HEAD_BYTES)
        if not lives:
            return ProposalAck(regime, index, digest, life, {})
    cursor = ByteReader(data, _HEAD_BYTES)
    message = _decode_fields(cursor, purpose, regime, index, bool(flags))
    cursor.end("order message")
    return message


_PROPOSE, _ACKNOWLEDGE = 1, 2
"""Every write sends these two, so `decode` tests for them first."""
_FLAGGED = (6, 7, 8, 9)


def _decode_fields(cursor: ByteReader, purpose: int, regime: int, index: int, flag: bool) -> OrderMessage:
    match purpose:
        case 2:
            digest = cursor.take(DIGEST_BYTES, "hash")
            return ProposalAck(regime, index, digest, cursor.number(4, "life"), _lives(cursor))
        case 3:
            return AgreedMark(regime, index, cursor.take(DIGEST_BYTES, "hash"))
        case 4:
            return MarkHeard(regime, index, cursor.number(8, "agreed"))
        case 5:
            return Canvass(regime, index, cursor.number(4, "ballot"))
        case 6:
            return Canvassed(regime, flag, cursor.number(4, "promised"))
        case 7:
            return AskVote(regime, index, cursor.number(4, "ballot"), flag)
        case 8:
            promised, life = cursor.number(4, "promised"), cursor.number(4, "life")
            lives = _lives(cursor)
            signature = cursor.take(SIGNATURE_BYTES, "signature") if flag else b""
            return Vote(regime, flag, promised, life, lives, signature)
        case 9:
            return Fetch(index, flag)
        case 10:
            return _supply(cursor, index)
        case 11:
            return RecoveryQuestion(cursor.number(8, "nonce"), cursor.number(4, "life"))
        case 12:
            nonce, ballot = cursor.number(8, "nonce"), cursor.number(4, "ballot")
            standing, life = cursor.number(1, "standing"), cursor.number(4, "life")
            return RecoveryAnswer(nonce, regime, index, ballot, standing, life, _lives(cursor))
        case 13:
            return Handover(regime, index)
        case 14:
            return Recall(index, cursor.number(2, "count"))
        case 15:
            return Recalled(index, tuple(_recalled(cursor) for _ in range(cursor.number(2, "messages"))))
        case 16:
            return ElectionProof(regime, _votes(cursor))
        case _:
            raise Malformed(f"order message: purpose {purpose} is not one of 1 to 16")


def _lives(cursor: ByteReader) -> Lives:
    lives: Lives = {}
    for _ in range(cursor.number(1, "lives")):
        node = cursor.number(1, "node")
        if lives and node <= max(lives):
            raise Malformed("lives: nodes must rise")
        lives[node] = cursor.number(4, "life")
    return lives


def _votes(cursor: ByteReader) -> SignedVotes:
    votes: SignedVotes = {}
    for _ in range(cursor.number(1, "votes")):
        voter = cursor.number(1, "voter")
        if votes and voter <= max(votes):
            raise Malformed("votes: voters must rise")  # a repeated voter would count twice
        votes[voter] = cursor.take(SIGNATURE_BYTES, "signature")
    return votes


def _supply(cursor: ByteReader, index: int) -> Supply:
    agreed, tail_ballot = cursor.number(8, "agreed"), cursor.number(4, "tail ballot")
    messages = tuple(_supplied(cursor) for _ in range(cursor.number(2, "messages")))
    if tail_ballot and not messages:
        raise Malformed("supply: a tail without a message")
    return Supply(index, agreed, messages, tail_ballot)


def _supplied(cursor: ByteReader) -> Supplied:
    body_bytes, count = cursor.number(4, "body size"), cursor.number(4, "payloads")
    sizes = cursor.take(4 * count, "payload sizes")
    body = cursor.take(body_bytes, "body")
    payloads = (cursor.take(int.from_bytes(sizes[at : at + 4], "big"), "payload") for at in range(0, len(sizes), 4))
    return Supplied(body, tuple(payloads))


def _recalled(cursor: ByteReader) -> RecalledMessage:
    verdict_bytes = cursor.number(4, "verdict size")
    supplied = _supplied(cursor)
    return RecalledMessage(supplied.body, cursor.take(verdict_bytes, "verdict"), supplied.payloads)
