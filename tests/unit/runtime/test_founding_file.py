"""A log goes on with what its cluster was founded with, or not at all."""

from __future__ import annotations

import random
import re

import pytest

from chaplain.config import load_node
from chaplain.errors import ConfigError
from chaplain.link.auth.identity import Identity
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.layers.journal import FOUNDING_FILE, WRAPPING_FILE, make_journal

IDENTITY = Identity.generate(random.Random(1))


@pytest.fixture
def folder(tmp_path):
    make_cluster(tmp_path / "c", 3, "none", None)
    made = tmp_path / "c/node-3"
    make_journal(load_node(made / "node.toml"), IDENTITY)
    return made


def _edit(folder, pattern: str, text: str) -> None:
    file = folder / "node.toml"
    edited, count = re.subn(pattern, text, file.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    file.write_text(edited)


def test_node_restarts_with_its_founding_configuration(folder):
    _edit(folder, r"^http = .*$", 'http = "127.0.0.1:0"')
    assert make_journal(load_node(folder / "node.toml"), IDENTITY).settings.node == 3


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r'^"default" = "(.*)"$', r'"default" = "\1"' + "\n" + r'"another" = "\1"'),
        (r'^"2" = "tcp://.*"$', '"2" = "tcp://127.0.0.1:1"'),
    ],
)
def test_edited_founding_configuration_is_refused_with_a_remedy(folder, pattern, text):
    _edit(folder, pattern, text)
    with pytest.raises(ConfigError, match=r"restore .*\[clients\].*chaplain client add"):
        make_journal(load_node(folder / "node.toml"), IDENTITY)


def test_missing_wrapping_key_is_refused(folder):
    (folder / WRAPPING_FILE).unlink()
    with pytest.raises(ConfigError, match=r"restore .*wrapping"):
        make_journal(load_node(folder / "node.toml"), IDENTITY)


def test_log_without_a_founding_file_gets_one(folder):
    (folder / FOUNDING_FILE).unlink()
    make_journal(load_node(folder / "node.toml"), IDENTITY)
    assert (folder / FOUNDING_FILE).is_file()
