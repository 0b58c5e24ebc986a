"""A witness's files and its order: one request at a time, and on disk before the answer."""

import threading
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chaplain.errors import Unreachable
from chaplain.proofs import checkpoint, merkle, policy
from chaplain.proofs.checkpoint import Checkpoint
from chaplain.proofs.witness import AddCheckpoint, origin_hash
from chaplain.runtime.http.tile_client import http_source
from chaplain.runtime.http.witness_server import WitnessStore, WitnessViews
from tests.support.proof_log import CLUSTER, node_keys, sign

ORIGIN = f"chaplain/{CLUSTER}"
MEETING_S = 2.0
"""How long the first of two requests waits for the second one. With the lock the second never comes."""


@pytest.fixture
def store(tmp_path):
    store = WitnessStore(tmp_path / "w", "w.example")
    yield store
    store.close()


@pytest.fixture
def views(store):
    return WitnessViews(policy.parse(policy.cluster_policy(CLUSTER, node_keys()).encode()), store)


def request(size, name=b""):
    root = merkle.root_of([merkle.leaf_hash(b"%d%b" % (number, name)) for number in range(size)])
    return AddCheckpoint(0, (), sign(Checkpoint(ORIGIN, size, root))).encode().encode()


def test_answer_is_sent_after_the_checkpoint_is_on_disk(store, views, monkeypatch):
    def fail(signed):
        raise OSError("disk full")

    monkeypatch.setattr(store, "put", fail)
    with pytest.raises(OSError, match="disk full"):
        views.add_checkpoint(request(7))
    monkeypatch.undo()
    assert views.answer(f"/{origin_hash(ORIGIN)}/checkpoint")[0] == 404
    status, _, body = views.add_checkpoint(request(7))
    assert status == 200
    kept = checkpoint.parse(views.answer(f"/{origin_hash(ORIGIN)}/checkpoint")[2])
    assert kept.signatures[-1].line().encode() == body


def test_two_forks_at_once_are_not_both_signed(store, views, monkeypatch):
    both_read = threading.Barrier(2)
    read = store.read

    def read_slowly(origin):
        found = read(origin)
        with suppress(threading.BrokenBarrierError):
            both_read.wait(MEETING_S)
        return found

    monkeypatch.setattr(store, "read", read_slowly)
    answers = []
    threads = [
        threading.Thread(target=lambda name=name: answers.append(views.add_checkpoint(request(7, name))[0]))
        for name in (b"", b"!")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == [200, 409]


def test_tile_client_asks_the_next_node_and_takes_the_full_tile(tmp_path):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    (tmp_path / "tile/0").mkdir(parents=True)
    (tmp_path / "tile/0/000").write_bytes(bytes(range(256)) * 32)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            source = http_source(["127.0.0.1:1", f"127.0.0.1:{server.server_address[1]}"])
            assert source(0, 0, 256) == bytes(range(256)) * 32
            assert source(0, 0, 3) == bytes(range(96))
            with pytest.raises(Unreachable, match="no node has tile tile/0/001"):
                source(0, 1, 256)
        finally:
            server.shutdown()
            thread.join(60)
    with pytest.raises(Unreachable, match="no node serves HTTP"):
        http_source([])(0, 0, 256)
