"""`chaplain check`, `checkpoint` and `witness` as programs see them: output and exit codes."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
from hashlib import sha256
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from chaplain.cli.main import main
from chaplain.proofs import checkpoint, cosignature, merkle, note, policy
from chaplain.proofs.checkpoint import Checkpoint
from chaplain.proofs.witness import AddCheckpoint
from tests.support.proof_log import CLUSTER, ProofLog, node_keys, sign
from tests.unit.proofs.test_compare import a_log, signed, write_tiles

LOG = ProofLog()
LOG.write("orders", [b"12 apples", b"3 pears", b"\xff"])


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CHAPLAIN_CLUSTER", raising=False)
    LOG.prove("orders", 1).save("order.proof")
    (tmp_path / "cluster.policy").write_text(policy.cluster_policy(CLUSTER, node_keys()))
    return tmp_path


@pytest.fixture
def run(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return end.value.code, out, err

    return run


def test_check_prints_one_line(files, run):
    code, out, err = run("check", "order.proof", "--policy", "cluster.policy")
    assert (code, err) == (0, "")
    assert re.fullmatch(
        r"stream orders offset 1: proven, 7 octets, signed by [0-9a-f]{16}, in the log of demo-1f2e3d4c of 1 entries, "
        r"signed by node-1, node-2\n",
        out,
    )


def test_check_shows_the_message_as_json(files, run):
    found = json.loads(run("check", "order.proof", "--policy", "cluster.policy", "--output", "json")[1])
    assert (found["stream"], found["offset"], found["key"], found["value"]) == ("orders", 1, None, "3 pears")
    assert found["signers"] == ["node-1", "node-2"]
    LOG.prove("orders", 2).save("order.proof")
    found = json.loads(run("check", "order.proof", "--policy", "cluster.policy", "--output", "json")[1])
    assert base64.b64decode(found["value"]["base64"]) == b"\xff"


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        ((), 0, ""),
        (("--stream", "orders", "--offset", 1, "--value", "right"), 0, ""),
        (("--stream", "bids"), 3, "order.proof: not proven: the proof is about stream orders, not bids"),
        (("--offset", 0), 3, "about offset 1, not 0"),
        (("--value", "wrong"), 3, "has another value"),
    ],
)
def test_check_compares_with_what_the_user_expects(files, run, options, code, reason):
    (files / "right").write_bytes(b"3 pears")
    (files / "wrong").write_bytes(b"4 pears")
    found, out, err = run("check", "order.proof", "--policy", "cluster.policy", *options)
    assert found == code
    assert reason in err
    assert bool(out) == (not code)


def test_check_of_damaged_files_names_the_file(files, run):
    (files / "other").write_bytes((files / "order.proof").read_bytes()[:-1])
    assert run("check", "other", "--policy", "cluster.policy")[::2] == (
        3,
        "chaplain: other: not proven: proof: damaged, its octets are not those that were written\n",
    )
    text = (files / "cluster.policy").read_text().replace("nodes 2", "nodes 1")
    (files / "other.policy").write_text(text)
    code, out, err = run("check", "order.proof", "--policy", "other.policy")
    assert (code, out) == (3, "")
    assert "other.policy: policy: it was changed after it was sealed" in err
    assert run("check", "order.proof", "--policy", "missing")[0] == 2


def test_check_imports_neither_numpy_nor_the_client(files):
    program = (
        "import sys\nfrom chaplain.cli.main import main\n"
        "try: main(['check', 'order.proof', '--policy', 'cluster.policy'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'numpy', 'pyarrow', 'zmq', 'chaplain.client', 'chaplain.journal'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_compare_of_an_honest_and_a_rewritten_log(files, run):
    leaves = a_log(600)
    for size in (300, 600):
        (files / f"{size}.checkpoint").write_text(signed(leaves, size).text)
    write_tiles(files / "tiles", leaves)
    options = ("--policy", "cluster.policy", "--tiles", "tiles")
    code, out, err = run("checkpoint", "compare", "300.checkpoint", "600.checkpoint", *options)
    assert (code, err) == (0, "")
    assert out == f"chaplain/{CLUSTER}: the checkpoint of 600 entries extends it by 300, signed by node-1, node-2\n"
    found = json.loads(run("checkpoint", "compare", "300.checkpoint", "600.checkpoint", *options, "--output=json")[1])
    assert (found["old_size"], found["new_size"]) == (300, 600)
    rewritten = a_log(600, 5)
    (files / "rewritten.checkpoint").write_text(signed(rewritten, 600).text)
    write_tiles(files / "tiles", rewritten)
    code, out, err = run("checkpoint", "compare", "300.checkpoint", "rewritten.checkpoint", *options)
    assert (code, out) == (3, "")
    assert "the log was rewritten" in err
    assert "node-1, node-2 signed both" in err
    code, out, err = run("checkpoint", "compare", "600.checkpoint", "300.checkpoint", *options)
    assert (code, "older" in err) == (3, True)


def test_compare_prints_two_signatures_of_one_node_as_proof_of_misbehaviour(files, run):
    for name, leaves in (("one", a_log(7)), ("two", a_log(7, 3))):
        (files / name).write_text(signed(leaves, 7).text)
    code, out, err = run("checkpoint", "compare", "one", "two", "--policy", "cluster.policy")
    assert code == 3
    assert "two different checkpoints of 7 entries; node-1, node-2 signed both" in err
    title, _, evidence = out.partition("\n\n")
    assert title == "node-1, node-2: proof of misbehaviour, two checkpoints of one size:"
    assert evidence.count(f"\u2014 chaplain/{CLUSTER}/1 ") == 2
    code, out, err = run("checkpoint", "compare", "one", "two")
    assert (code, out) == (3, "")
    assert "two different checkpoints" in err


@pytest.fixture
def cluster_file(files):
    texts = {node: base64.urlsafe_b64encode(key).decode()[:43] for node, key in node_keys().items()}
    nodes = "".join(
        f'[[nodes]]\nid = {node}\nendpoint = "tcp://127.0.0.1:1"\nkey = "{text}"\n' for node, text in texts.items()
    )
    (files / "cluster.toml").write_text(f'cluster = "{CLUSTER}"\nseal = "aes-256-gcm"\nidentity = "i"\n{nodes}')
    return files / "cluster.toml"


def test_policy_of_a_cluster_comes_from_its_file(cluster_file, run):
    code, out, _ = run("checkpoint", "policy", "--cluster", cluster_file)
    assert (code, out) == (0, policy.cluster_policy(CLUSTER, node_keys()))
    two = run("checkpoint", "policy", "--cluster", cluster_file, "--node", 1, "--node", 3, "--enough", 1)[1]
    assert "group nodes 1 node-1 node-3\n" in two
    witness = note.SecretKey("w.example", b"w" * 32, note.COSIGNATURE).verifier.text()
    assert (
        f"witness w.example {witness}\n"
        in run("checkpoint", "policy", "--cluster", cluster_file, "--witness", witness)[1]
    )
    for options in (("--node", 9), ("--enough", 4), ("--witness", "w")):
        assert run("checkpoint", "policy", "--cluster", cluster_file, *options)[0] == 1


def test_compare_takes_the_policy_from_the_cluster(cluster_file, run):
    leaves = a_log(7)
    (cluster_file.parent / "one").write_text(signed(leaves, 7).text)
    (cluster_file.parent / "two").write_text(signed(leaves, 7, (3,)).text)
    assert run("checkpoint", "compare", "one", "one", "--cluster", cluster_file)[0] == 0
    code, _, err = run("checkpoint", "compare", "one", "two", "--cluster", cluster_file)
    assert (code, "too few keys" in err) == (3, True)


SERVE = [sys.executable, "-c", "from chaplain.cli.main import main; main()", "witness", "serve"]
SERVE += ["--policy", "cluster.policy", "--port", "0", "--output", "json"]


def serve_in_vain(*options):
    done = subprocess.run([*SERVE, *options], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr


class RunningWitness:
    """`chaplain witness serve` as a process."""

    def __init__(self, *options):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*SERVE, *options], stdout=pipe, stderr=pipe, text=True)
        first = self.process.stdout.readline()
        assert first, self.process.stderr.read()
        found = json.loads(first)
        self.url, self.key = found["url"], note.parse_key(found["key"])

    def ask(self, path, body=None):
        try:
            with urlopen(self.url + path, data=body, timeout=30) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def add(self, request):
        return self.ask("/add-checkpoint", request.encode().encode())

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(60)
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()
        return code


@pytest.fixture
def witnesses(files):
    running = []

    def start(*options):
        running.append(RunningWitness(*options))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


def request(old, new, leaves):
    path = merkle.consistency_proof(old, new, merkle.nodes_of(leaves))
    return AddCheckpoint(old, tuple(path), sign(Checkpoint(f"chaplain/{CLUSTER}", new, merkle.root_of(leaves[:new]))))


def test_witness_remembers_what_it_signed_when_it_is_killed(files, witnesses):
    leaves, forked = a_log(20), a_log(20, 3)
    one = witnesses("--name", "auditor.example/w")
    assert one.key.name == "auditor.example/w"
    first = request(0, 7, leaves)
    status, body = one.add(first)
    assert status == 200
    [line] = note.parse_signatures(body)
    assert cosignature.holds(one.key, first.signed.checkpoint.text, line)
    assert one.end(signal.SIGKILL) == -signal.SIGKILL
    again = witnesses()
    assert again.key == one.key
    assert again.add(request(0, 9, forked)) == (409, "7\n")
    assert again.add(request(7, 9, forked))[0] == 422
    assert again.add(request(7, 20, leaves))[0] == 200
    assert again.add(request(7, 9, leaves)) == (409, "20\n")
    hashed = sha256(f"chaplain/{CLUSTER}".encode()).hexdigest()
    status, text = again.ask(f"/{hashed}/checkpoint")
    assert status == 200
    kept = checkpoint.parse(text.encode())
    assert kept.checkpoint.size == 20
    assert kept.signatures[-1].is_by(again.key)
    assert again.end(signal.SIGINT) == 0


def test_witness_refuses_other_requests(files, witnesses):
    one = witnesses()
    assert one.add(request(0, 3, a_log(3)))[0] == 200
    assert one.ask("/add-checkpoint", b"old 0\n")[0] == 400
    assert one.ask("/add-checkpoint", bytes(200_000))[0] == 413
    assert one.ask("/other", b"")[0] == 404
    for path in ("/add-checkpoint", "/../witness.key", "/" + "0" * 64 + "/checkpoint"):
        assert one.ask(path)[0] == 404
    assert serve_in_vain() == (1, "chaplain: another witness uses witness\n")
    assert one.end() == 128 + signal.SIGTERM
    assert os.stat("witness/witness.key").st_mode & 0o777 == 0o600
    (files / "witness/witness.key").chmod(0o644)
    code, err = serve_in_vain()
    assert (code, "can be read by others" in err) == (1, True)
    (files / "witness/witness.key").chmod(0o600)
    code, err = serve_in_vain("--name", "another")
    assert (code, "leave out --name" in err) == (1, True)
    [last] = files.glob("witness/*.checkpoint")
    last.write_text("damaged")
    code, err = serve_in_vain()
    assert (code, "a witness must not forget" in err) == (1, True)
