"""Checks the journal's order from outside: what was sent, by which node, and what the disks contained at that moment.

It reads frames and disks, never a serializer's own state. What a node claims in an acknowledgement or a vote must be in
the synced part of its disk when the claim is sent. All nodes must call the same messages agreed. A node whose disk was
damaged in the run is exempt from claims about its disk until the run ends, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from chaplain.core import Arrived, Send
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import Agreed, Resumed, Role, RoleChanged
from chaplain.journal.consensus.hard_state import HardState, VotingState, decode_hard_state
from chaplain.journal.messages.cluster import DataEntry, chain_hash, decode_body
from chaplain.journal.messages.consensus import AskVote, ProposalAck, Propose, Vote, decode
from chaplain.journal.storage.log import hard_state_name
from chaplain.segment.header import read_headers
from chaplain.segment.record import Kind, Record
from chaplain.segment.scan import scan
from chaplain.units import SECOND_NS
from simulator.checkers.base import Watcher
from simulator.world.disk import segments_of
from simulator.world.machine import Host

if TYPE_CHECKING:
    from simulator.workloads.order import Order
    from simulator.world.world import World


class OrderChecker(Watcher):
    name = "order"

    def __init__(self, workload: Order) -> None:
        self._workload = workload
        self.world: World | None = None
        self._power_cuts = 0
        self._agreed: dict[int, bytes] = {}
        self._ballots: dict[int, int] = {}
        """The regime under which each message was first seen as agreed: an earlier master may not know that it is."""
        self._masters: dict[int, str] = {}
        self._position: dict[str, int] = {}
        self._votes: dict[tuple[str, int, int], int] = {}
        self._acked: dict[str, tuple[int, int]] = {}
        self._promised: dict[str, int] = {}
        self._asked: dict[tuple[str, int, int], tuple[int, int]] = {}
        self._bodies: dict[tuple[int, int], bytes] = {}
        self._refs_through = 0
        self._speakers: dict[tuple[int, int, bytes], set[str]] = {}
        """The nodes that acknowledged or proposed a message, by regime, index and hash."""
        self._last_word: dict[str, tuple[int, bytes]] = {}
        self._owed: dict[str, tuple[int, bytes]] = {}
        """The message that a damaged node must hold again before it sends claims: the last one that may have been
        agreed with its acknowledgement.
        """

    # Processes.

    def process_started(self, time_ns: int, host: Host, /) -> None:
        self._position[host.name] = -1
        serializer = host.core.serializer  # type: ignore[union-attr]
        promised = self._promised.get(host.name, 0)
        if host.name not in self._workload.victims and serializer.regime < promised:
            self.complain(f"{host.name} came back in regime {serializer.regime}, having promised {promised}")

    def process_ended(self, time_ns: int, host: Host, reason: str, /) -> None:
        assert self.world is not None
        self._workload.died(self.world, host)
        if self.world.counts["power cut"] > self._power_cuts:
            self._power_cuts = self.world.counts["power cut"]
            self._workload.power_lost(host.name)

    def wiped(self, name: str) -> None:
        """Everything that is agreed now may have been agreed with this node's help."""
        self._acked.pop(name, None)
        if self._agreed:
            self._owed[name] = (len(self._agreed), self._agreed[len(self._agreed)])

    def rotten(self, name: str) -> None:
        """What the node acknowledged last may have been agreed with its help."""
        if name in self._last_word:
            self._owed.setdefault(name, self._last_word[name])

    # Steps.

    def observe(self, time_ns: int, host: Host, event: object, effects: Sequence[object], /) -> None:
        if isinstance(event, Arrived):
            self._note_asked(host, event.frame)
        for effect in effects:
            match effect:
                case Send():
                    self._said(host, effect.frame)
                case Agreed():
                    self._settled(host, effect)
                case Resumed():
                    self._resumed(host, effect)
                case RoleChanged():
                    if effect.role is Role.MASTER:
                        self._elected(host, effect.regime)
                case _:
                    pass

    def _note_asked(self, host: Host, frame: bytes) -> None:
        try:
            message = decode(frame[1:])
        except Malformed:
            return
        if isinstance(message, AskVote):
            self._asked[host.name, frame[0], message.regime] = (message.index, message.ballot)

    def _elected(self, host: Host, regime: int) -> None:
        former = self._masters.setdefault(regime, f"{host.name}.{host.process}")
        if former != f"{host.name}.{host.process}":
            self.complain(f"regime {regime} has two masters: {former} and {host.name}.{host.process}")
        self._demand_standing(host, "is master", regime)  # the master counts its own vote

    # Agreed messages.

    def _settled(self, host: Host, agreed: Agreed) -> None:
        index = agreed.body.index
        if index != self._position[host.name] + 1:
            self.complain(f"{host.name} says {index} is agreed after {self._position[host.name]}")
        self._position[host.name] = index
        if index not in self._agreed:
            self._first_agreed(host, agreed)
        if self._agreed[index] != agreed.hash:
            self.complain(f"message {index} is agreed twice, differently; the second time at {host.name}")

    def _first_agreed(self, host: Host, agreed: Agreed) -> None:
        index = agreed.body.index
        if index != len(self._agreed) + 1:
            self.complain(f"{host.name} says {index} is agreed, and nobody said so of {len(self._agreed) + 1}")
        speakers = [who for key, who in self._speakers.items() if key[1:] == (index, agreed.hash)]
        alone = len(self._workload.names) == 1
        if not alone and not any(self._enough(who, index) for who in speakers):
            self.complain(f"{host.name} says {index} is agreed; no quorum acknowledged it in one regime: {speakers}")
        self._agreed[index] = agreed.hash
        self._ballots[index] = agreed.ballot
        self._demand_copies(index, agreed.hash, "is agreed")
        for entry in agreed.body.entries:
            if isinstance(entry, DataEntry):
                if entry.reference.index != self._refs_through + 1:
                    self.complain(f"payload {entry.reference.index} was ordered after {self._refs_through}")
                self._refs_through += 1

    def _resumed(self, host: Host, resumed: Resumed) -> None:
        self._position[host.name] = resumed.index
        if resumed.index and self._agreed.get(resumed.index) != resumed.hash:
            self.complain(f"{host.name} came back with {resumed.index} agreed, which nobody had agreed to")

    def _enough(self, names: Collection[str], index: int) -> bool:
        """True if these nodes are a quorum for the message at this index."""
        return len(names) > len(self._workload.founders) // 2

    def _demand_copies(self, index: int, digest: bytes, what: str) -> None:
        """A quorum must have the message on disk; a damaged disk counts, because it may have had it."""
        assert self.world is not None
        hosts = self.world.hosts.values()
        holders = [host.name for host in hosts if host.name in self._workload.victims or _holds(host, digest)]
        if not self._enough(holders, index):
            self.complain(f"message {index} {what}, and is on disk only at {holders}")

    # Claims.

    def _said(self, host: Host, frame: bytes) -> None:
        message = decode(frame[1:])
        match message:
            case ProposalAck():
                self._acknowledged(host, message)
            case Vote():
                if message.granted:
                    self._voted(host, message)
            case Propose():
                self._proposed(host, message)
            case _:
                pass

    def _acknowledged(self, host: Host, message: ProposalAck) -> None:
        if message.regime not in self._masters:
            self.complain(f"{host.name} acknowledges {message.index} in regime {message.regime}, which has no master")
        self._demand_standing(host, "acknowledges", message.regime)
        self._speakers.setdefault((message.regime, message.index, message.hash), set()).add(host.name)
        self._last_word[host.name] = (message.index, message.hash)
        self._acked[host.name] = max(self._acked.get(host.name, (0, 0)), (message.index, message.regime))
        if host.name not in self._workload.victims and not _holds(host, message.hash):
            self.complain(f"{host.name} acknowledges {message.index}, which is not on its disk")

    def _voted(self, host: Host, message: Vote) -> None:
        standing = self._demand_standing(host, "votes", message.regime)
        asked = {key: value for key, value in self._asked.items() if key[0] == host.name and key[2] == message.regime}
        candidates = [key[1] for key in asked]
        if standing is not None and standing.regime == message.regime:
            if standing.vote not in candidates:
                self.complain(f"{host.name} votes in {message.regime}; on its disk is a vote for {standing.vote}")
            if asked[host.name, standing.vote, message.regime] < self._acked.get(host.name, (0, 0)):
                self.complain(f"{host.name} votes for a log that is behind what it acknowledged itself")
            former = self._votes.setdefault((host.name, message.life, message.regime), standing.vote)
            if former != standing.vote:
                self.complain(f"{host.name} votes twice in regime {message.regime}")

    def _demand_standing(self, host: Host, what: str, regime: int) -> HardState | None:
        self._promised[host.name] = max(regime, self._promised.get(host.name, 0))
        if host.disk.failed:
            self.complain(f"{host.name} {what} after its disk failed")
        self._demand_owed(host, what)
        if host.name in self._workload.victims and "misdirected" in " ".join(self.world.counts if self.world else ()):
            return None
        try:
            standing = _standing(host, self._workload)
        except Malformed:
            self.complain(f"{host.name} {what} without a standing on its disk")
        if standing.state is not VotingState.SOUND:
            self.complain(f"{host.name} {what} while it is {standing.state.name.lower()}")
        if standing.regime < regime:
            self.complain(f"{host.name} {what} in regime {regime}, and has {standing.regime} on its disk")
        return standing

    def _demand_owed(self, host: Host, what: str) -> None:
        index, digest = self._owed.get(host.name, (0, b""))
        if _holds(host, digest):
            self._owed.pop(host.name, None)
        elif self._agreed.get(index) == digest:
            self.complain(f"{host.name} {what}, and does not hold again what it held before its disk was damaged")

    def _proposed(self, host: Host, message: Propose) -> None:
        body = decode_body(message.body)
        digest = chain_hash(body.previous, message.body)
        self._speakers.setdefault((message.regime, message.index, digest), set()).add(host.name)
        if message.index == 1:
            return
        known = self._bodies.setdefault((message.regime, message.index), message.body)
        if known != message.body:
            self.complain(f"two bodies for {message.index} in regime {message.regime}")
        agreed = self._agreed.get(message.index)
        later = message.regime > self._ballots.get(message.index, message.regime)
        if later and agreed != digest:
            self.complain(f"{host.name} proposes {message.index} again, and not as it was agreed")
        if message.index - 1 not in self._agreed:
            self._demand_copies(message.index - 1, body.previous, "has a successor")

    # The end of the run.

    def is_satisfied(self, healed: Sequence[Host], /) -> bool:
        """True if every node that can serve has what was sent after the heal."""
        assert self.world is not None
        sound, lately_ns = self._sound(healed), self.world.now_ns - SECOND_NS
        wanted = self._workload.sent_at(lately_ns)
        fresh = wanted > self._workload.sent_at(self._workload.plan.heal_ns)
        return fresh and bool(sound) and all(_payloads(host) >= wanted for host in sound if _can_learn(host, sound))

    def _sound(self, healed: Sequence[Host]) -> list[Host]:
        """The healed nodes that can serve, if they are a quorum; else none."""
        sound = [host for host in healed if _can_serve(host, self._workload)]
        # The quorum follows from what a serializer among them knows to be agreed. More may be agreed, but only nodes
        # that were not healed, and members without a vote, know of it.
        positions = [self._position[host.name] for host in sound if _serializes(host)]
        if not positions:
            return []  # no healed node has a vote
        return sound if self._enough([host.name for host in sound], max(positions) + 1) else []

    def finish(self, healed: Sequence[Host], /) -> None:
        assert self.world is not None
        self.world.counts["agreed"] += len(self._agreed)
        self.world.counts["regimes"] += len(self._masters)
        if not healed:
            return
        sound = self._sound(healed)
        if not sound:
            self.world.counts["liveness not demanded"] += 1
            return
        self.world.counts["liveness demanded"] += 1
        late = self._workload.sent_at(self.world.now_ns - 5 * SECOND_NS)
        for host in sound:
            if not _can_learn(host, sound):
                self.world.counts["liveness not demanded: set unknown"] += 1
                continue
            through = _payloads(host)
            if through < late:
                self.complain(f"{host.name} has {through} payloads after the heal, {late} were sent long ago")


def _holds(host: Host, digest: bytes) -> bool:
    """True if the message is on the disk. After a failed sync, only a mark or a stamp that names it may be there."""
    if not host.disk.holds(digest, ".segment"):
        return False
    return not host.disk.diverged or any(
        record.chain_hash == digest and record.kind == Kind.META and record.part == 0 for record in _records(host)
    )


def _records(host: Host) -> Iterator[Record]:
    for _, data in segments_of(host.disk.durable()):
        header = read_headers(data).header
        if header is not None:
            yield from (record for _, record in scan(data, header).records)


def _standing(host: Host, workload: Order) -> HardState:
    return decode_hard_state(host.disk.file(hard_state_name(workload.settings(host.name))) or b"")


def _can_serve(host: Host, workload: Order) -> bool:
    try:
        # One whose only copy of something rotted may have to wait for a node that was not healed.
        whole = host.core is not None and host.core.serializer.has_no_gap  # type: ignore[attr-defined]
        return whole and _standing(host, workload).state is VotingState.SOUND
    except Malformed:
        return False


def _serializes(host: Host) -> bool:
    """True if the node has a vote, as far as it knows."""
    core: Any = host.core
    return core.number in core.serializer.context.quorum.voters


def _can_learn(host: Host, others: Sequence[Host]) -> bool:
    """True if the node can learn what is agreed from these others.

    A node that missed a whole change of serializers believes two serializers of the set that it knows, or the only
    one. If they are not among the others, it waits for them, or for an operator.
    """
    number = host.core.number  # type: ignore[union-attr]
    known = _serializers(host)
    newest = max(others, key=lambda other: other.core.serializer.context.log.agreed)  # type: ignore[union-attr]
    if known == _serializers(newest):
        return True
    here = {other.core.number for other in others}  # type: ignore[union-attr]
    return len(known & here - {number}) >= min(2, len(known - {number}))


def _serializers(host: Host) -> set[int]:
    core: Any = host.core
    return {*core.serializer.context.log.cluster_config.serializers}


def _payloads(host: Host) -> int:
    """The number of payloads that its execution got."""
    count: int = host.core.execution.count  # type: ignore[union-attr]
    return count
