"""What applications use in their tests: the fixtures for pytest, `chaplain.testing.Cluster` and `chaplain.open`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import chaplain
from chaplain.errors import ConfigError
from chaplain.runtime.cluster.local import bring_up, is_alive, pid_of, stop_nodes
from chaplain.testing import Cluster
from tests.support.process_cluster import until

PAGE = Path(__file__).parents[3] / "docs/howto/testing.md"
LIMIT_S = 240


def run_pytest(folder: Path) -> str:
    """Run the tests of a project that has nothing but its files."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "."]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_example_of_the_how_to_page_passes(tmp_path: Path) -> None:
    files = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert [*files] == ["shop.py", "test_shop.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "4 passed" in run_pytest(tmp_path)


def test_plugin_imports_nothing_heavy_in_a_project_that_does_not_use_it(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n"
        "def test_nothing(request):\n"
        "    assert request.config.pluginmanager.has_plugin('chaplain')\n"
        "    assert not {'msgspec', 'zmq', 'nacl', 'numpy', 'chaplain.client', 'chaplain.runtime'} & {*sys.modules}\n"
    )
    assert "1 passed" in run_pytest(tmp_path)


def test_paused_node_answers_after_resume_and_a_killed_one_after_start() -> None:
    with Cluster() as cluster:
        assert cluster.url.startswith("chaplain://127.0.0.1:")
        with chaplain.Client.connect(cluster.url) as client:
            client.journal("a").write(b"1")
        with cluster.connect(timeout=2) as client, cluster.paused(), pytest.raises(chaplain.Unreachable):
            client.status()
        cluster.pause()
        cluster.start()
        cluster.kill()
        with pytest.raises(chaplain.Misused, match=r"start\(\) starts it"):
            cluster.kill()
        cluster.start()
        with cluster.connect() as client:
            assert [message.value for message in client.journal("a").read()] == [b"1"]
        cluster.pause()
    assert not cluster.directory.exists()


def test_unique_names_are_names_of_streams() -> None:
    with Cluster() as cluster, cluster.connect() as client:
        name = cluster.unique("test_price[10 €-x]" * 20)
        assert name != cluster.unique("test_price[10 €-x]" * 20)
        assert client.journal(name).write(b"x").stream == name


def test_open_starts_a_node_and_stops_it_when_it_is_closed(tmp_path: Path) -> None:
    with chaplain.open(tmp_path / "data") as client:
        assert client.journal("a").write(b"x").offset == 0
        assert pid_of(tmp_path / "data/node-1") is not None
    assert pid_of(tmp_path / "data/node-1") is None
    client.close()
    with chaplain.open(str(tmp_path / "data")) as client:
        assert client.journal("a").write(b"y").offset == 1


def test_open_leaves_a_node_that_already_ran_running(tmp_path: Path) -> None:
    folder = tmp_path / "data/node-1"
    with chaplain.open(tmp_path / "data"):
        pass
    bring_up(tmp_path / "data", lambda line: None)
    try:
        with chaplain.open(tmp_path / "data") as client:
            client.journal("a").write(b"x")
        assert pid_of(folder) is not None
    finally:
        stop_nodes([folder])


def test_open_refuses_a_directory_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        chaplain.open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_node_stops_when_its_program_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    program = f"import chaplain, sys; c = chaplain.open({str(tmp_path / 'data')!r}); print('up'); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-uc", program], stdin=pipe, stdout=pipe, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "up\n"
            pid = pid_of(tmp_path / "data/node-1")
        finally:
            running.send_signal(number)
    assert pid is not None
    until(lambda: not is_alive(pid), "the node ends with its program")


def test_fork_of_a_program_does_not_stop_its_node(tmp_path: Path) -> None:
    program = (
        "import chaplain, os\n"
        f"with chaplain.open({str(tmp_path / 'data')!r}) as c:\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        c.close()\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    print(c.journal('a').write(b'x').offset)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert ran.stdout == "0\n", ran.stderr
    assert pid_of(tmp_path / "data/node-1") is None
    assert os.path.exists(tmp_path / "data/cluster.toml")
