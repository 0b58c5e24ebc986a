"""What readers of a journal are given: any node serves, nothing that is not agreed, and only to those who may."""

from __future__ import annotations

from msgspec.structs import replace

from chaplain.journal.clients.subscriptions import READ_WINDOW_BYTES_MIN, Subscriptions
from chaplain.journal.messages.client import LATEST, Chunk, Ended, Failed, Grant, Read, StopReading
from chaplain.journal.messages.config import AddIdentity, RemoveIdentity
from chaplain.segment.pack import decode_pack, heads_of
from tests.support.execution_stage import BOB, pack, petition
from tests.support.journal_cluster import Client, Cluster


def values_of(body: bytes) -> list[bytes]:
    return [value for head in heads_of(body) for value in decode_pack(body[head.start : head.end]).values]


def written(cluster: Cluster, client: Client, count: int) -> list[bytes]:
    lane = client.lease()
    made = [b"value %d" % number for number in range(1, count + 1)]
    for number, value in enumerate(made, 1):
        client.write(pack(lane, number, (value,)))
        cluster.settle()
    cluster.until(lambda: sum(run.requests for run in client.runs) == count)
    cluster.agree()
    return made


def chunks(client: Client, call: int) -> list[tuple[Chunk, bytes]]:
    return [(one, body) for one, body in client.inbox if isinstance(one, Chunk) and one.call == call]


def test_stream_can_be_read_from_any_node(cluster, client):
    made = written(cluster, client, 20)
    for number in cluster.numbers:
        reader = Client(cluster).connect(number)
        ended, _ = reader.ask(Read(1, "orders", 0, 1 << 20))
        assert ended == Ended(1, "end", "", 20)
        got = chunks(reader, 1)
        assert [value for _, body in got for value in values_of(body)] == made
        offset = 0
        for chunk, _ in got:
            assert chunk.first_offset == offset
            offset += chunk.count
        assert [chunk.index for chunk, _ in got] == sorted(chunk.index for chunk, _ in got)
        run = client.runs[0]
        assert (got[0][0].regime, got[0][0].timestamp_ns) == (run.regime, run.timestamp_ns)


def test_range_read_stops_at_its_end_and_obeys_credit(cluster, client):
    made = written(cluster, client, 20)
    reader = Client(cluster).connect(2)
    size = len(pack(1, 1, (made[0],)).raw)
    reader.say(Read(1, "orders", 5, size + 1, end_offset=9))
    cluster.settle()
    assert 1 <= len(chunks(reader, 1)) <= 2
    assert not reader.told(Ended)
    cluster.settle()
    reader.say(Grant(1, 10 * size))
    cluster.settle()
    assert [value for _, body in chunks(reader, 1) for value in values_of(body)] == made[5:9]
    assert reader.told(Ended) == [Ended(1, "end", "", 9)]


def test_follower_receives_new_messages(cluster, client):
    written(cluster, client, 3)
    reader = Client(cluster).connect(3)
    reader.say(Read(1, "orders", LATEST, 1 << 20, follow=True))
    reader.say(Read(2, "orders", 0, 1 << 20, follow=True))
    cluster.settle()
    client.write(pack(1, 4, (b"new",)))
    cluster.until(lambda: chunks(reader, 1))
    assert [value for _, body in chunks(reader, 1) for value in values_of(body)] == [b"new"]
    cluster.until(lambda: sum(chunk.count for chunk, _ in chunks(reader, 2)) == 4)
    reader.say(StopReading(1))
    client.write(pack(1, 5, (b"newer",)))
    cluster.until(lambda: sum(chunk.count for chunk, _ in chunks(reader, 2)) == 5)
    assert len(chunks(reader, 1)) == 1


def test_read_requires_the_right_and_ends_with_it(cluster, client):
    written(cluster, client, 1)
    added = client.petition(petition(AddIdentity("bob", 1, BOB.key, (), ("orders",)), nonce=b"b" * 16))
    reader = Client(cluster, BOB, added.acl, "bob").connect(2)
    cluster.agree()
    assert reader.ask(Read(1, "secret", 0, 1 << 20))[0].kind == "no_right"
    reader.say(Read(2, "orders", 0, 1 << 20, follow=True))
    cluster.settle()
    assert len(chunks(reader, 2)) == 1
    client.petition(petition(RemoveIdentity(added.acl)))
    cluster.until(lambda: reader.told(Ended))
    assert reader.told(Ended)[0].kind == "no_right"


def test_unagreed_messages_are_not_returned():
    cluster = Cluster()
    master = cluster.elect()
    client = Client(cluster).connect(master)
    lane = client.lease()
    reader = Client(cluster).connect(master)
    reader.say(Read(1, "orders", 0, 1 << 20, follow=True))
    cluster.settle()
    for other in [node for node in cluster.numbers if node != master]:
        cluster.cut |= {(other, master)}
    client.write(pack(lane, 1))
    cluster.settle()
    assert not chunks(reader, 1)
    assert reader.ask(Read(2, "orders", 0, 1 << 20))[0] == Ended(2, "end", "", 0)


def test_credit_above_the_window_is_cut(cluster, client):
    made = written(cluster, client, 20)
    size = len(pack(1, 1, (made[0],)).raw)
    reading = cluster.nodes[2].core._sessions.subscriptions
    reading._settings = replace(reading._settings, read_window_bytes=0, read_bytes_max=2 * size)
    reading_window = READ_WINDOW_BYTES_MIN
    reader = Client(cluster).connect(2)
    reader.say(Read(1, "orders", LATEST, 1 << 40, follow=True))
    for _ in range(3):
        reader.say(Grant(1, 1 << 40))
    cluster.settle()
    assert [one.credit_bytes for one in reading._readers.values()] == [reading_window]


def test_read_windows_of_one_identity_share_a_budget(cluster, client):
    written(cluster, client, 1)
    reading = cluster.nodes[2].core._sessions.subscriptions
    reading._settings = replace(reading._settings, read_identity_bytes_max=8 * READ_WINDOW_BYTES_MIN)
    reader = Client(cluster).connect(2)
    for call in range(1, 5):
        reader.say(Read(call, "orders", LATEST, 1 << 40, follow=True))
    for call in range(1, 5):
        reader.say(Grant(call, 1))
    cluster.settle()
    assert [one.credit_bytes for one in reading._readers.values()] == [2 * READ_WINDOW_BYTES_MIN] * 4


def test_reads_of_one_identity_are_bounded_over_all_sessions(cluster, client):
    written(cluster, client, 1)
    reading = cluster.nodes[2].core._sessions.subscriptions
    reading._settings = replace(reading._settings, reads_per_identity_max=3)
    readers = [Client(cluster).connect(2) for _ in range(4)]
    for reader in readers:
        reader.say(Read(1, "orders", LATEST, 1, follow=True))
    cluster.settle()
    assert [bool(reader.told(Failed)) for reader in readers] == [False, False, False, True]
    readers[0].say(StopReading(1))
    cluster.settle()
    readers[3].say(Read(2, "orders", LATEST, 1, follow=True))
    cluster.settle()
    assert len(reading._readers) == 3


def test_message_wakes_only_readers_of_its_streams(cluster, client, monkeypatch):
    written(cluster, client, 1)
    reader = Client(cluster).connect(2)
    for call in range(1, 40):
        reader.say(Read(call, f"quiet-{call}", LATEST, 1 << 20, follow=True))
    reader.say(Read(50, "orders", LATEST, 1 << 20, follow=True))
    cluster.settle()
    looked = []
    give, pump = Subscriptions._send_batches, Subscriptions._request_span
    monkeypatch.setattr(
        Subscriptions, "_send_batches", lambda self, one, *rest: looked.append(one.call) or give(self, one, *rest)
    )
    monkeypatch.setattr(Subscriptions, "_request_span", lambda self, one: looked.append(one.call) or pump(self, one))
    client.write(pack(client.lease(b"m" * 16), 1))
    cluster.settle()
    cluster.agree()
    assert set(looked) == {50}
    assert len(chunks(reader, 50)) == 1
