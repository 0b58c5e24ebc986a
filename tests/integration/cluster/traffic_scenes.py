"""What may not happen to pool traffic. Each scene checks, and answers with numbers worth keeping."""

from __future__ import annotations

import re
import signal

from chaplain import Client
from chaplain.errors import Refused
from tests.support.process_cluster import Cluster, until
from tests.support.traffic_capture import talking, wait_to_hear

PER_SECOND = 100.0
FRAMES_WRONG = ("link_frames_rejected", "link_replays_rejected", "mesh_frames_without_session")
"""What would count frames that came without the greeting that has to come first."""


def greetings_came_first(cluster: Cluster) -> None:
    """Nothing arrived that had no session."""
    for node in cluster:
        assert [node.count(name) for name in FRAMES_WRONG] == [0, 0, 0], (node, node.lines("frame rejected"))


def keys_rotate_under_traffic(cluster: Cluster, *, restarted: int, rotations: int) -> int:
    """Rotate while three clients broadcast, with a restart between; all that was sent."""
    steady = [node.number for node in cluster.others(restarted)]
    rings = [_ring(cluster)]
    with talking(cluster.directory, speakers=steady, ears=list(cluster.nodes), per_second=PER_SECOND / 3) as talk:
        mouths, ears = talk
        for rotation in range(rotations):
            if rotation:
                cluster[restarted].kill()  # who says good-bye first sends a last word into a session that is over
                cluster[restarted].start()
                cluster.wait_until_whole()
                wait_to_hear(ears[-1], mouths)
            with Client.connect(cluster.directory, node=steady[rotation % len(steady)], timeout=60) as client:
                until(lambda client=client: _rotated(client), "the keys are rotated")
            rings.append(_ring(cluster))
            for ear in ears:
                wait_to_hear(ear, mouths)
        for mouth in mouths:
            mouth.stop()
        names = [mouth.name for mouth in mouths]
        for ear in ears:
            wait_to_hear(ear, mouths, more=0)
        for ear in ears[:-1]:
            for mouth in mouths:
                assert ear.heard(mouth.name) == list(range(1, mouth.sent + 1)), f"{ear}, {mouth}"
        assert ears[-1].faults(names) == []
        assert ears[-1].told >= rotations - 1
    assert [len(ring) for ring in rings] == [1] * len(rings), (
        "after each rotation there is one key, the same on every node"
    )
    assert len({*rings}) == rotations + 1, "and another one each time"
    greetings_came_first(cluster)
    return sum(mouth.sent for mouth in mouths)


def _rotated(client: Client) -> bool:
    """A node that was just restarted may confirm too late: whoever is told to ask again does."""
    try:
        return client.rotate_keys()["rotated"] is True
    except Refused as refusal:
        if "ask again" not in str(refusal):
            raise
        return False


def _ring(cluster: Cluster) -> tuple[str, ...]:
    """The cluster's keys, over all nodes."""
    texts = [(node.folder / "keyring").read_text() for node in cluster]
    return tuple(sorted({key for text in texts for key in re.findall(r"^key (\S+)$", text, re.MULTILINE)}))


def receiver_restarts(cluster: Cluster, restarts: int) -> dict[str, int]:
    """Node 1 sends, node 2 is killed again and again. What was lost before node 1 knew is in node 1's reports."""
    sender, receiver = cluster[1], cluster[2]
    unexplained = reported = 0
    with talking(cluster.directory, speakers=[1], ears=[2], per_second=2 * PER_SECOND) as ([mouth], [ear]):
        for _ in range(restarts):
            wait_to_hear(ear, [mouth])
            first, heard_before = mouth.sent, len(ear.heard(mouth.name))
            until(lambda n=heard_before: len(ear.heard(mouth.name)) > n + 50, "and goes on")
            killed_s = receiver.kill()
            until(lambda s=killed_s: sender.when(2, "suspect", s) is not None, "node 1 notices")
            noticed_s = sender.when(2, "suspect", killed_s) or 0.0
            receiver.start()
            told = ear.told
            until(lambda told=told: ear.told > told, "the listener is told of the hole")
            heard = {*ear.heard(mouth.name)}
            sent = [number for number, at_s in enumerate(mouth.acked_s, 1) if at_s < noticed_s and number > first]
            lost = [number for number in sent if number not in heard]
            lines = sender.lines("commands lost", killed_s)
            told_lost = sum(line["count"] for line in lines if line["direction"] == "out")
            assert len(lost) <= told_lost, f"{len(lost)} lost before node 1 noticed, {told_lost} reported"
            unexplained += len(lost)
            reported += told_lost
            greetings_came_first(cluster)
        mouth.stop()
        wait_to_hear(ear, [mouth], more=0)
        assert ear.faults([mouth.name]) == []
        heard_count = len(ear.heard(mouth.name))
    assert sender.count("mesh_gapped_outgoing") >= reported
    return {
        "restarts": restarts,
        "sent": mouth.sent,
        "received": heard_count,
        "lost before node 1 noticed": unexplained,
        "reported lost by node 1": reported,
    }


def slow_receiver_is_told(cluster: Cluster) -> dict[str, int]:
    """Node 2 stands still while node 1's queue for it overflows: node 2's listener is told."""
    sender, receiver = cluster[1], cluster[2]
    with talking(cluster.directory, speakers=[1], ears=[2], per_second=1e6, size_bytes=50_000) as ([mouth], [ear]):
        receiver.signal(signal.SIGSTOP)
        try:
            until(lambda: sender.count("mesh_gapped_outgoing") > 10, "the queue overflows")
        finally:
            receiver.signal(signal.SIGCONT)
        told = ear.told
        until(lambda: ear.told > told, "the listener is told")
        mouth.stop()
        dropped = sender.count("mesh_gapped_outgoing")
        assert ear.faults([mouth.name]) == []
        missed = sum(note.missed for note in ear.notes)
        heard = len(ear.heard(mouth.name))
    return {"sent": mouth.sent, "received": heard, "dropped by node 1": dropped, "told to the listener": missed}
