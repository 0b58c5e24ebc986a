"""A node offers its checkpoints to real witnesses, and retains what they sign."""

import socket
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chaplain.errors import Malformed
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import note, policy
from chaplain.proofs.tiles import decode_tile, encode_tile
from chaplain.runtime.http.witness_client import WitnessClient, parse_keys
from chaplain.runtime.http.witness_server import WitnessServer, WitnessStore
from tests.support.proof_log import CLUSTER, ProofLog, node_keys, node_seed

WAIT_S = 60.0


class Tree:
    """A node's side: checkpoints become complete by `complete`."""

    def __init__(self):
        self._changed = threading.Condition()
        self._complete = None
        self.published = []
        self.reports = []

    def complete(self, signed):
        """Returns the checkpoint as it is published."""
        with self._changed:
            self._complete = signed
            assert self._changed.wait_for(lambda: signed.checkpoint.size in self.sizes(), WAIT_S)
            return self.published[-1]

    def sizes(self):
        return [one.checkpoint.size for one in self.published]

    def unpublished(self):
        with self._changed:
            signed = self._complete
            return signed if signed is not None and signed.checkpoint.size not in self.sizes() else None

    def publish(self, signed):
        with self._changed:
            self.published.append(signed)
            self._changed.notify_all()

    def report(self, url, reason):
        self.reports.append((url, reason))


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


def a_log(packs):
    log = ProofLog()
    for number in range(packs):
        log.write("orders", [b"%d" % number])
    return log


def witness_of(stack, folder, name):
    store = WitnessStore(folder / name.replace("/", "-"), name)
    stack.callback(store.close)
    trusted = policy.parse(policy.cluster_policy(CLUSTER, node_keys()).encode())
    server = WitnessServer("127.0.0.1", 0, trusted, store)
    stack.callback(server.end)
    return f"http://{server.endpoint}", store.secret.verifier


def client_of(stack, urls, keys, tree, log):
    def source(level, index, width):
        node = log.node()
        return encode_tile([node(8 * level, 256 * index + at) for at in range(width)])

    assert decode_tile(source(0, 0, 1), 1)
    client = WitnessClient(urls, keys, tree, source)
    stack.callback(client.end)
    return client


def names(signed):
    return {one.name for one in signed.signatures}


def test_published_checkpoint_has_the_cosignatures_of_all_witnesses(stack, tmp_path):
    log, tree = a_log(40), Tree()
    found = [witness_of(stack, tmp_path, name) for name in ("w.example/one", "w.example/two")]
    client_of(stack, [url for url, _ in found], [key for _, key in found], tree, log)
    keys = [key for _, key in found]
    trusted = policy.parse(policy.cluster_policy(CLUSTER, node_keys(), witnesses=keys).encode())
    for size in (7, 8, 40):
        signed = tree.complete(log.signed(size=size))
        assert {"w.example/one", "w.example/two"} <= set(policy.check(trusted, signed).witnesses)
    assert not tree.reports


def test_second_node_receives_a_cosignature_of_the_same_checkpoint(stack, tmp_path):
    log = a_log(9)
    url, key = witness_of(stack, tmp_path, "w.example")
    for _ in range(2):
        tree = Tree()
        client_of(stack, [url], [key], tree, log)
        assert "w.example" in names(tree.complete(log.signed(size=9)))


def test_absent_witness_delays_no_checkpoint_for_ever(stack, tmp_path):
    log, tree = a_log(9), Tree()
    url, key = witness_of(stack, tmp_path, "w.example")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and answers nothing
        dead = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client_of(stack, [dead, url], [key], tree, log)
        assert "w.example" in names(tree.complete(log.signed(size=5)))
        assert "w.example" in names(tree.complete(log.signed(size=9)))
        assert {one for one, _ in tree.reports} == {dead}


def test_fork_is_published_without_the_signature_of_the_witness(stack, tmp_path):
    log, tree = a_log(9), Tree()
    url, key = witness_of(stack, tmp_path, "w.example")
    first = Tree()
    client_of(stack, [url], [key], first, log)
    assert "w.example" in names(first.complete(log.signed(size=9)))
    other = ProofLog()
    for _ in range(12):
        other.write("orders", [b"rewritten"])
    client_of(stack, [url], [key], tree, other)
    assert "w.example" not in names(tree.complete(other.signed(size=12)))
    assert "422" in tree.reports[0][1]


def test_signatures_of_other_keys_are_not_kept(stack, tmp_path):
    """A witness cannot make proofs fail by an invalid signature line with the key of a node or another witness."""
    log, tree = a_log(5), Tree()
    victim = checkpoints.node_key(CLUSTER, 3, node_keys()[3])
    _, key = witness_of(stack, tmp_path, "w.example")
    seed = note.SecretKey("evil.example", node_seed(9), note.COSIGNATURE)
    lines = "".join(
        note.Signature(one.name, one.id, bytes(7) + b"\1" + bytes(64)).line() for one in (victim, key, seed.verifier)
    )

    class Evil(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(lines.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    stack.callback(server.server_close)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    stack.callback(thread.join)
    stack.callback(server.shutdown)
    client_of(stack, [f"http://127.0.0.1:{server.server_address[1]}"], [key], tree, log)
    signed = tree.complete(log.signed(size=5))
    assert names(signed) == names(log.signed(size=5))
    assert "no valid signature" in tree.reports[0][1]


def test_keys_that_cannot_cosign_are_refused():
    log_key = checkpoints.log_key(CLUSTER, node_keys()[1])
    with pytest.raises(Malformed, match="cosignatures"):
        parse_keys([log_key.text()])
