"""Verbs for transcripts of the configuration stream: serializers under one's own hands, and every word they say.

found COUNT [serializers=A,B,C] [strangers=N]
                                  so many nodes, all with all roles; some serialize; others run and are no members
ask WHAT NODE …                   an admin asks: set, or add-ROLE, or remove-ROLE
round                             what is under way arrives, and every disk writes
settle                            rounds until nothing is under way
wait SECONDS                      time passes; heartbeats and their answers are not shown
lose NODE · back NODE             a process ends, and its connections; it starts again from its disk
cut A B · mend                    nothing gets from A to B; everything passes again
drained NODE                      an ingest node tells the master that nothing of it waits
who                               what each node that is up knows
"""

from random import Random

from chaplain.core import Drained
from chaplain.errors import Malformed
from chaplain.journal.consensus.events import ConfigOffered, IngestDrained, Received
from chaplain.journal.messages.cluster import ConfigEntry, decode_body
from chaplain.journal.messages.consensus import (
    AgreedMark,
    AskVote,
    Canvass,
    Canvassed,
    ElectionProof,
    Handover,
    MarkHeard,
    ProposalAck,
    Propose,
    Vote,
)
from chaplain.journal.messages.consensus import decode as decode_order
from chaplain.journal.messages.membership import (
    AddNode,
    EntryType,
    NewSet,
    RemoveNode,
    SetRefusal,
    Stage,
    decode_fields,
    decode_step,
    encode_fields,
    is_opening,
    type_of,
)
from chaplain.wire.primitives import ByteReader
from tests.support.consensus_cluster import Cluster

WISHES = {
    "add-executor": EntryType.ADD_EXECUTOR_NODE,
    "add-ingest": EntryType.ADD_INGEST_NODE,
    "add-config": EntryType.ADD_CONFIG_NODE,
    "remove-executor": EntryType.REMOVE_EXECUTOR_NODE,
    "remove-ingest": EntryType.REMOVE_INGEST_NODE,
}
QUIET = (MarkHeard, AgreedMark)


class Overheard(Cluster):
    """A cluster that notes everything that arrives."""

    def __init__(self, size, founders, strangers):
        self.heard = []
        super().__init__(size, founders, strangers)

    def move(self):
        """What is under way arrives; what is said in answer arrives with the next move."""
        under_way = [(pair, message) for pair, wire in self.wires.items() for message in wire]
        for wire in self.wires.values():
            wire.clear()
        for (sender, receiver), message in under_way:
            passes = receiver not in self.down and (sender, receiver) not in self.cut
            self.heard.append((sender, receiver, message, passes))
            if passes:
                self.hosts[receiver].step(Received(sender, message))
        for host in self.up():
            while host.persists:
                host.write()
            host.step(Drained())
        return bool(under_way) or any(self.wires.values()) or any(host.persists for host in self.up())


class Driver:
    def __init__(self):
        self.cluster = None
        self.rng = Random("transcript")

    # Verbs.

    def do_found(self, count, serializers="", strangers="0"):
        founders = tuple(map(int, serializers.split(","))) if serializers else ()
        self.cluster = Overheard(int(count), founders, int(strangers))
        self.cluster.run(3)
        self.cluster.heard.clear()
        return self.do_who()

    def do_ask(self, what, *nodes):
        numbers = tuple(map(int, nodes))
        message = NewSet(numbers) if what == "set" else self._one(WISHES[what], *numbers)
        stage = {EntryType.NEW_SERIALIZER_SET: Stage.NOMINATE, EntryType.REMOVE_INGEST_NODE: Stage.BLOCK}
        opening = stage.get(type_of(message), Stage.CATCHUP if isinstance(message, AddNode) else Stage.IMPLEMENT)
        master = self.cluster.master()
        master.step(ConfigOffered(type_of(message), opening, encode_fields(message)))
        return [f"node {master.node} is master, and takes it"]

    def _one(self, kind, node):
        if kind in (EntryType.REMOVE_EXECUTOR_NODE, EntryType.REMOVE_INGEST_NODE):
            return RemoveNode(kind, node)
        if self.cluster.master().execution.cluster_config.node(node) is not None:
            return AddNode(kind, node)
        return AddNode(kind, node, f"tcp://10.0.0.{node}:7171", bytes((node,)) * 32, bytes((node,)) * 16)

    def do_round(self):
        self.cluster.move()
        return self._shown()

    def do_settle(self):
        self.cluster.settle()
        return self._shown()

    def do_wait(self, seconds):
        self.cluster.run(float(seconds))
        return self._shown(quiet=True)

    def do_lose(self, node):
        self.cluster.kill(int(node))
        return [f"node {node} is gone"]

    def do_back(self, node):
        self.cluster.restart(int(node))
        return [f"node {node} is back"]

    def do_cut(self, a, b):
        self.cluster.cut.add((int(a), int(b)))
        return [f"nothing gets from {a} to {b}"]

    def do_mend(self):
        self.cluster.cut.clear()
        return ["everything passes"]

    def do_drained(self, node):
        self.cluster.master().step(IngestDrained(int(node)))
        return [f"the master hears that nothing of node {node} waits"]

    def do_who(self):
        return [self._seen(host) for host in self.cluster.up()]

    # Words.

    def _seen(self, host):
        cluster_config = host.execution.cluster_config
        sets = " and ".join(" ".join(map(str, members)) for members in cluster_config.quorum.sets)
        role = f"{host.core.role} of regime {host.core.regime}"
        said = f"node {host.node}: {role}, {host.core.agreed[0]} agreed, {sets} serialize"
        open_ones = [
            f"{_name(change.entry_type)} {_name(Stage(change.stage))}"
            for change in cluster_config.changes
            if change.open
        ]
        return ", ".join([said, *open_ones])

    def _shown(self, quiet=False):
        """What arrived, one line for one word to many."""
        lines, last, heard = [], None, self.cluster.heard
        for sender, receiver, raw, passes in heard:
            message = decode_order(raw)
            if quiet and isinstance(message, QUIET):
                continue
            text = _words(message)
            if passes and last == (sender, text):
                lines[-1][1].append(receiver)
                continue
            lines.append((sender, [receiver], text if passes else f"{text} (lost)"))
            last = (sender, text) if passes else None
        heard.clear()
        return [f"{sender} to {' '.join(map(str, receivers))}: {text}" for sender, receivers, text in lines]


def _words(message):
    match message:
        case Propose():
            body = decode_body(message.body)
            what = "; ".join(map(_entry, body.entries)) or "nothing"
            again = f" of regime {body.regime}" if body.regime != message.regime else ""
            return f"Propose {message.index}{again}{', final' if body.final else ''}: {what}"
        case ProposalAck():
            return f"Acknowledge {message.index}"
        case AgreedMark():
            return f"Mark: {message.index} is agreed"
        case MarkHeard():
            return f"Heard, holding {message.index}"
        case Canvass() | AskVote():
            return f"{type(message).__name__} for regime {message.regime}, holding {message.index}"
        case Canvassed() | Vote():
            return f"{type(message).__name__} in regime {message.regime}: {'yes' if message.granted else 'no'}"
        case Handover():
            return "Handover: stand, and be master"
        case ElectionProof():
            return f"ElectionProof for regime {message.regime}: votes of {' '.join(map(str, message.votes))}"
        case _:
            return type(message).__name__


def _entry(entry):
    if not isinstance(entry, ConfigEntry):
        return f"payload {entry.reference.index}"
    try:
        if is_opening(entry.entry_type, entry.stage):
            wanted = decode_fields(ByteReader(entry.data), entry.entry_type)
            nodes, why = (wanted.nodes if isinstance(wanted, NewSet) else (wanted.node,)), ""
        else:
            step = decode_step(entry.entry_type, entry.stage, entry.data)
            nodes = step.nodes
            why = {SetRefusal.SAME_SET: " (the same set)", SetRefusal.TIMED_OUT: f" (node {step.about} timed out)"}.get(
                step.reason, ""
            )
    except Malformed as wrong:
        return str(wrong)
    return f"{_name(entry.entry_type)} {_name(Stage(entry.stage))} {' '.join(map(str, nodes))}{why}"


def _name(value):
    name = EntryType(value).name if not isinstance(value, Stage) else value.name
    return name.replace("_", " ").title()
