"""Checkpoints of the tree over the log, signed by the nodes of a cluster in memory."""

from __future__ import annotations

import pytest

from chaplain.core import Persist, Woken, WriteAt
from chaplain.errors import Malformed
from chaplain.journal.execution.state import load
from chaplain.journal.messages import peer as peer_messages
from chaplain.journal.messages.client import AskTree, Failed, TreePart
from chaplain.journal.messages.peer import TreeSignature
from chaplain.journal.model.bootstrap import ExecutionPolicy
from chaplain.journal.snapshots import checkpoint
from chaplain.journal.snapshots.checkpoint import checkpoint_name
from chaplain.journal.tree import service, signed_record
from chaplain.journal.tree.signed_record import SLOT_BYTES, SignedRecord
from chaplain.mesh.events import Whisper
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import cosignature, note, policy
from chaplain.proofs.checkpoint import Checkpoint, origin_of
from chaplain.proofs.cosignature import signed_octets
from chaplain.proofs.merkle import leaf_hash, root_of
from chaplain.proofs.tiles import decode_bundle
from chaplain.wire import parcel
from tests.support.execution_stage import CLUSTER, NODES, pack
from tests.support.journal_cluster import Client, Cluster, Node

SECOND = 10**9


def started(**settings) -> tuple[Cluster, Client, int]:
    cluster = Cluster(**settings)
    cluster.elect()
    client = Client(cluster).connect(cluster.master)
    return cluster, client, client.lease()


def write(cluster: Cluster, client: Client, lane: int, first: int, count: int = 1) -> None:
    for number in range(first, first + count):
        client.write(pack(lane, number))
    cluster.until(lambda: sum(run.requests for run in client.runs) >= first + count - 1)


def sizes(cluster: Cluster) -> list[int]:
    complete = [node.core.tree.signer.complete for node in cluster.nodes.values()]
    return [0 if one is None else one.checkpoint.size for one in complete]


def covered(cluster: Cluster, size: int) -> None:
    cluster.until(lambda: min(sizes(cluster)) >= size, 20 * SECOND)


def spoken(cluster: Cluster) -> list[tuple[int, TreeSignature]]:
    """Collects, from now on, every signature that leaves a node."""
    found: list[tuple[int, TreeSignature]] = []

    def listen(sender: int, _to: int, said: parcel.Parcel) -> bool:
        try:
            message = peer_messages.decode(said.body, said.payload)
        except Malformed:
            return False
        if isinstance(message, TreeSignature):
            found.append((sender, message))
        return False

    cluster.spoil = listen
    return found


def test_checkpoint_of_a_write_is_complete_on_every_node_within_a_second():
    cluster, client, lane = started()
    write(cluster, client, lane, 1)
    before_ns = cluster.now_ns
    covered(cluster, 1)
    assert cluster.now_ns - before_ns <= SECOND
    for node in cluster.nodes.values():
        complete = node.core.tree.signer.complete
        tree = node.core.execution.state.tree
        assert (complete.checkpoint.size, complete.checkpoint.root) == (tree.size, tree.root())
        keys = {number: NODES[number].key for number in (1, 2, 3)}
        trusted = policy.parse(policy.cluster_policy(CLUSTER, keys).encode())
        assert len(policy.check(trusted, complete).witnesses) >= 2


def test_nodes_sign_at_most_once_a_second_and_only_with_news():
    cluster, client, lane = started()
    said = spoken(cluster)
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    cluster.rest(10 * SECOND)
    assert {message.size for _, message in said} == {1}
    began_ns = cluster.now_ns
    number = 2
    while cluster.now_ns < began_ns + 5 * SECOND:
        write(cluster, client, lane, number)
        cluster.rest(SECOND // 20)
        number += 1
    covered(cluster, number - 1)
    assert len({message.size for _, message in said}) <= 2 + (cluster.now_ns - began_ns) // SECOND + 1


def test_minority_completes_no_checkpoint():
    cluster, client, lane = started()
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    master = cluster.master
    others = [number for number in cluster.nodes if number != master]

    def only_order(sender: int, to: int, said: parcel.Parcel) -> bool:
        try:
            message = peer_messages.decode(said.body, said.payload)
        except Malformed:
            return False
        return isinstance(message, TreeSignature)

    cluster.spoil = only_order
    write(cluster, client, lane, 2)
    cluster.rest(5 * SECOND)
    assert sizes(cluster) == [1, 1, 1]
    cluster.spoil = None
    covered(cluster, 2)
    assert len(others) == 2


def test_signature_counts_only_if_it_is_right_and_of_a_serializer():
    cluster, client, lane = started()
    said = spoken(cluster)
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    sender, good = next((node, one) for node, one in said if one.size == 1)
    signer = next(node.core.tree.signer for number, node in cluster.nodes.items() if number != sender)
    signer.complete, signer._received = None, {}
    signer.effects.clear()
    other = 6 - sender - signer._settings.node
    flipped = bytes((good.root[0] ^ 1,)) + good.root[1:]
    for node, message in (
        (other, good),
        (5, good),
        (sender, TreeSignature(good.size, flipped, good.time_s, good.as_log, good.as_cosigner)),
        (sender, TreeSignature(good.size, good.root, good.time_s + 1, good.as_log, good.as_cosigner)),
        (sender, TreeSignature(good.size, good.root, good.time_s, bytes(64), good.as_cosigner)),
        (sender, TreeSignature(good.size + 1, good.root, good.time_s, good.as_log, good.as_cosigner)),
        (sender, TreeSignature(0, good.root, good.time_s, good.as_log, good.as_cosigner)),
    ):
        signer.on_signature(cluster.now_ns, node, message)
        assert signer.complete is None
        assert not signer._received.get(node)
    signer.on_signature(cluster.now_ns, sender, good)
    signer.on_signature(cluster.now_ns, sender, good)
    assert signer.complete is None, "one node's signature counts once"


def test_node_signs_nothing_that_differs_from_its_own_tree():
    cluster, client, lane = started()
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    liar = cluster.master
    tree = cluster.nodes[liar].core.execution.state.tree
    write(cluster, client, lane, 2)
    covered(cluster, 2)
    tree.append([b"a leaf of nobody"])
    tree._edge._hashes[0] = bytes(32)
    said = spoken(cluster)
    write(cluster, client, lane, 3)
    cluster.rest(3 * SECOND)
    assert {node for node, message in said if message.size > 2} <= {liar}
    assert max(sizes(cluster)) == 2


def test_signature_leaves_only_after_the_record_of_it_is_on_disk():
    cluster, client, lane = started()
    write(cluster, client, lane, 1)
    for node in cluster.nodes.values():
        recorded: set[int] = set()
        perform = node._perform

        def watched(effect, perform=perform, recorded=recorded, node=node) -> None:
            match effect:
                case Persist(_, operations):
                    written = [one for one in operations if one.file == node.core.tree.signer.file]
                    perform(effect)
                    if written:
                        recorded.add(signed_record.read(bytes(node.files[node.core.tree.signer.file])).size)
                    return
                case Whisper():
                    said = parcel.decode(effect.content)
                    message = peer_messages.decode(said.body, said.payload) if said.body[1:2] == b"\x0b" else None
                    if isinstance(message, TreeSignature):
                        assert message.size in recorded or message.size == 1
            perform(effect)

        node._perform = watched
    write(cluster, client, lane, 2, 3)
    covered(cluster, 4)


def test_restarted_cluster_completes_the_same_checkpoint_again_without_a_write():
    cluster, client, lane = started()
    write(cluster, client, lane, 1, 5)
    covered(cluster, 5)
    roots = {node.core.tree.signer.complete.checkpoint for node in cluster.nodes.values()}
    for number in (1, 2, 3):
        cluster.kill(number)
    for number in (1, 2, 3):
        cluster.start(number)
    covered(cluster, 5)
    assert {node.core.tree.signer.complete.checkpoint for node in cluster.nodes.values()} == roots


def test_restarted_node_whose_tree_contradicts_its_signature_signs_nothing():
    cluster, client, lane = started()
    write(cluster, client, lane, 1, 3)
    covered(cluster, 3)
    victim = next(number for number in (1, 2, 3) if number != cluster.master)
    last = cluster.nodes[victim].core.tree.signer.last
    cluster.kill(victim)
    lie = signed_record.write("tree/signed", SignedRecord(last.size, bytes(32), last.time_s), 0)
    cluster.disks[victim]["tree/signed"] = bytearray(lie.data)
    node = cluster.start(victim)
    said = spoken(cluster)
    write(cluster, client, lane, 4)
    covered(cluster, 4)
    assert "root" in node.core.tree.signer.refused
    assert victim not in {sender for sender, _ in said}
    assert [one.event for one in node.reports if one.event == "signs no checkpoints"]


def test_node_with_a_wiped_disk_signs_only_what_it_executed_after_catching_up():
    cluster, client, lane = started()
    write(cluster, client, lane, 1, 5)
    covered(cluster, 5)
    signed: dict[int, bytes] = {}
    victim = next(number for number in (1, 2, 3) if number != cluster.master)
    cluster.kill(victim)
    cluster.wipe(victim)
    said = spoken(cluster)
    cluster.start(victim)
    write(cluster, client, lane, 6)
    covered(cluster, 6)
    for _, message in said:
        assert signed.setdefault(message.size, message.root) == message.root
    assert min(message.size for sender, message in said if sender == victim) >= 5


def test_tiles_of_a_long_log_are_files_and_hold_all_leaves():
    cluster, client, lane = started()
    write(cluster, client, lane, 1, 600)
    covered(cluster, 600)
    cluster.rest(2 * SECOND)
    for number, node in cluster.nodes.items():
        files = cluster.disks[number]
        assert {"tree/tile/0/000", "tree/tile/0/001", "tree/tile/entries/000", "tree/tile/entries/001"} <= set(files)
        answers: list[bytes | None] = []
        for index, width in ((0, 256), (1, 256), (2, 88)):
            name = f"tile/entries/{index:03}" + ("" if width == 256 else f".p/{width}")
            node.core.tree.ask(name, answers.append)
            cluster.rest(1)
            node.take(Woken())
            cluster.settle()
        entries = [
            entry for data, width in zip(answers, (256, 256, 88), strict=True) for entry in decode_bundle(data, width)
        ]
        assert root_of([leaf_hash(entry) for entry in entries]) == node.core.execution.state.tree.root()


def test_record_survives_a_torn_write_of_either_slot():
    file = bytearray(2 * SLOT_BYTES)
    for number in range(1, 6):
        write = signed_record.write("f", SignedRecord(number, bytes((number,)) * 32, number), number % 2)
        torn = file.copy()
        torn[write.position : write.position + 20] = write.data[:20]
        found = signed_record.read(bytes(torn))
        assert (found.size if found else 0) == number - 1
        file[write.position : write.position + len(write.data)] = write.data
        assert signed_record.read(bytes(file)) == SignedRecord(number, bytes((number,)) * 32, number)
    assert signed_record.read(None) is None
    assert signed_record.read(b"cannot be read") is None


def test_node_without_its_vote_signs_nothing_until_it_has_it_back(monkeypatch: pytest.MonkeyPatch):
    cluster, client, lane = started()
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    number = next(number for number in cluster.nodes if number != cluster.master)
    said = spoken(cluster)
    with monkeypatch.context() as patch:
        patch.setattr(cluster.nodes[number].core.tree.signer, "_may_sign", lambda: False)
        write(cluster, client, lane, 2)
        covered(cluster, 2)
        cluster.rest(2 * SECOND)
        assert number not in {sender for sender, message in said if message.size == 2}
    write(cluster, client, lane, 3)
    cluster.until(lambda: number in {sender for sender, message in said if message.size == 3})


def watch_records(node: Node) -> list[WriteAt]:
    """Collects the writes of the record from now on."""
    written: list[WriteAt] = []
    perform = node._perform

    def watched(effect) -> None:
        if isinstance(effect, Persist):
            written.extend(one for one in effect.operations if one.file == node.core.tree.signer.file)
        perform(effect)

    node._perform = watched
    return written


@pytest.mark.parametrize("records", [1, 2])
def test_first_record_after_a_restart_leaves_the_slot_that_counts(records: int):
    cluster, client, lane = started()
    for number in range(1, records + 1):
        write(cluster, client, lane, number)
        covered(cluster, number)
    number = next(number for number in cluster.nodes if number != cluster.master)
    cluster.kill(number)
    before = bytes(cluster.disks[number]["tree/signed"])
    written = watch_records(cluster.start(number))
    write(cluster, client, lane, records + 1)
    covered(cluster, records + 1)
    torn = bytearray(before)
    torn[written[0].position : written[0].position + 20] = written[0].data[:20]
    last = signed_record.read(before)
    assert last is not None
    assert signed_record.read(bytes(torn)) == last
    assert last.size == records


@pytest.mark.parametrize("of_master", [True, False])
def test_node_writes_one_record_at_a_time(monkeypatch: pytest.MonkeyPatch, of_master: bool):
    """A power cut during two writes could tear both slots. Here the end of the first write is never reported."""
    cluster, client, lane = started()
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    number = next(number for number in cluster.nodes if (number == cluster.master) is of_master)
    monkeypatch.setattr(cluster.nodes[number].core.tree.signer, "on_written", lambda now_ns, ticket: None)
    written = watch_records(cluster.nodes[number])
    for first_id in range(2, 8):
        write(cluster, client, lane, first_id)
        cluster.rest(2 * SECOND)
    assert len(written) == 1


@pytest.mark.parametrize("name", ["tile/0/001", "tile/0/000.p/7", "tile/entries/000.p/6", "tile/1/000"])
def test_tile_beyond_the_tree_is_missing(name):
    cluster, client, lane = started()
    write(cluster, client, lane, 1, 5)
    answers: list[bytes | None] = []
    cluster.nodes[1].core.tree.ask(name, answers.append)
    assert answers == [None]


def test_node_does_not_sign_the_root_of_another_node_that_was_there_first():
    cluster, client, lane = started()
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    master = cluster.master
    follower = next(node for number, node in cluster.nodes.items() if number != master)
    text = Checkpoint(origin_of(CLUSTER), 2, bytes(32)).text
    key = NODES[master]
    signatures = (key.sign_note(text.encode()), key.sign_note(signed_octets(7, text)))
    follower.core.tree.signer.on_signature(cluster.now_ns, master, TreeSignature(2, bytes(32), 7, *signatures))
    write(cluster, client, lane, 2)
    covered(cluster, 2)
    assert follower.core.tree.signer.last.root == follower.core.execution.state.tree.root()


def test_tiles_are_on_disk_before_the_snapshot_that_covers_their_leaves():
    cluster, client, lane = started(policy=ExecutionPolicy(checkpoint_bytes=4 * 1024))
    snapshots = 0
    for node in cluster.nodes.values():
        perform = node._perform
        name = checkpoint_name(node.core.settings.order)

        def watched(effect, perform=perform, node=node, name=name) -> None:
            nonlocal snapshots
            perform(effect)
            if isinstance(effect, Persist) and any(one.file == name for one in effect.operations):
                snapshots += 1
                state = load(cluster.founding, checkpoint.decode(bytes(node.files[name]))[1])
                full = {f"tree/tile/entries/{index:03}" for index in range(state.tree.size // 256)}
                assert full <= set(node.files), "a restart could not make these tiles again"

        node._perform = watched
    write(cluster, client, lane, 1, 600)
    assert snapshots >= 6
    covered(cluster, 600)


def test_restart_from_a_snapshot_serves_the_same_tiles():
    cluster, client, lane = started(policy=ExecutionPolicy(checkpoint_bytes=16 * 1024))
    write(cluster, client, lane, 1, 700)
    covered(cluster, 700)
    victim = next(number for number in (1, 2, 3) if number != cluster.master)
    cluster.kill(victim)
    cluster.start(victim)
    cluster.until(lambda: cluster.nodes[victim].core.tree.size == 700)
    asker = Client(cluster).connect(victim)
    for name, size in (("tile/0/000", 256), ("tile/0/001", 256), ("tile/0/002.p/188", 188), ("tile/0/001.p/7", 7)):
        message, data = asker.ask(AskTree(len(name) + size, name))
        assert isinstance(message, TreePart), name
        assert len(data) == 32 * size
    message, data = asker.ask(AskTree(1, "checkpoint", 5))
    assert checkpoints.parse(data).checkpoint.size == 700
    for number, name in enumerate(("tile/0/003", "tile/7/000", "tile/0/0", "../signed", "tile/entries/002"), 10):
        message, _ = asker.ask(AskTree(number, name))
        assert isinstance(message, Failed), name


def test_tile_is_refused_as_busy_and_not_as_missing_while_many_are_read(monkeypatch):
    monkeypatch.setattr(service, "READS_MAX", 0)
    cluster, client, lane = started()
    write(cluster, client, lane, 1, 300)
    covered(cluster, 300)
    cluster.rest(2 * SECOND)
    asker = Client(cluster).connect(cluster.master)
    message, _ = asker.ask(AskTree(1, "tile/0/000"))
    assert isinstance(message, Failed)
    assert message.kind == "busy"


def test_question_for_a_checkpoint_waits_until_it_covers_the_message():
    cluster, client, lane = started()
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    cluster.spoil = lambda *_: True
    client.say(AskTree(77, "checkpoint", cluster.nodes[cluster.master].core.execution.applied_index + 1))
    cluster.settle()
    assert not [one for one in client.told(TreePart) if one.call == 77]
    cluster.spoil = None
    write(cluster, client, lane, 2)
    cluster.until(lambda: bool([one for one in client.told(TreePart) if one.call == 77]))
    answer = next(data for message, data in client.inbox if isinstance(message, TreePart) and message.call == 77)
    assert checkpoints.parse(answer).checkpoint.size == 2


def test_client_receives_a_checkpoint_only_after_it_was_offered_to_witnesses():
    cluster, client, lane = started(witnessed=True)
    write(cluster, client, lane, 1)
    covered(cluster, 1)
    tree = cluster.nodes[cluster.master].core.tree
    assert tree.find("checkpoint") is None
    client.say(AskTree(77, "checkpoint", 1))
    cluster.rest(SECOND)
    assert not [one for one in client.told(TreePart) if one.call == 77]
    key, signer = note.signer_of(bytes(32))
    signed = tree.unpublished()
    assert signed is not None
    cosigned = cosignature.sign(signed.checkpoint.text, "w.example", key, signer, 1)
    write(cluster, client, lane, 2)
    covered(cluster, 2)
    tree.publish(checkpoints.with_signatures(signed, (cosigned,)))
    cluster.rest(SECOND)
    client.say(AskTree(78, "checkpoint", tree.covers))
    client.say(AskTree(79, "checkpoint", cluster.nodes[cluster.master].core.execution.applied_index))
    cluster.rest(SECOND)
    told = {message.call: checkpoints.parse(data) for message, data in client.inbox if isinstance(message, TreePart)}
    assert 79 not in told, "this checkpoint was not offered yet"
    assert told[78].checkpoint.size == 1
    assert "w.example" in {one.name for one in told[78].signatures}
    newer = tree.unpublished()
    assert newer is not None
    assert newer.checkpoint.size == 2
