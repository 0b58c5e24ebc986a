"""Rotation of the cluster key without downtime: install everywhere, use everywhere, remove everywhere.

One node coordinates. Any node can, and a repeated request at any node resumes where a dead coordinator stopped. Every
member announces each step to *all* members, so that no member has to trust the coordinator. A member starts to use a
key only after it has received confirmations from all members that they have the key. It removes a key only after it has
received confirmations from all members that they use the successor. "All" means present members and absent ones that
belong to the cluster. So a malicious coordinator cannot cut off members by rotating only half of the cluster, or while
some are away.

Of two coordinators with different keys, the one with the smaller key id continues. It does not install the key of the
other, so no member can start to use the other key.

This module does not know how keys are stored: it emits `InstallKey`, `UseKey` and `RemoveKey`, and receives
`KeyConfirmed` when the change is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from chaplain.gossip import payloads
from chaplain.gossip.codec import Action, GossipMessage, MessageType
from chaplain.gossip.dissemination import Dissemination
from chaplain.gossip.events import KeyConfirmed, KeyStep, Rotated, RotateKey
from chaplain.gossip.payloads import KeyRotationStep
from chaplain.link.auth.keyring import key_id_of
from chaplain.link.events import InstallKey, RemoveKey, UseKey
from chaplain.units import SECOND_NS

RETRY_NS = SECOND_NS
"""The interval at which the coordinator repeats a step that not all members have confirmed."""
STEPS_REMEMBERED_MAX = 32
"""Steps whose confirmations are remembered; the oldest is forgotten first."""
_ANOTHER = "another rotation is running"


class _Run:
    """A rotation that this node coordinates."""

    __slots__ = ("due_ns", "order", "requested", "retry_ns", "steps")

    def __init__(self, order: RotateKey, now_ns: int) -> None:
        self.order = order
        self.steps = [
            KeyRotationStep(KeyStep.INSTALL, order.key_id, order.key),
            KeyRotationStep(KeyStep.USE, order.key_id),
        ]
        if order.retire_key_id:
            self.steps.append(KeyRotationStep(KeyStep.REMOVE, order.retire_key_id, order.key_id))
        self.due_ns = now_ns + order.timeout_ns
        self.requested: KeyRotationStep | None = None
        """The step that was requested last."""
        self.retry_ns = now_ns


class Rotation:
    def __init__(self, dissemination: Dissemination, cluster_nodes: Callable[[], Iterable[int]]) -> None:
        """`cluster_nodes` returns the other nodes that belong to the cluster by agreement, present or not."""
        self._dissemination = dissemination
        self._cluster_nodes = cluster_nodes
        self._confirmed: dict[tuple[KeyStep, bytes], dict[int, None]] = {}
        """The members that confirmed each step, by step and key id."""
        self._run: _Run | None = None

    def start(self, order: RotateKey) -> None:
        if self._run is not None:
            self._dissemination.out.append(Rotated(order.call, False, KeyStep.INSTALL, (), _ANOTHER))
        elif order.key_id != key_id_of(order.key) or order.key_id == order.retire_key_id:
            self._dissemination.out.append(
                Rotated(order.call, False, KeyStep.INSTALL, (), "key and key ids do not fit")
            )
        else:
            # All members confirm again, because a member that restarted has forgotten the confirmations of others.
            for step in KeyStep:
                self._confirmed.pop((step, order.retire_key_id if step is KeyStep.REMOVE else order.key_id), None)
            self._run = _Run(order, self._dissemination.now_ns)
            self.on_tick()

    def on_tick(self) -> None:
        """Request the first step that is not fully confirmed. End the run when there is none, or at its time-out."""
        run, now_ns = self._run, self._dissemination.now_ns
        if run is None:
            return
        unfinished = next((key for key in run.steps if self._missing(key, run.order.required)), None)
        if unfinished is None:
            self._end(run, run.steps[-1], ())
        elif now_ns >= run.due_ns:
            self._end(run, unfinished, self._missing(unfinished, run.order.required))
        elif unfinished != run.requested or now_ns >= run.retry_ns:
            run.requested, run.retry_ns = unfinished, now_ns + RETRY_NS
            self._dissemination.fire(MessageType.KEY, payloads.put_key(unfinished), action=Action.CONFIRM)
            self._apply_step(unfinished)

    def on_key(self, message: GossipMessage) -> None:
        if self._dissemination.members.is_present(message.id.origin):
            self._apply_step(payloads.take_key(message.content))

    def on_confirmed(self, message: GossipMessage) -> None:
        """A member has completed a step."""
        key = payloads.take_key(message.content)
        if self._dissemination.members.is_present(message.id.origin):
            self._record_confirmation(key.step, key.key_id, message.id.origin)

    def on_step_done(self, confirmed: KeyConfirmed) -> None:
        """Announce to all members that this node has completed a step, which is on disk now."""
        key = KeyRotationStep(confirmed.step, confirmed.key_id)
        self._dissemination.fire(MessageType.KEY_CONFIRMED, payloads.put_key(key))
        self._record_confirmation(confirmed.step, confirmed.key_id, self._dissemination.identifier)

    def _apply_step(self, key: KeyRotationStep) -> None:
        """Apply the step if it is safe. If it was applied before, only announce that again."""
        if self._dissemination.identifier in self._confirmed.get((key.step, key.key_id), {}):
            self.on_step_done(KeyConfirmed(key.step, key.key_id))
            return
        match key.step:
            case KeyStep.INSTALL:
                if key.key_id == key_id_of(key.key) and self._may_install(key.key_id):
                    self._dissemination.out.append(InstallKey(key.key))
            case KeyStep.USE:
                # A member that used the key earlier could not be understood by members that lack it.
                if self._all_confirmed(KeyStep.INSTALL, key.key_id):
                    self._dissemination.out.append(UseKey(key.key_id))
            case KeyStep.REMOVE:
                # Members that still use the old key would be cut off if it were removed earlier.
                if key.key != key.key_id and self._all_confirmed(KeyStep.USE, key.key):
                    self._dissemination.out.append(RemoveKey(key.key_id))

    def _may_install(self, key_id: bytes) -> bool:
        """True if this key may be installed: it is the key of our own rotation, or of a rotation that takes precedence
        over ours.
        """
        run = self._run
        if run is not None and run.order.key_id > key_id:
            self._run = None
            self._dissemination.out.append(Rotated(run.order.call, False, KeyStep.INSTALL, (), _ANOTHER))
        return run is None or run.order.key_id >= key_id

    def _all_confirmed(self, step: KeyStep, key_id: bytes) -> bool:
        """Whether all members have confirmed this, including absent ones that belong to the cluster."""
        missing = self._missing(KeyRotationStep(step, key_id), self._cluster_nodes())
        if missing:
            self._dissemination.counts["key_steps_held"] += 1
        return not missing

    def _missing(self, key: KeyRotationStep, required: Iterable[int]) -> tuple[int, ...]:
        confirmed = self._confirmed.get((key.step, key.key_id), {})
        wanted = sorted({*self._dissemination.members.present, *required})
        return tuple(identifier for identifier in wanted if identifier not in confirmed)

    def _record_confirmation(self, step: KeyStep, key_id: bytes, identifier: int) -> None:
        if step is KeyStep.REMOVE and identifier == self._dissemination.identifier:
            # The key may be installed again one day. Then these steps must be applied again.
            for earlier in (KeyStep.INSTALL, KeyStep.USE):
                self._confirmed.get((earlier, key_id), {}).pop(identifier, None)
        if step is not KeyStep.REMOVE:
            self._confirmed.get((KeyStep.REMOVE, key_id), {}).pop(identifier, None)
        if step is KeyStep.USE:
            for (earlier, other), members in self._confirmed.items():
                if earlier is KeyStep.USE and other != key_id:
                    members.pop(identifier, None)  # one key is used at a time
        self._confirmed.setdefault((step, key_id), {})[identifier] = None
        while len(self._confirmed) > STEPS_REMEMBERED_MAX:
            del self._confirmed[next(iter(self._confirmed))]
        self.on_tick()

    def _end(self, run: _Run, key: KeyRotationStep, missing: tuple[int, ...]) -> None:
        self._run = None
        self._dissemination.out.append(Rotated(run.order.call, not missing, key.step, missing))
