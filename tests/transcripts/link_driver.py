"""Verbs for transcripts of links: nodes by name, and a network that does nothing until told.

node NAME [cluster=C] [key=K]   a new process of that name; the endpoint is tcp://10.0.0.<n>:7171
meet A B                        A is asked to keep a session with B
connect A B                     A's dial knocks at B; if it is admitted, A is told that it is connected
deliver A B [count=N]           what A has sent to B arrives, oldest first (all of it, unless a count is given)
keep A B                        look at the oldest frame under way from A to B, and keep a copy
inject A B                      the kept frame arrives at B on A's channel, once more
say A B TEXT …                  A says each TEXT to B, all in one wake-up
cut A B                         A's dial to B breaks; both lose what is under way
drop A B                        the oldest frame under way from A to B is lost
wait SECONDS                    time passes; nodes that want to wake do
"""

from collections import defaultdict, deque
from random import Random

from chaplain.core import (
    Admit,
    Arrived,
    Connected,
    Dial,
    Disconnected,
    Drained,
    Flushed,
    HangUp,
    Knocked,
    Refuse,
    Report,
    Send,
    Woken,
)
from chaplain.link.auth.identity import Identity, new_instance
from chaplain.link.auth.keyring import KeyRing
from chaplain.link.core import LinkCore
from chaplain.link.events import CommandDropped, Meet, Met, Missed, Parted, Said, Say
from chaplain.link.settings import LinkSettings

SECOND = 10**9


class Driver:
    def __init__(self):
        self.now_ns = 1_800_000_000 * SECOND
        self.rng = Random("transcript")
        self.identities, self.nodes, self.endpoints, self.instances = {}, {}, {}, {}
        self.dials, self.channels, self.wires = {}, {}, defaultdict(deque)
        self.knocks, self.kept = {}, b""

    # Verbs.

    def do_node(self, name, cluster="home", key="k"):
        identity = self.identities.setdefault(name, Identity.generate(self.rng))
        endpoint = self.endpoints.setdefault(name, f"tcp://10.0.0.{len(self.endpoints) + 1}:7171")
        settings = LinkSettings(cluster=cluster, endpoint=endpoint)
        instance = new_instance(self.rng)
        ring = KeyRing(key.encode() * 32)
        self.nodes[name] = LinkCore(identity, instance, settings, self.rng, ring=ring)
        self.instances[instance] = name
        self._forget_wires(name)
        return [f"{name} is at {endpoint}"]

    def do_meet(self, a, b):
        return self._step(a, Meet(self.endpoints[b]))

    def do_connect(self, a, b):
        number, dial = self.dials.pop((a, b))
        self.knocks[b"%d" % number] = (a, b)
        lines = self._step(b, Knocked(b"%d" % number, dial.name, dial.proof, a))
        if self.channels.get((a, b)) == number:
            lines += self._step(a, Connected(number))
        return lines

    def do_deliver(self, a, b, count="99"):
        lines = []
        for _ in range(min(int(count), len(self.wires[a, b]))):
            frame = self.wires[a, b].popleft()
            lines += self._step(b, Arrived(self.nodes[a].route, frame))
        return lines

    def do_keep(self, a, b):
        self.kept = self.wires[a, b][0]
        return [f"kept {kind(self.kept)}"]

    def do_inject(self, a, b):
        return self._step(b, Arrived(self.nodes[a].route, self.kept))

    def do_drop(self, a, b):
        return [f"lost {kind(self.wires[a, b].popleft())}"]

    def do_say(self, a, b, *texts):
        return self._step(a, *(Say(self.nodes[b].instance, text.encode()) for text in texts))

    def do_cut(self, a, b):
        self.wires[a, b].clear()
        return self._step(a, Disconnected(self.channels.pop((a, b)), "cut"))

    def do_wait(self, seconds):
        self.now_ns += int(float(seconds) * SECOND)
        lines = []
        for name, node in self.nodes.items():
            while (deadline := node.deadline()) is not None and deadline <= self.now_ns:
                lines += self._step(name, Woken())
        return lines

    # What nodes want done.

    def _step(self, name, *events):
        """One wake-up."""
        node = self.nodes[name]
        effects = [effect for event in (*events, Drained()) for effect in node.step(self.now_ns, event)]
        return [f"{name}: {line}" for effect in effects for line in self._perform(name, effect)]

    def _perform(self, name, effect):
        match effect:
            case Dial():
                other = next(other for other, endpoint in self.endpoints.items() if endpoint == effect.endpoint)
                self.dials[name, other] = (effect.dial, effect)
                return [f"Dial {other}"]
            case Admit():
                dialler, _ = self.knocks[effect.request]
                self.channels[dialler, name] = int(effect.request)
                return [f"Admit {dialler}"]
            case Refuse():
                return [f"Refuse {self.knocks[effect.request][0]}: {effect.reason}"]
            case Send():
                other = next(b for (a, b), dial in self.channels.items() if (a, dial) == (name, effect.channel))
                self.wires[name, other].append(effect.frame)
                self.nodes[name].step(self.now_ns, Flushed(effect.channel, len(effect.frame)))
                return [f"Send {kind(effect.frame)} to {other}"]
            case HangUp():
                return ["HangUp"]
            case Met():
                return [f"Met {self.instances[effect.peer.instance]}"]
            case Said():
                speaker = self.instances[effect.instance]
                return [f"Said {command.decode()!r} by {speaker}" for command in effect.commands]
            case Missed():
                return [f"Missed {effect.count} of {self.instances[effect.instance]}"]
            case CommandDropped():
                return [f"Dropped {effect.command.decode()!r}: {effect.reason}"]
            case Parted():
                name = self.instances[effect.peer.instance]
                return [f"Parted from {name}: {effect.reason}, {effect.unconfirmed} unconfirmed"]
            case Report():
                return [f"Report {effect.event}: {effect.detail.get('reason', '')}"]

    def _forget_wires(self, name):
        for pair in [pair for pair in [*self.wires, *self.channels, *self.dials] if name in pair]:
            self.wires.pop(pair, None)
            self.channels.pop(pair, None)
            self.dials.pop(pair, None)


def kind(frame):
    return "a greeting" if frame[0] in {0x11, 0x12} else f"sealed {int.from_bytes(frame[1:9], 'big')}"
