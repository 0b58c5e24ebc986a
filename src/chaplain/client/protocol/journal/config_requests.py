"""Configuration requests of this client: each is signed once and resent verbatim until the cluster has decided it.

Decides when a request is sent again. The cluster makes the same decision about the same bytes each time they are
ordered, so a request can be sent again on each new session. Does not interpret decisions: the submitter's callback
does.

A request is signed in an epoch of the agreed order and expires with the epoch. If a request is refused as expired and
cannot be applied twice, it is signed again in the epoch of the answer, with the same nonce. It cannot be applied twice
if its kind is idempotent, or if its only copy is the refused one. In all other cases an earlier copy may have been
applied so long ago that the cluster has forgotten it, and the user has to check. See
docs/decisions/configuration-requests.md.

Bounds: `CONFIG_REQUESTS_MAX` requests of users at a time; lanes add a handful.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import msgspec

from chaplain.client.protocol.journal.error_kinds import DISK_FULL
from chaplain.client.protocol.journal.node_selection import NodeSelector
from chaplain.journal.messages.client import Decided, Failed, NodeMessage, SubmitPetition
from chaplain.journal.messages.config import (
    NO_ACL,
    NONCE_BYTES,
    AddIdentity,
    ConfigMessage,
    FenceLane,
    LeaseLane,
    MakeCheckpoint,
    ReleaseLane,
    RemoveIdentity,
    RetireLane,
    entry_type_of,
    sign,
    stage_of,
)
from chaplain.journal.messages.write_request import REQUEST_ID_MAX
from chaplain.link.auth.identity import Identity

CONFIG_REQUESTS_MAX = 1024
"""Pending configuration requests of users."""
RESEND_NS = 1_000_000_000
"""A request without an answer is sent again after this time."""
PAUSE_NS = 100_000_000
"""Pause before a request is sent again after a transient refusal."""
OTHER_NODE_WAIT_NS = 3_000_000_000
"""How long to wait for another session when the only connected node accepts no configuration requests."""
APPLIED = "applied"
EXPIRED = "expired"
SIGNATURES_AT_ONCE = 2
"""A request that expires more often than this is signed again only after a pause."""
REPEATABLE = (AddIdentity, LeaseLane, RemoveIdentity, ReleaseLane, RetireLane, FenceLane, MakeCheckpoint)
"""Idempotent kinds: applying them again changes nothing, even after a long time."""
TRANSIENT = ("busy", "unknown", DISK_FULL)
"""Kinds of failure after which the same request may be sent again."""

DecisionCallback: TypeAlias = Callable[[int, Decided], None]
"""Takes the time and the decision."""


class PendingConfigRequest:
    """A configuration request that is not decided yet."""

    __slots__ = ("call", "data", "due_ns", "message", "nonce", "on_decided", "refused_ns", "sends", "signatures")

    def __init__(self, message: ConfigMessage, nonce: bytes, on_decided: DecisionCallback) -> None:
        self.message = message
        self.nonce = nonce
        self.on_decided = on_decided
        self.data = b""
        """The signed bytes; empty if it has to be signed."""
        self.signatures = 0
        """How often it was signed."""
        self.sends = 0
        """How many copies of the latest signature may be in flight."""
        self.call = 0
        self.due_ns = 0
        self.refused_ns = 0
        """When a node first said that it accepts no configuration requests and no other was connected."""


class ConfigRequestClient:
    """The pending configuration requests of this client."""

    def __init__(self, selector: NodeSelector, identity: Identity, random: Random) -> None:
        self._selector = selector
        self._identity = identity
        self._random = random
        self.pending: dict[int, PendingConfigRequest] = {}
        self._last = 0

    def submit(
        self, now_ns: int, message: ConfigMessage, on_decided: DecisionCallback, nonce: bytes | None = None
    ) -> int:
        """Submit a request. Returns its number for `withdraw`."""
        request = PendingConfigRequest(message, nonce or self.new_nonce(), on_decided)
        self._last += 1
        self.pending[self._last] = request
        self._send(now_ns, request)
        return self._last

    @property
    def full(self) -> bool:
        """True if users may submit no more. The few requests of lanes are always accepted."""
        return len(self.pending) >= CONFIG_REQUESTS_MAX

    def new_nonce(self) -> bytes:
        return self._random.randbytes(NONCE_BYTES)

    def withdraw(self, number: int) -> None:
        """The submitter no longer waits for the decision."""
        request = self.pending.pop(number, None)
        if request is not None:
            self._selector.forget(request.call)

    def on_switched(self, now_ns: int) -> None:
        """Another session is used: send all pending requests on it."""
        for request in self.pending.values():
            self._send(now_ns, request)

    def on_timer(self, now_ns: int) -> None:
        """Send due requests again."""
        for request in self.pending.values():
            if now_ns >= request.due_ns:
                self._send(now_ns, request)

    def due_ns(self) -> int | None:
        if not self.pending or self._selector.chosen is None:
            return None
        return min((request.due_ns for request in self.pending.values()), default=None)

    def _send(self, now_ns: int, request: PendingConfigRequest) -> None:
        """Sign the request if necessary, and send it."""
        selector = self._selector
        selector.forget(request.call)
        request.due_ns = now_ns + RESEND_NS
        if selector.chosen is None:
            return
        if not request.data:
            acl, epoch = selector.acl or NO_ACL, selector.chosen.epoch
            request.data = sign(request.message, selector.cluster, acl, request.nonce, self._identity, epoch=epoch)
            request.signatures += 1
            request.sends = 0
        request.sends += 1
        entry_type, stage = entry_type_of(request.message), stage_of(request.message)

        def on_reply(now_ns: int, message: NodeMessage, payload: bytes) -> None:
            self._on_reply(now_ns, request, message)

        request.call = selector.request(lambda call: SubmitPetition(call, entry_type, stage), on_reply, request.data)

    def _on_reply(self, now_ns: int, request: PendingConfigRequest, message: NodeMessage) -> None:
        """Process a node's answer."""
        if isinstance(message, Failed):
            if message.kind == "not_config" and self._selector.rotate():
                return  # `on_switched` sends it to the other node
            if message.kind in TRANSIENT or (message.kind == "not_config" and _may_switch(now_ns, request)):
                request.due_ns = min(request.due_ns, now_ns + PAUSE_NS)
                if message.kind == DISK_FULL:
                    self._selector.avoid_chosen(now_ns, message.reason)
                return
            message = Decided(message.call, message.kind, message.reason, 0, NO_ACL, 0)
        if isinstance(message, Decided) and message.kind == EXPIRED:
            if isinstance(request.message, REPEATABLE) or request.sends == 1:
                self._sign_again(now_ns, request)
                return
            why = "it expired, and an earlier copy of it may have been granted: look before asking again"
            message = msgspec.structs.replace(message, reason=why)
        if isinstance(message, Decided) and _is_valid(message):
            self._selector.forget(request.call)
            for number in [number for number, one in self.pending.items() if one is request]:
                del self.pending[number]
            self._selector.disk_full_reason = ""
            request.on_decided(now_ns, message)

    def _sign_again(self, now_ns: int, request: PendingConfigRequest) -> None:
        """No copy of the latest signature can be applied any more: sign the request in the new epoch."""
        request.data = b""
        if request.signatures < SIGNATURES_AT_ONCE:
            self._send(now_ns, request)
        else:
            request.due_ns = min(request.due_ns, now_ns + PAUSE_NS)


def _may_switch(now_ns: int, request: PendingConfigRequest) -> bool:
    """True if another session may still open: right after the start, a client has only one."""
    request.refused_ns = request.refused_ns or now_ns
    return now_ns - request.refused_ns < OTHER_NODE_WAIT_NS


def _is_valid(decided: Decided) -> bool:
    """True if lane and id are within their ranges. An invalid answer is ignored."""
    lane = decided.client_id if decided.kind == APPLIED else 0
    return 0 <= lane <= REQUEST_ID_MAX and 0 <= decided.last_id <= REQUEST_ID_MAX
