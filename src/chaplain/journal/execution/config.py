"""Executes the configuration stream: identities and their rights, lane leases, fences, checkpoints, and node changes.

Decides whether a configuration request is granted and what it changes, from the state and the request alone. Does not
know from which connection the request came: only the signature of an identity in the state counts.
`model.cluster_config` decides how a node change affects the cluster configuration. Later stages of a node change have
no signature, because only a master can order them.

A request is valid in the epoch in which it was signed and in the ones that directly follow (`model.epochs`). The
decision on a request is stored for as long as the request is valid. A copy of the request therefore never changes
anything.

| request | allowed for | a copy of it, or the same request signed again |
|---|---|---|
| Add Client, new identity | an admin | same signer and nonce: the same ACL id, even after its removal |
| Add Client, lane | the identity | the same lane; UNKNOWN_LANE after that lane has ended |
| Remove Client, identity | an admin, or the identity; never the last admin | no further effect |
| Remove Client, lane (released or retired); Fence | an admin, or the lane's identity | no further effect |
| Checkpoint | an admin | the same checkpoint |
| everything about nodes | an admin | the same change |
| a refused request | | a copy: the same refusal; signed in a later epoch: decided again |
| a refused lane lease | | decided again |

Invariants: an ACL id and a client id are assigned once. A name and a key have at most one active identity. No request
leaves a cluster without an admin.
"""

from __future__ import annotations

from hashlib import sha256
from typing import assert_never

import msgspec

from chaplain.errors import Malformed
from chaplain.journal.execution.dedup import make_room, retired
from chaplain.journal.execution.state import StateDraft
from chaplain.journal.messages import config
from chaplain.journal.messages.cluster import ConfigEntry
from chaplain.journal.messages.config import (
    AddIdentity,
    ConfigRequest,
    FenceLane,
    LeaseLane,
    MakeCheckpoint,
    ReleaseLane,
    RemoveIdentity,
    RetireLane,
    acl_id,
)
from chaplain.journal.messages.membership import (
    AddNode,
    NewSet,
    NodeMessage,
    RemoveNode,
    StageStep,
    decode_step,
    is_opening,
)
from chaplain.journal.messages.signing import SignatureType, Wrapping
from chaplain.journal.model.cluster_config import apply_stage, open_change
from chaplain.journal.model.epochs import Epoch, RequestDecision
from chaplain.journal.model.records import ClientIdentity, IdentityStatus, LaneState
from chaplain.journal.model.results import ConfigVerdict
from chaplain.journal.storage.verdict import Reason
from chaplain.link.auth.identity import KEY_BYTES

FOR_ADMINS = (AddIdentity, MakeCheckpoint, AddNode, RemoveNode, NewSet)
"""Requests that only an admin may sign. Whether an identity is an admin never changes."""


class Configuration:
    """Executes config entries on a draft of the state."""

    def __init__(self, cluster: str, wrapping: Wrapping | None) -> None:
        self._cluster = cluster
        self._wrapping = wrapping

    def execute(self, draft: StateDraft, number: int, entry: ConfigEntry) -> ConfigVerdict:
        """Apply the entry with this number, or return the reason for the refusal."""
        verdict = self._decide(draft, number, entry)
        return msgspec.structs.replace(verdict, entry_type=entry.entry_type, request_digest=sha256(entry.data).digest())

    def _decide(self, draft: StateDraft, number: int, entry: ConfigEntry) -> ConfigVerdict:
        try:
            if not is_opening(entry.entry_type, entry.stage):
                return _step(draft, decode_step(entry.entry_type, entry.stage, entry.data))
            request = config.decode(entry.entry_type, entry.stage, entry.data)
        except Malformed:
            return _refused(Reason.UNKNOWN_TYPE)
        signer = draft.client(request.signer)
        if signer is None or signer.status != IdentityStatus.ACTIVE:
            return _refused(Reason.UNKNOWN_SIGNER)
        if not config.signature_holds(request, self._cluster, signer.key):
            return _refused(Reason.SIGNATURE)
        epoch = draft.epochs.find(request.epoch)
        if epoch is None:
            return _refused(Reason.EXPIRED)
        name = config.request_name(request)
        known = draft.epochs.decision(name)
        if known is not None and (repeated := _repeated(draft, request, known, epoch)) is not None:
            return repeated
        verdict = self._grant(draft, number, request, signer)
        if verdict.reason is Reason.APPLIED or not isinstance(request.message, LeaseLane):
            draft.epochs.remember(RequestDecision(name, epoch.index, verdict.reason, verdict.acl))
        return verdict

    def _grant(self, draft: StateDraft, number: int, request: ConfigRequest, signer: ClientIdentity) -> ConfigVerdict:
        message = request.message
        match message:
            case AddIdentity():
                return self._add(draft, number, request, message, signer)
            case LeaseLane():
                return _lease(draft, request, message, signer)
            case RemoveIdentity():
                return _remove(draft, message, signer)
            case ReleaseLane():
                return _release(draft, message, signer)
            case RetireLane():
                return _retire(draft, message, signer)
            case FenceLane():
                return _fence(draft, message, signer)
            case MakeCheckpoint():
                return _checkpoint(draft, number, message, signer)
            case AddNode() | RemoveNode() | NewSet():
                return _change(draft, number, request, message, signer)
            case _:
                assert_never(message)

    def _add(
        self, draft: StateDraft, number: int, request: ConfigRequest, message: AddIdentity, signer: ClientIdentity
    ) -> ConfigVerdict:
        if not signer.admin:
            return _refused(Reason.NOT_ALLOWED)
        nonce = sha256(request.signer + request.nonce).digest()
        clients = draft.clients()
        for client in clients:
            if client.nonce == nonce:
                return ConfigVerdict(0, Reason.APPLIED, acl=client.acl)
        reason = self._refusal(clients, message, draft.state.bootstrap.policy.identities_max)
        if reason is not Reason.APPLIED:
            return _refused(reason)
        acl = acl_id(draft.position.regime, draft.position.index, number)
        key, secret = message.key[:KEY_BYTES], message.key[KEY_BYTES:]
        rights = (message.writes, message.reads, message.admin)
        draft.put_client(ClientIdentity(acl, message.name, key, message.signature_type, secret, *rights, nonce=nonce))
        return ConfigVerdict(0, Reason.APPLIED, acl=acl)

    def _refusal(self, clients: list[ClientIdentity], message: AddIdentity, identities_max: int) -> Reason:
        active = [client for client in clients if client.status == IdentityStatus.ACTIVE]
        if any(client.name == message.name for client in active):
            return Reason.NAME_TAKEN
        if any(client.key == message.key[:KEY_BYTES] for client in active):
            return Reason.KEY_TAKEN
        if len(clients) >= identities_max:
            return Reason.IDENTITIES_FULL
        return Reason.APPLIED if self._key_fits(message) else Reason.BAD_SECRET

    def _key_fits(self, message: AddIdentity) -> bool:
        key, secret = message.key[:KEY_BYTES], message.key[KEY_BYTES:]
        if message.signature_type == SignatureType.ED25519:
            return not secret
        if message.signature_type != SignatureType.HMAC_SHA256 or self._wrapping is None:
            return False
        return self._wrapping.unwrap(secret, key) is not None


def _refused(reason: Reason) -> ConfigVerdict:
    return ConfigVerdict(0, reason)


def _repeated(draft: StateDraft, request: ConfigRequest, known: RequestDecision, epoch: Epoch) -> ConfigVerdict | None:
    """The stored answer to a request that was decided before; None if it may be decided again."""
    if known.reason != Reason.APPLIED:
        return _refused(Reason(known.reason)) if epoch.index <= known.epoch else None
    match request.message:
        case LeaseLane():
            lane = draft.leased(request.signer, request.nonce)
            if lane is None:
                return _refused(Reason.UNKNOWN_LANE)
            return ConfigVerdict(0, Reason.APPLIED, lane.client_id, lane.acl, lane.last_id)
        case AddNode() | RemoveNode() | NewSet() | MakeCheckpoint():
            return ConfigVerdict(0, Reason.APPLIED, acl=known.acl)
        case AddIdentity() | RemoveIdentity() | ReleaseLane() | RetireLane() | FenceLane():
            return None  # their ids are never reused, so deciding again changes nothing
        case _:
            assert_never(request.message)


def _change(
    draft: StateDraft, number: int, request: ConfigRequest, message: NodeMessage, signer: ClientIdentity
) -> ConfigVerdict:
    """Open a change of nodes."""
    if not signer.admin:
        return _refused(Reason.NOT_ALLOWED)
    asked = sha256(request.signer + request.nonce).digest()
    known = draft.cluster_config.change_of_request(asked)
    if known is not None:
        return ConfigVerdict(0, Reason.APPLIED, acl=known.id)
    change = acl_id(draft.position.regime, draft.position.index, number)
    copies = draft.state.bootstrap.copies
    draft.cluster_config, reason = open_change(
        draft.cluster_config, message, change, asked, draft.position.index, copies=copies
    )
    return ConfigVerdict(0, Reason.APPLIED, acl=change) if reason is Reason.APPLIED else _refused(reason)


def _checkpoint(draft: StateDraft, number: int, message: MakeCheckpoint, signer: ClientIdentity) -> ConfigVerdict:
    """Grant a checkpoint. The returned ACL id is the full id of the entry, which contains the index of
    the checkpoint.
    """
    if not signer.admin:
        return _refused(Reason.NOT_ALLOWED)
    draft.checkpoint = True
    draft.released = max(draft.released, min(message.through, draft.position.index))
    return ConfigVerdict(0, Reason.APPLIED, acl=acl_id(draft.position.regime, draft.position.index, number))


def _step(draft: StateDraft, step: StageStep) -> ConfigVerdict:
    draft.cluster_config, reason = apply_stage(draft.cluster_config, step, draft.position.index)
    return ConfigVerdict(0, reason, acl=step.change)


def _lease(draft: StateDraft, request: ConfigRequest, message: LeaseLane, signer: ClientIdentity) -> ConfigVerdict:
    if message.acl != signer.acl:
        return _refused(Reason.NOT_ALLOWED)
    lane = draft.leased(signer.acl, request.nonce)
    if lane is None:
        if not make_room(draft, signer.acl):
            return _refused(Reason.LANES_FULL)
        lane = LaneState(draft.next_client, signer.acl, request.nonce, draft.position.timestamp_ns)
        draft.next_client += 1
        draft.put_lane(lane)
    return ConfigVerdict(0, Reason.APPLIED, lane.client_id, lane.acl, lane.last_id)


def _remove(draft: StateDraft, message: RemoveIdentity, signer: ClientIdentity) -> ConfigVerdict:
    if not signer.admin and message.acl != signer.acl:
        return _refused(Reason.NOT_ALLOWED)
    client = draft.client(message.acl)
    if client is None:
        return _refused(Reason.UNKNOWN_CLIENT)
    if client.status == IdentityStatus.ACTIVE:
        if client.admin and not any(_is_admin(other) for other in draft.clients() if other.acl != client.acl):
            return _refused(Reason.LAST_ADMIN)
        draft.put_client(msgspec.structs.replace(client, status=IdentityStatus.REMOVED))
    return ConfigVerdict(0, Reason.APPLIED, acl=client.acl)


def _is_admin(client: ClientIdentity) -> bool:
    return client.admin and client.status == IdentityStatus.ACTIVE


def _own_lane(draft: StateDraft, client_id: int, signer: ClientIdentity) -> LaneState | Reason:
    """The lane, if the signer may change it; otherwise the reason for the refusal."""
    lane = draft.lane(client_id)
    if lane is None:
        return Reason.UNKNOWN_LANE
    return lane if signer.admin or lane.acl == signer.acl else Reason.NOT_ALLOWED


def _release(draft: StateDraft, message: ReleaseLane, signer: ClientIdentity) -> ConfigVerdict:
    lane = _own_lane(draft, message.client_id, signer)
    if isinstance(lane, Reason):
        return _refused(lane)
    draft.drop_lane(lane.client_id)
    return ConfigVerdict(0, Reason.APPLIED, lane.client_id, lane.acl, lane.last_id)


def _retire(draft: StateDraft, message: RetireLane, signer: ClientIdentity) -> ConfigVerdict:
    lane = _own_lane(draft, message.client_id, signer)
    if isinstance(lane, Reason):
        return _refused(lane)
    if lane.acl != message.acl:
        return _refused(Reason.NOT_ALLOWED)
    draft.amend_lane(retired(lane))
    return ConfigVerdict(0, Reason.APPLIED, lane.client_id, lane.acl, lane.last_id)


def _fence(draft: StateDraft, message: FenceLane, signer: ClientIdentity) -> ConfigVerdict:
    lane = _own_lane(draft, message.client_id, signer)
    if isinstance(lane, Reason):
        return _refused(lane)
    if not lane.fenced:
        draft.put_lane(msgspec.structs.replace(lane, fenced=True, active_ns=draft.position.timestamp_ns))
    return ConfigVerdict(0, Reason.APPLIED, lane.client_id, lane.acl, lane.last_id)
