"""Signed configuration requests of journal.txt: about clients, about checkpoints, and the opening stage of node
changes.

    data = fields of the type | signer 15 | nonce 16 | epoch 16 | signature size 2 | signature

Decides which octets are a configuration request and what its signature covers. Refuses to know whether the request is
granted. The signature covers the cluster, the entry type, the stage and all data before the signature's size.
Configuration requests are always signed with the Ed25519 key of an identity. A request is valid for a bounded number of
epochs from the one in which it was signed (`model.epochs`). Byte tables and hex examples:
docs/protocol/journal-requests.md for clients, docs/protocol/configuration.md for nodes, docs/protocol/checkpoints.md
for checkpoints.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias, assert_never

from chaplain.core import Frozen
from chaplain.errors import Malformed
from chaplain.journal.messages import membership
from chaplain.journal.messages.membership import (
    OPENING,
    AddNode,
    EntryType,
    NewSet,
    NodeMessage,
    RemoveNode,
    is_opening,
)
from chaplain.journal.messages.signing import CONFIG_LABEL, WRAPPED_BYTES, ConfigCheck, holds
from chaplain.link.auth.identity import KEY_BYTES, SIGNATURE_BYTES, Identity
from chaplain.wire.primitives import ByteReader, put_number, put_string, put_strings

ACL_BYTES = 15
NO_ACL = bytes(ACL_BYTES)
NONCE_BYTES = 16
EPOCH_BYTES = 16
NAME_BYTES = 16
_ADMIN = 1
_RETRY = b"retry of"
_NAME_LABEL = b"chaplain configuration request\0"


class AddIdentity(Frozen, frozen=True):
    """Add Client without an ACL id: a new identity. Its ACL id is the full id of this entry."""

    name: str
    signature_type: int
    key: bytes
    """The public key; with HMAC, the wrapped secret follows it."""
    writes: tuple[str, ...]
    """Patterns of streams that the identity may write; `*` matches anything."""
    reads: tuple[str, ...]
    admin: bool = False


class LeaseLane(Frozen, frozen=True):
    """Add Client with an ACL id: lease a lane to that identity. Execution chooses the lane's client id."""

    acl: bytes


class RemoveIdentity(Frozen, frozen=True):
    """Remove Client by ACL id: end the identity and all its lanes."""

    acl: bytes


class ReleaseLane(Frozen, frozen=True):
    """Remove Client by client id: end the lane and delete its state."""

    client_id: int


class RetireLane(Frozen, frozen=True):
    """Remove Client by client id and ACL id: end the lane of this identity, but retain its last request ids for a
    while.
    """

    client_id: int
    acl: bytes


class FenceLane(Frozen, frozen=True):
    """Fence a lane: execution applies no further request on it. A request that is not applied by now never will be."""

    client_id: int


class MakeCheckpoint(Frozen, frozen=True):
    """Every node stores its state after the message that contains this request."""

    through: int
    """Nodes may drop the log up to this message, even if their retention rules would retain it; 0 releases nothing."""


ConfigMessage: TypeAlias = (
    AddIdentity | LeaseLane | RemoveIdentity | ReleaseLane | RetireLane | FenceLane | MakeCheckpoint | NodeMessage
)


class ConfigRequest(Frozen, frozen=True):
    """A decoded configuration request with its signature."""

    message: ConfigMessage
    signer: bytes
    """ACL id of the identity that signed the request."""
    nonce: bytes
    """Random octets, drawn once for each intended change. A repeated request with the same nonce gets the same answer.
    """
    epoch: bytes
    """Token of the epoch in which the request was signed."""
    signature: bytes
    covered: bytes
    """The data that the signature covers."""


def retry_nonce(client_id: int, request: int) -> bytes:
    """The nonce that leases the lane for a retry of one request.

    It depends on the request alone. All clients that retry the request lease the same lane, so the request is written
    once.
    """
    return _RETRY + put_number(client_id, 4) + put_number(request, 4)


def is_of_retry(nonce: bytes) -> bool:
    return nonce.startswith(_RETRY)


def acl_id(regime: int, index: int, entry: int) -> bytes:
    """The full id of a cluster journal entry: regime, index and number of the entry. It serves as ACL id and as change
    id.
    """
    return put_number(regime, 4) + put_number(index, 8) + put_number(entry, 3)


def entry_type_of(message: ConfigMessage) -> EntryType:
    match message:
        case AddIdentity() | LeaseLane():
            return EntryType.ADD_CLIENT
        case RemoveIdentity() | ReleaseLane() | RetireLane():
            return EntryType.REMOVE_CLIENT
        case FenceLane():
            return EntryType.FENCE_CLIENT
        case MakeCheckpoint():
            return EntryType.CHECKPOINT
        case AddNode() | RemoveNode() | NewSet():
            return membership.type_of(message)
        case _:
            assert_never(message)


def stage_of(message: ConfigMessage) -> int:
    """The stage in which clients submit the message. Messages about clients and checkpoints have stage 0 only."""
    return OPENING.get(entry_type_of(message), 0)


def encode_fields(message: ConfigMessage) -> bytes:
    match message:
        case AddIdentity():
            pieces = (
                _client(0, NO_ACL),
                put_number(message.signature_type, 1),
                put_number(len(message.key), 2) + message.key,
                put_string(message.name),
                put_strings(message.writes),
                put_strings(message.reads),
                put_number(_ADMIN if message.admin else 0, 1),
            )
            return b"".join(pieces)
        case LeaseLane():
            return _client(0, message.acl) + bytes(7)
        case RemoveIdentity():
            return _client(0, message.acl)
        case ReleaseLane():
            return _client(message.client_id, NO_ACL)
        case RetireLane():
            return _client(message.client_id, message.acl)
        case FenceLane():
            return put_number(message.client_id, 4)
        case MakeCheckpoint():
            return put_number(message.through, 8)
        case AddNode() | RemoveNode() | NewSet():
            return membership.encode_fields(message)
        case _:
            assert_never(message)


def _client(client_id: int, acl: bytes) -> bytes:
    if len(acl) != ACL_BYTES:
        raise ValueError(f"an ACL id has {ACL_BYTES} octets, not {len(acl)}")
    return put_number(client_id, 4) + acl


def sign(
    message: ConfigMessage, cluster: str, signer: bytes, nonce: bytes, identity: Identity, *, epoch: bytes
) -> bytes:
    """The data of a config entry, signed in the epoch with this token."""
    if (len(signer), len(nonce), len(epoch)) != (ACL_BYTES, NONCE_BYTES, EPOCH_BYTES):
        raise ValueError(f"a signer has {ACL_BYTES} octets, a nonce {NONCE_BYTES}, an epoch {EPOCH_BYTES}")
    covered = encode_fields(message) + signer + nonce + epoch
    signature = identity.sign(CONFIG_LABEL, _signed(cluster, message, covered))
    return covered + put_number(len(signature), 2) + signature


def request_name(request: ConfigRequest) -> bytes:
    """A name of the request that does not depend on the epoch in which it was signed: it hashes all data but epoch and
    signature.
    """
    asked = bytes((entry_type_of(request.message),)) + request.covered[:-EPOCH_BYTES]
    return sha256(_NAME_LABEL + asked).digest()[:NAME_BYTES]


def check_of(request: ConfigRequest, cluster: str, key: bytes) -> ConfigCheck:
    """The signature check for this request, as an argument of `signing.holds`."""
    return ConfigCheck(key, _signed(cluster, request.message, request.covered), request.signature)


def signature_holds(request: ConfigRequest, cluster: str, key: bytes) -> bool:
    return holds(check_of(request, cluster, key))


def _signed(cluster: str, message: ConfigMessage, covered: bytes) -> bytes:
    return b"%b%c%c%b" % (put_string(cluster), entry_type_of(message), stage_of(message), covered)


def decode(entry_type: int, stage: int, data: bytes) -> ConfigRequest:
    if not is_opening(entry_type, stage):
        raise Malformed(f"configuration: nobody may ask for entry type {entry_type} in stage {stage}")
    cursor = ByteReader(data)
    message = _fields(cursor, entry_type)
    signer, nonce = cursor.take(ACL_BYTES, "signer"), cursor.take(NONCE_BYTES, "nonce")
    epoch = cursor.take(EPOCH_BYTES, "epoch")
    covered = data[: cursor.position]
    signature = cursor.take(cursor.number(2, "signature size"), "signature")
    cursor.end("configuration")
    if len(signature) != SIGNATURE_BYTES:
        raise Malformed(f"configuration: a signature has {SIGNATURE_BYTES} octets, not {len(signature)}")
    return ConfigRequest(message, signer, nonce, epoch, signature, covered)


def _fields(cursor: ByteReader, entry_type: int) -> ConfigMessage:
    match entry_type:
        case EntryType.ADD_CLIENT:
            return _add_client(cursor)
        case EntryType.REMOVE_CLIENT:
            client_id, acl = cursor.number(4, "client id"), cursor.take(ACL_BYTES, "ACL id")
            if not client_id and acl == NO_ACL:
                raise Malformed("Remove Client: a client id, an ACL id, or both")
            if client_id and acl != NO_ACL:
                return RetireLane(client_id, acl)
            return ReleaseLane(client_id) if client_id else RemoveIdentity(acl)
        case EntryType.FENCE_CLIENT:
            return FenceLane(cursor.number(4, "client id"))
        case EntryType.CHECKPOINT:
            return MakeCheckpoint(cursor.number(8, "through"))
        case _:
            return membership.decode_fields(cursor, entry_type)


def _add_client(cursor: ByteReader) -> AddIdentity | LeaseLane:
    if cursor.number(4, "client id"):
        raise Malformed("Add Client: the client id is set at execution")
    acl = cursor.take(ACL_BYTES, "ACL id")
    signature_type = cursor.number(1, "signature type")
    key = cursor.take(cursor.number(2, "key size"), "key")
    name = cursor.string("name")
    writes, reads = cursor.strings("writes"), cursor.strings("reads")
    flags = cursor.number(1, "flags")
    if acl != NO_ACL:
        if signature_type or key or name or writes or reads or flags:
            raise Malformed("Add Client: a lane has nothing of its own but its ACL id")
        return LeaseLane(acl)
    if flags > _ADMIN or not name or len(key) not in (KEY_BYTES, KEY_BYTES + WRAPPED_BYTES):
        raise Malformed("Add Client: a name, a key, and no unknown flags")
    return AddIdentity(name, signature_type, key, writes, reads, flags == _ADMIN)
