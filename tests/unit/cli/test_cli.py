"""The command line as a person runs it: real processes, real exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from chaplain.cli.main import EXTRAS, cli
from chaplain.config import load_cluster
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.cluster.local import bring_down, is_alive, pid_of

PATIENCE_S = 60


def chaplain(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "chaplain.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
        check=False,
    )


def worked(*arguments: str | Path, **environment: str) -> str:
    done = chaplain(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("clusters") / "c"
    worked("cluster", "up", "--nodes", "2", "--dir", directory)
    yield directory
    worked("cluster", "down", "--cluster", directory)


@pytest.fixture
def unstarted(tmp_path) -> Iterator[Path]:
    """A cluster of two that nobody started; whatever the test starts is stopped."""
    make_cluster(tmp_path / "c", 2, "sqlite", None)
    yield tmp_path / "c"
    bring_down(tmp_path / "c")


def status(directory: Path) -> dict:
    return json.loads(worked("cluster", "status", "--cluster", directory, "--output", "json"))


def test_cluster_up_starts_nodes_that_know_each_other(cluster):
    found = status(cluster)
    assert [node["id"] for node in found["nodes"]] == [1, 2]
    assert [node["members"] for node in found["nodes"]] == [2, 2]
    assert [node["pid"] for node in found["nodes"]] == [pid_of(cluster / f"node-{number}") for number in (1, 2)]
    assert {"regime", "master", "streams", "fingerprints"} <= set(found)
    table = worked("cluster", "status", CHAPLAIN_CLUSTER=str(cluster))
    assert all(node["endpoint"] in table for node in found["nodes"])


def test_secret_files_have_mode_600_and_no_secret_is_in_client_readable_files(cluster):
    for path in [cluster, *cluster.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    secrets = re.findall(r"(?:key|secret) (\S+)", (cluster / "node-1/keyring").read_text())
    secrets += re.findall(r"secret (\S+)", "".join(file.read_text() for file in cluster.rglob("*identity")))
    assert len(secrets) == 4
    readable = (cluster / "cluster.toml").read_text() + "".join(file.read_text() for file in cluster.rglob("log"))
    assert not [secret for secret in secrets if secret in readable]


def test_cluster_up_again_starts_only_stopped_nodes(cluster):
    before = status(cluster)["nodes"]
    os.kill(before[0]["pid"], signal.SIGKILL)
    end = time.monotonic() + PATIENCE_S
    while is_alive(before[0]["pid"]):
        assert time.monotonic() < end
    assert status(cluster)["nodes"][0]["state"] == "down"
    # As every command has it: the cluster's file, from the environment.
    said = worked("cluster", "up", "--node", "1", "--output", "json", CHAPLAIN_CLUSTER=str(cluster / "cluster.toml"))
    assert json.loads(said)["started"] == [1]
    after = status(cluster)["nodes"]
    assert after[0]["pid"] != before[0]["pid"]
    assert after[1]["pid"] == before[1]["pid"]


def test_second_process_in_a_node_directory_is_refused(cluster):
    twice = chaplain("node", "run", "--config", cluster / "node-1/node.toml")
    assert twice.returncode == 1
    assert twice.stderr.startswith("chaplain: another node runs in ")


def test_pid_of_a_foreign_process_is_not_taken_for_a_node(cluster, tmp_path):
    folder = tmp_path / "node-1"
    folder.mkdir()
    (folder / "node.toml").write_text("")
    (folder / "pid").write_text(f"{os.getpid()}\n")
    assert pid_of(folder) is None
    (folder / "pid").write_text(f"{pid_of(cluster / 'node-1')}\n")
    assert pid_of(folder) is None


def test_running_node_is_recognized_whatever_path_started_it(unstarted, tmp_path):
    """By a path from its own folder, or over a link: it runs, whoever looks from wherever."""
    (tmp_path / "link").symlink_to(unstarted)
    for number, words, there in (
        (1, "node.toml", unstarted / "node-1"),
        (2, str(tmp_path / "link/node-2/node.toml"), tmp_path),
    ):
        command = [sys.executable, "-m", "chaplain.cli.main", "node", "run", "--config", words]
        with subprocess.Popen(command, cwd=there, stderr=subprocess.DEVNULL) as process:
            try:
                end = time.monotonic() + PATIENCE_S
                while pid_of(unstarted / f"node-{number}") != process.pid:
                    assert time.monotonic() < end, words
            finally:
                process.kill()


def test_command_whose_output_is_closed_exits_with_code_zero(cluster):
    program = f"{sys.executable} -m chaplain.cli.main"
    for reader in ("| true", ">&-"):
        line = f"{program} cluster status --cluster {cluster} {reader}; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (done.stdout, done.stderr) == ("0\n", ""), reader


def test_writer_whose_output_is_closed_still_writes_all_messages(cluster):
    script = (
        "import chaplain.cli.commands.streams.journal as j, chaplain.cli.main as m; j._PROGRESS_EVERY = 10; m.main()"
    )
    line = f"seq 100 | {sys.executable} -c '{script}' journal write --lines --stream unread --cluster {cluster} | true"
    subprocess.run(["bash", "-c", f"{line}; test ${{PIPESTATUS[1]}} = 0"], timeout=PATIENCE_S, check=True)
    assert status(cluster)["streams"]["unread"]["head"] == 100


def test_node_serves_health_and_metrics_over_http(cluster):
    for node in load_cluster(cluster).nodes:
        for path, text in (("/healthz", "ok"), ("/readyz", "ready"), ("/metrics", "chaplain_host_wakeups_total")):
            with urllib.request.urlopen(f"http://{node.http}{path}", timeout=10) as answer:
                assert text in answer.read().decode()
            with urllib.request.urlopen(urllib.request.Request(f"http://{node.http}{path}", method="HEAD")) as answer:
                assert (answer.status, answer.read()) == (200, b"")


def test_cluster_up_with_taken_port_names_it_and_creates_nothing(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = chaplain("cluster", "up", "--nodes", "1", "--dir", tmp_path / "c", "--base-port", str(port))
    assert done.returncode == 1
    assert done.stderr == f"chaplain: port {port} is taken; choose another --base-port (2 ports from it are used)\n"
    assert not (tmp_path / "c").exists()


def test_node_that_fails_at_start_is_reported_with_its_log_and_others_stay_up(unstarted):
    (unstarted / "node-2/identity").chmod(0o644)
    done = chaplain("cluster", "up", "--dir", unstarted)
    assert done.returncode == 1
    assert "node 2 ended with code 1" in done.stderr
    assert "can be read by others (mode 644); run `chmod 600" in done.stderr
    assert done.stderr.endswith("The rest of the cluster is up: node 1.\n")
    assert pid_of(unstarted / "node-1") is not None, "it may be one of a majority that somebody waits for"
    (unstarted / "node-2/node.toml").unlink()
    lost = chaplain("cluster", "up", "--dir", unstarted)
    assert (lost.returncode, lost.stderr.splitlines()[-1]) == (1, "The rest of the cluster is up: node 1.")
    assert "node 2: cannot read " in lost.stderr


def test_node_with_another_http_address_than_the_cluster_file_is_named(unstarted):
    file, http = unstarted / "node-1/node.toml", load_cluster(unstarted).nodes[0].http
    file.write_text(file.read_text().replace(http, "127.0.0.1:0"))
    done = chaplain("cluster", "up", "--dir", unstarted, "--node", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"http is '127.0.0.1:0', and '{http}' in cluster.toml: make them the same" in done.stderr


@pytest.mark.parametrize(
    ("number", "code", "message"), [(signal.SIGINT, 1, b"chaplain: interrupted"), (signal.SIGTERM, 128 + 15, b"")]
)
def test_cluster_up_ended_by_a_signal_stops_the_nodes_that_it_started(unstarted, number, code, message):
    """The second node never serves at the address that the command expects, so the command waits."""
    http = load_cluster(unstarted).nodes[1].http
    for file in (unstarted / "node-2/node.toml", unstarted / "cluster.toml"):
        file.write_text(file.read_text().replace(http, "127.0.0.1:0"))
    # A shell starts background jobs deaf to Ctrl-C, and a test run may be one.
    hearing = ["env", "--default-signal=INT", sys.executable]
    process = subprocess.Popen(
        [*hearing, "-m", "chaplain.cli.main", "cluster", "up", "--dir", str(unstarted)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    end = time.monotonic() + PATIENCE_S
    while not all(pid_of(unstarted / f"node-{number}") for number in (1, 2)):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    pids = [pid_of(unstarted / f"node-{number}") for number in (1, 2)]
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said.strip()) == (code, message)
    assert not [pid for pid in pids if pid is not None and is_alive(pid)]


def test_directory_without_a_cluster_is_refused_and_left_unchanged(tmp_path):
    (tmp_path / "mine").write_text("keep")
    done = chaplain("cluster", "up", "--dir", tmp_path)
    assert done.returncode == 1
    assert "is not empty and holds no cluster.toml" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_cluster_up_with_another_number_of_nodes_is_refused(cluster):
    done = chaplain("cluster", "up", "--nodes", "3", "--dir", cluster)
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds a cluster of 2 nodes, not 3" in done.stderr


def test_cluster_up_with_another_database_is_refused(cluster):
    done = chaplain("cluster", "up", "--dir", cluster, "--database", "none")
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds a cluster with --database sqlite, not none" in done.stderr


def test_one_running_node_of_two_reports_that_there_is_no_master(unstarted):
    said = worked("cluster", "up", "--dir", unstarted, "--node", "2")
    assert "1 node serves, 1 started now." in said
    assert "no node is master: nothing is written until a majority serializes; 1 of 2 are up." in said
    assert pid_of(unstarted / "node-1") is None


def test_python_m_chaplain_behaves_like_the_command():
    def run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    helped = run("chaplain", "--help")
    assert (helped.returncode, helped.stdout) == (0, run("chaplain.cli.main", "--help").stdout)
    wrong = run("chaplain", "cluster", "status", "--cluster", "/nowhere")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "there is no cluster at /nowhere" in wrong.stderr


def test_key_new_refuses_to_overwrite_a_key_and_prints_no_secret(tmp_path):
    shown = json.loads(worked("key", "new", "--out", tmp_path / "a", "--output", "json"))
    assert f"key {shown['key']}\n" in (tmp_path / "a").read_text()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    again = chaplain("key", "new", "--out", tmp_path / "a")
    assert (again.returncode, again.stdout) == (1, "")
    assert "a key is never overwritten" in again.stderr
    ring = json.loads(worked("key", "new", "--kind", "keyring", "--out", tmp_path / "r", "--output", "json"))
    assert len(ring["key_id"]) == 8
    assert "secret" not in worked("key", "new", "--out", tmp_path / "b")


def verbs(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that does something, by the words one types."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None, f"{name} is listed but not there"
        yield from verbs(inner, (*path, name))


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for path in verbs(cli):
        found: click.Command = cli
        for word in path:
            assert isinstance(found, click.Group)
            inner = found.get_command(click.Context(found), word)
            assert inner is not None
            found = inner
        yield path, found


def test_every_command_has_help_with_an_example():
    found = list(verbs(cli))
    assert ("cluster", "up") in found
    groups = {path[:1] for path in found if len(path) > 1}
    for group in groups:
        assert f"Example: chaplain {group[0]} " in CliRunner().invoke(cli, [*group, "--help"]).output, group
    for path in [(), *found]:
        shown = CliRunner().invoke(cli, [*path, "--help"])
        assert shown.exit_code == 0, path
        assert " ".join(("Example: chaplain", *path)) in " ".join(shown.output.split()), path


def test_every_command_that_prints_results_has_json_output_and_node_option():
    """Whatever prints a table prints JSON; whatever talks to a cluster can ask one node."""
    options = {path: {name for option in found.params for name in option.opts} for path, found in commands()}
    speechless = {("node", "run"), ("completion",)}
    assert {path for path, names in options.items() if "--output" not in names} == speechless
    # The gateway uses all nodes, and `token list` reads files.
    nodeless = {("gateway",), ("token", "list")}
    asking = {path for path, names in options.items() if "--cluster" in names} - nodeless
    assert not {path for path in asking if "--node" not in options[path]}
    assert len(asking) > 25


def test_every_option_has_a_help_text():
    dumb = [
        (path, option.opts)
        for path, found in commands()
        for option in found.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ]
    assert dumb == []


@pytest.mark.parametrize("shell_words", ["chaplain cl", "chaplain pipeline verify --sig"])
def test_completion_returns_only_words_with_the_typed_prefix(shell_words):
    words = shell_words.split()
    done = chaplain(_CHAPLAIN_COMPLETE="bash_complete", COMP_WORDS=shell_words, COMP_CWORD=str(len(words) - 1))
    found = [line.partition(",")[2] for line in done.stdout.split()]
    assert found
    assert all(one.startswith(words[-1]) for one in found)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["cluster", "up"], 2, "Missing option '--dir'"),
        (["cluster", "up", "--dir", "x", "--nodes", "0"], 2, "Invalid value for '--nodes'"),
        (["cluster", "status", "--cluster", "/nowhere"], 1, "there is no cluster at /nowhere: make one with"),
        (["cluster", "status", "--cluster", "no where"], 1, "`chaplain cluster up --nodes 3 --dir 'no where'`"),
        (["node", "run", "--config", "/nowhere"], 1, "cannot read /nowhere: No such file or directory"),
        (["node", "run", "--config", "/nowhere", "--set", "x"], 2, "'x' is not NAME=VALUE"),
    ],
)
def test_bad_input_is_reported_in_one_sentence(arguments, code, sentence, capsys):
    from chaplain.cli.main import main

    with pytest.raises(SystemExit) as end:
        main(arguments)
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (code, "")
    assert sentence in said.err


def test_starting_the_command_imports_no_heavy_package():
    code = "import chaplain.cli.main, chaplain.runtime.layers.node, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    # numpy is there to read packs without a loop; nothing else heavy is.
    assert not {"pyarrow", "pyspark", "pandas", "rich", "prometheus_client", "apsw", "pglast", "psycopg"} & set(loaded)


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (("cluster", "up", "--database", "postgres", "--dir", "c"), "psycopg", "postgres"),
        (("console", "--cluster", "c"), "uvicorn", "console"),
    ],
)
def test_missing_extra_is_named_before_anything_is_created(tmp_path, arguments, package, extra):
    program = f"import sys; sys.modules[{package!r}] = None; from chaplain.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"chaplain: {package} is not installed: pip install 'chaplain[{extra}]'\n"
    assert list(tmp_path.iterdir()) == []


def test_only_postgresql_modules_import_packages_of_the_postgres_extra():
    """Loaded when a stream is opened there: by its own files, which nobody imports while being imported."""
    root = Path(__file__).parents[3] / "src" / "chaplain"
    others = [file for file in root.rglob("*.py") if file.parent.name != "postgres"]
    wants = re.compile(r"^\s*(?:from|import) (?:pglast|psycopg)|^(?:from|import) \S*databases\.postgres", re.M)
    assert len(others) > 100
    assert [file.name for file in others if wants.search(file.read_text())] == []


def test_config_show_names_the_source_of_each_value(unstarted):
    file = unstarted / "node-1" / "node.toml"
    said = json.loads(worked("config", "show", "--config", file, "--output", "json", CHAPLAIN_NODE_SEAL="hmac-sha256"))
    found = {row["setting"]: (row["value"], row["origin"]) for row in said}
    assert found["seal"] == ("hmac-sha256", "CHAPLAIN_NODE_SEAL")
    assert found["id"] == (1, str(file))
    assert found["mesh.heartbeat_seconds"] == (1.0, "default")
    changed = json.loads(worked("config", "show", "--config", file, "--changed", "--output", "json"))
    assert {row["setting"] for row in changed} < set(found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell):
    assert "_CHAPLAIN_COMPLETE" in worked("completion", shell)


def test_completion_script_offers_groups_and_their_commands():
    done = chaplain(_CHAPLAIN_COMPLETE="bash_complete", COMP_WORDS="chaplain journal ", COMP_CWORD="2")
    assert {"plain,write", "plain,read"} <= set(done.stdout.split())


def test_extras_of_error_messages_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    packages = {
        extra: {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in needs}
        for extra, needs in project["optional-dependencies"].items()
    }
    for package, extra in EXTRAS.items():
        assert package in packages[extra], (package, extra)
    assert not any(one.startswith(tuple(EXTRAS)) for one in project["dependencies"])
