"""Replacing the cluster key without stopping: install everywhere, use everywhere, remove everywhere.

One node coordinates; any node can, and asking again anywhere takes up where a dead coordinator stopped. Every member
tells *everybody* what it has done, so no member has to believe the coordinator: it begins to use a key only when it has
itself seen every member confirm that it holds it, and drops one only when it has seen every member confirm that it uses
the successor: all that are present, and those that are away but belong to the cluster. So a liar who rotates only half
of the cluster, or all of it while somebody is away, gets nobody cut off. Of two coordinators with different keys the
one with the smaller key id goes on: it does not take the other's key, so nobody can begin to use that one.

Refuses to know how keys are kept: `InstallKey` and its like go out, `KeyConfirmed` comes back when it is on disk.
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
STEPS_REMEMBERED_MAX = 32
_ANOTHER = "another rotation is running"


class _Run:
    """A rotation that this node coordinates."""

    __slots__ = ("again_ns", "asked", "due_ns", "order", "steps")

    def __init__(self, order: RotateKey, now_ns: int) -> None:
        self.order = order
        self.steps = [
            KeyRotationStep(KeyStep.INSTALL, order.key_id, order.key),
            KeyRotationStep(KeyStep.USE, order.key_id),
        ]
        if order.retire_key_id:
            self.steps.append(KeyRotationStep(KeyStep.REMOVE, order.retire_key_id, order.key_id))
        self.due_ns = now_ns + order.timeout_ns
        self.asked: KeyRotationStep | None = None
        """The step asked for last."""
        self.again_ns = now_ns


class Rotation:
    def __init__(self, voice: Dissemination, belonging: Callable[[], Iterable[int]]) -> None:
        """`belonging` are the other nodes of the cluster, present or not, as far as that is agreed on."""
        self._voice = voice
        self._belonging = belonging
        self._confirmed: dict[tuple[KeyStep, bytes], dict[int, None]] = {}
        self._run: _Run | None = None

    def start(self, order: RotateKey) -> None:
        if self._run is not None:
            self._voice.out.append(Rotated(order.call, False, KeyStep.INSTALL, (), _ANOTHER))
        elif order.key_id != key_id_of(order.key) or order.key_id == order.retire_key_id:
            self._voice.out.append(Rotated(order.call, False, KeyStep.INSTALL, (), "key and key ids do not fit"))
        else:
            # All say anew what they have done: whoever restarted since has forgotten what it heard.
            for step in KeyStep:
                self._confirmed.pop((step, order.retire_key_id if step is KeyStep.REMOVE else order.key_id), None)
            self._run = _Run(order, self._voice.now_ns)
            self.tend()

    def tend(self) -> None:
        """Ask again for the first step that somebody has not confirmed; end when there is none, or no time."""
        run, now_ns = self._run, self._voice.now_ns
        if run is None:
            return
        unfinished = next((key for key in run.steps if self._missing(key, run.order.required)), None)
        if unfinished is None:
            self._end(run, run.steps[-1], ())
        elif now_ns >= run.due_ns:
            self._end(run, unfinished, self._missing(unfinished, run.order.required))
        elif unfinished != run.asked or now_ns >= run.again_ns:
            run.asked, run.again_ns = unfinished, now_ns + RETRY_NS
            self._voice.fire(MessageType.KEY, payloads.put_key(unfinished), action=Action.CONFIRM)
            self._obey(unfinished)

    def on_key(self, message: GossipMessage) -> None:
        if self._voice.members.is_present(message.id.origin):
            self._obey(payloads.take_key(message.content))

    def on_confirmed(self, message: GossipMessage) -> None:
        """Somebody has taken a step."""
        key = payloads.take_key(message.content)
        if self._voice.members.is_present(message.id.origin):
            self._note(key.step, key.key_id, message.id.origin)

    def confirm(self, confirmed: KeyConfirmed) -> None:
        """We have taken a step, and it is kept: tell everybody."""
        key = KeyRotationStep(confirmed.step, confirmed.key_id)
        self._voice.fire(MessageType.KEY_CONFIRMED, payloads.put_key(key))
        self._note(confirmed.step, confirmed.key_id, self._voice.identifier)

    def _obey(self, key: KeyRotationStep) -> None:
        """Take the step if it is safe; if it was taken before, only say so again."""
        if self._voice.identifier in self._confirmed.get((key.step, key.key_id), {}):
            self.confirm(KeyConfirmed(key.step, key.key_id))
            return
        match key.step:
            case KeyStep.INSTALL:
                if key.key_id == key_id_of(key.key) and self._gives_way(key.key_id):
                    self._voice.out.append(InstallKey(key.key))
            case KeyStep.USE:
                if self._everybody(KeyStep.INSTALL, key.key_id):
                    self._voice.out.append(UseKey(key.key_id))
            case KeyStep.REMOVE:
                if key.key != key.key_id and self._everybody(KeyStep.USE, key.key):
                    self._voice.out.append(RemoveKey(key.key_id))

    def _gives_way(self, key_id: bytes) -> bool:
        """Whether this key may come in: our own, or one before which our own rotation, if there is one, ends."""
        run = self._run
        if run is not None and run.order.key_id > key_id:
            self._run = None
            self._voice.out.append(Rotated(run.order.call, False, KeyStep.INSTALL, (), _ANOTHER))
        return run is None or run.order.key_id >= key_id

    def _everybody(self, step: KeyStep, key_id: bytes) -> bool:
        """Has every member confirmed this that is present, or will be again?"""
        missing = self._missing(KeyRotationStep(step, key_id), self._belonging())
        if missing:
            self._voice.counts["key_steps_held"] += 1
        return not missing

    def _missing(self, key: KeyRotationStep, required: Iterable[int]) -> tuple[int, ...]:
        confirmed = self._confirmed.get((key.step, key.key_id), {})
        wanted = sorted({*self._voice.members.present, *required})
        return tuple(identifier for identifier in wanted if identifier not in confirmed)

    def _note(self, step: KeyStep, key_id: bytes, identifier: int) -> None:
        if step is KeyStep.REMOVE and identifier == self._voice.identifier:
            # The key may come back one day: then these steps are to be taken anew.
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
        self.tend()

    def _end(self, run: _Run, key: KeyRotationStep, missing: tuple[int, ...]) -> None:
        self._run = None
        self._voice.out.append(Rotated(run.order.call, not missing, key.step, missing))
