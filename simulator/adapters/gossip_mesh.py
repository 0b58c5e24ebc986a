"""A simulated mesh for gossip cores alone: sessions, heartbeats, loss, cuts, pauses and kills in virtual time.

It replaces the mesh and everything below it, so that thousands of node-hours pass in minutes. It gives a core the
guarantees of the mesh: a session has both directions or does not exist, `Entered` comes first, `HeardFrom` comes once a
second while anything arrives, and `Exited` comes when a process dies or nothing was heard for `dead_ns`.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from chaplain.core import Report, Woken
from chaplain.gossip.core import GossipCore
from chaplain.gossip.events import (
    GossipEffect,
    GossipInput,
    GossipParcel,
    HeardFrom,
    JoinThrough,
    KeyConfirmed,
    KeyStep,
    MemberChanged,
    MemberState,
)
from chaplain.gossip.member_record import GossipSigner, Verify
from chaplain.gossip.settings import GossipSettings
from chaplain.link.auth.identity import Identity, identifier_of, verify
from chaplain.link.auth.keyring import key_id_of
from chaplain.link.events import Forget, InstallKey, Meet, Peer, RemoveKey, UseKey
from chaplain.mesh.events import Entered, Exited, Whisper
from chaplain.units import MILLISECOND_NS, SECOND_NS
from chaplain.wire import parcel

DIAL_NS = 500 * MILLISECOND_NS
HEARTBEAT_NS = SECOND_NS
LOOK_NS = 10 * MILLISECOND_NS


class CheapSigner:
    """A signature that is only the name: for simulations that count messages, not forgeries."""

    def __init__(self, rng: random.Random) -> None:
        self.key = rng.randbytes(32)
        self.identifier = identifier_of(self.key)

    def sign(self, label: bytes, message: bytes) -> bytes:
        return self.key + bytes(32)


def cheap_verify(key: bytes, label: bytes, message: bytes, signature: bytes) -> bool:
    return signature == key + bytes(32)


class Node:
    """One process: a core, the endpoints that it wants to meet, and its sessions."""

    def __init__(self, name: int, signer: GossipSigner, core: GossipCore, peer: Peer) -> None:
        self.name = name
        self.signer = signer
        self.core = core
        self.peer = peer
        self.up = True
        self.paused = False
        self.queue: list[GossipInput] = []
        self.wanted: dict[str, None] = {}
        self.sessions: dict[int, Peer] = {}
        self.heard_ns: dict[int, int] = {}
        self.effects: list[tuple[int, GossipEffect]] = []
        self.woken_ns = -1


class World:
    def __init__(
        self,
        seed: int,
        settings: GossipSettings | None = None,
        *,
        loss: float = 0.0,
        latency_ns: tuple[int, int] = (200_000, 2 * MILLISECOND_NS),
        dead_ns: int = 30 * SECOND_NS,
        cheap: bool = False,
        redial: bool = True,
    ) -> None:
        self.rng = random.Random(seed)
        self.settings = settings or GossipSettings()
        self.loss = loss
        self.now_ns = SECOND_NS
        self.nodes: list[Node] = []
        self.cuts: dict[tuple[int, int], None] = {}
        """Directions (from, to) in which nothing arrives."""
        self.keep_effects = True
        self.watchers: list[Callable[[Node, GossipEffect], None]] = []
        self.counts: Counter[str] = Counter()
        self._latency_ns = latency_ns
        self._dead_ns = dead_ns
        self._cheap = cheap
        self._redial = redial
        """False: one dial for each `Meet`, as in a mesh whose back-off has grown long."""
        self._check: Verify = cheap_verify if cheap else verify
        self._agenda: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    # Actions of tests.

    def add(self, *, through: int | None = None, signer: GossipSigner | None = None) -> Node:
        """Start a node that joins through another; with a `signer` that ran before, this is a restart."""
        if signer is None:
            signer = CheapSigner(self.rng) if self._cheap else Identity.generate(self.rng)
        name = len(self.nodes)
        node = self._boot(name, signer)
        self.nodes.append(node)
        if through is not None:
            self.step(node, JoinThrough(self.nodes[through].peer.endpoint))
        return node

    def cluster(self, size: int) -> list[Node]:
        """Start `size` nodes, all through the first, and let them meet."""
        self.add()
        for _ in range(size - 1):
            self.add(through=0)
        self.run(5 * SECOND_NS)
        return self.nodes

    def kill(self, name: int) -> None:
        """Kill the process; its peers see their sockets close."""
        node = self.nodes[name]
        node.up = False
        for other in list(node.sessions):
            if not self._is_cut(name, other):
                self.after(MILLISECOND_NS, self._exit, self.nodes[other], node.peer, "closed")
        node.sessions.clear()

    def restart(self, name: int, *, through: int) -> Node:
        self.nodes[name] = self._boot(name, self.nodes[name].signer)
        self.step(self.nodes[name], JoinThrough(self.nodes[through].peer.endpoint))
        return self.nodes[name]

    def pause(self, name: int, duration_ns: int) -> None:
        self.nodes[name].paused = True
        self.after(duration_ns, self._resume, self.nodes[name])

    def cut(self, one: int, other: int) -> None:
        """Block this direction; the other one stays open."""
        self.cuts[one, other] = None

    def partition(self, *sides: tuple[int, ...]) -> None:
        for side in sides:
            for one in side:
                for other in range(len(self.nodes)):
                    if other not in side:
                        self.cut(one, other)

    def heal(self) -> None:
        self.cuts.clear()

    def run(self, duration_ns: int, until: Callable[[], bool] | None = None) -> bool:
        """Advance time. Stop early and return True once the condition holds (checked every few milliseconds)."""
        end_ns = self.now_ns + duration_ns
        look_ns = self.now_ns
        while self._agenda and self._agenda[0][0] <= end_ns:
            if until is not None and self._agenda[0][0] >= look_ns:
                look_ns = self._agenda[0][0] + LOOK_NS
                if until():
                    return True
            self.now_ns, _, act, arguments = heapq.heappop(self._agenda)
            act(*arguments)
        if until is not None and until():
            return True
        self.now_ns = end_ns
        return False

    # Queries of tests.

    def view(self, name: int) -> tuple[int, ...]:
        """Names of the nodes that this node considers present."""
        by_identifier = {node.signer.identifier: node.name for node in self.nodes}
        present = [
            member.identifier for member in self.nodes[name].core.members() if member.state is not MemberState.LEFT
        ]
        return tuple(sorted(by_identifier.get(identifier, -1) for identifier in present))

    def agree(self, *names: int) -> bool:
        """True if these nodes consider exactly each other present."""
        return all(self.view(name) == tuple(sorted(names)) for name in names)

    def state(self, at: int, of: int) -> MemberState | None:
        member = self.nodes[at].core.member(self.nodes[of].signer.identifier)
        return None if member is None else member.state

    def changes(self, at: int, of: int) -> list[MemberState]:
        """All states of a node, as another node saw them."""
        subject = self.nodes[of].signer.identifier
        told = [effect for _, effect in self.nodes[at].effects if isinstance(effect, MemberChanged)]
        return [change.member.state for change in told if change.member.identifier == subject]

    def reports(self, at: int) -> list[str]:
        return [effect.event for _, effect in self.nodes[at].effects if isinstance(effect, Report)]

    # Implementation.

    def after(self, delay_ns: int, act: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (self.now_ns + delay_ns, self._order, act, arguments))

    def step(self, node: Node, event: GossipInput) -> None:
        if not node.up:
            return
        if node.paused:
            node.queue.append(event)
            return
        for effect in node.core.step(self.now_ns, event):
            self._perform(node, effect)
        due_ns = node.core.deadline()
        if due_ns != node.woken_ns:
            node.woken_ns = due_ns
            self.after(max(0, due_ns - self.now_ns), self._wake, node, due_ns)

    def _boot(self, name: int, signer: GossipSigner) -> Node:
        instance = self.rng.randbytes(16)
        uri = f"tcp://127.0.0.1:{10_000 + name}"
        rng = random.Random(self.rng.random())
        core = GossipCore(signer, instance, uri, self.settings, rng, self.now_ns, check=self._check)
        node = Node(name, signer, core, Peer(instance, signer.identifier, signer.key, uri))
        self.after(0, self._wake, node, -1)
        if self._redial:
            self.after(self.rng.randrange(DIAL_NS), self._dial, node)
        self.after(self.rng.randrange(HEARTBEAT_NS), self._beat, node)
        return node

    def _perform(self, node: Node, effect: GossipEffect) -> None:
        if self.keep_effects:
            node.effects.append((self.now_ns, effect))
        for watcher in self.watchers:
            watcher(node, effect)
        match effect:
            case Whisper():
                self._carry(node, effect)
            case Meet():
                node.wanted[effect.endpoint] = None
                self.after(MILLISECOND_NS, self._connect, node, effect.endpoint)
            case Forget():
                node.wanted.pop(effect.endpoint, None)
                self._hang_up(node, effect.endpoint)
            case InstallKey():
                self.after(MILLISECOND_NS, self.step, node, KeyConfirmed(KeyStep.INSTALL, key_id_of(effect.key)))
            case UseKey():
                self.after(MILLISECOND_NS, self.step, node, KeyConfirmed(KeyStep.USE, effect.key_id))
            case RemoveKey():
                self.after(MILLISECOND_NS, self.step, node, KeyConfirmed(KeyStep.REMOVE, effect.key_id))
            case _:
                pass

    def _carry(self, node: Node, whisper: Whisper) -> None:
        self.counts["whispers"] += 1
        self.counts["bytes"] += len(whisper.content)
        target = next((name for name, peer in node.sessions.items() if peer.instance == whisper.instance), None)
        if target is None or self._is_cut(node.name, target) or self.rng.random() < self.loss:
            return
        delay_ns = self.rng.randrange(*self._latency_ns)
        self.after(delay_ns, self._deliver, self.nodes[target], node.peer, whisper.content)

    def _deliver(self, node: Node, sender: Peer, content: bytes) -> None:
        if node.peer.identifier != sender.identifier:
            self.step(node, GossipParcel(sender, parcel.decode(content)))

    def _wake(self, node: Node, due_ns: int) -> None:
        if self.nodes[node.name] is node and due_ns in (-1, node.woken_ns):
            self.step(node, Woken())

    def _resume(self, node: Node) -> None:
        node.paused = False
        waiting, node.queue = node.queue, []
        for event in waiting:
            self.step(node, event)

    def _dial(self, node: Node) -> None:
        if not self._is_running(node):
            return
        for endpoint in list(node.wanted):
            self._connect(node, endpoint)
        self.after(DIAL_NS, self._dial, node)

    def _connect(self, node: Node, endpoint: str) -> None:
        other = next((other for other in self.nodes if other.peer.endpoint == endpoint), None)
        if other is None or not self._is_running(node) or endpoint not in node.wanted or node.paused:
            return
        held = node.sessions.get(other.name)
        if other is node or not other.up or other.paused or (held == other.peer and node.name in other.sessions):
            return
        if self._is_cut(node.name, other.name) or self._is_cut(other.name, node.name):
            return
        for one, two in ((node, other), (other, node)):
            one.sessions[two.name] = two.peer
            one.heard_ns[two.name] = self.now_ns
            self.step(one, Entered(two.peer, {}))

    def _hang_up(self, node: Node, endpoint: str) -> None:
        """End a session that neither side wants."""
        other = next((other for other in self.nodes if other.peer.endpoint == endpoint), None)
        if other is not None and other.name in node.sessions and node.peer.endpoint not in other.wanted:
            self.after(0, self._exit, node, other.peer, "forgotten")
            self.after(MILLISECOND_NS, self._exit, other, node.peer, "hung up")

    def _beat(self, node: Node) -> None:
        """Once a second: send a heartbeat to all peers, and end sessions that were silent for too long."""
        if not self._is_running(node):
            return
        self.after(HEARTBEAT_NS, self._beat, node)
        if node.paused:
            return
        for name, peer in list(node.sessions.items()):
            other = self.nodes[name]
            if not self._is_cut(node.name, name) and self.rng.random() >= self.loss and other.peer == peer:
                self._hear(other, node)
            if self.now_ns - node.heard_ns.get(name, 0) > self._dead_ns:
                self._exit(node, peer, "silent")

    def _hear(self, node: Node, speaker: Node) -> None:
        if speaker.name in node.sessions:
            node.heard_ns[speaker.name] = self.now_ns
            self.step(node, HeardFrom(speaker.peer.identifier))

    def _exit(self, node: Node, peer: Peer, reason: str) -> None:
        held = next((name for name, known in node.sessions.items() if known == peer), None)
        if held is not None and node.up:
            del node.sessions[held]
            self.step(node, Exited(peer, reason))

    def _is_cut(self, one: int, other: int) -> bool:
        return (one, other) in self.cuts

    def _is_running(self, node: Node) -> bool:
        return node.up and self.nodes[node.name] is node
