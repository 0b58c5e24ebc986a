from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaplain.config import SETTINGS, load_cluster, load_node, variable_of
from chaplain.errors import ConfigError

PAGE = Path(__file__).parents[3] / "docs/reference/configuration.md"


def node_file(tmp_path: Path, text: str = "") -> Path:
    file = tmp_path / "node.toml"
    file.write_text(text)
    return file


def test_defaults_are_complete_and_paths_are_relative_to_the_file(tmp_path):
    config = load_node(node_file(tmp_path), {})
    assert set(config.values) == {setting.name for setting in SETTINGS}
    assert set(config.origins.values()) == {"default"}
    assert config.path("data") == tmp_path
    assert config.path("identity") == tmp_path / "identity"
    assert config.text("log") == ""
    assert config.span_ns("mesh.heartbeat_seconds") == 1_000_000_000


def test_flags_precede_environment_and_environment_precedes_the_file(tmp_path):
    file = node_file(tmp_path, 'id = 2\nseal = "hmac-sha256"\n[mesh]\nheartbeat_seconds = 2\nping_after_seconds = 6')
    environment = {"CHAPLAIN_NODE_MESH_HEARTBEAT_SECONDS": "0.5", "CHAPLAIN_NODE_ID": "3", "CHAPLAIN_CLUSTER": "dir"}
    config = load_node(file, environment, {"id": "4"})
    assert config.number("id") == 4
    assert config.span_ns("mesh.heartbeat_seconds") == 500_000_000
    assert config.span_ns("mesh.ping_after_seconds") == 6_000_000_000
    assert config.text("seal") == "hmac-sha256"
    assert config.text("cluster") == "chaplain"
    assert config.origins["id"] == "the flag for id"
    assert config.origins["mesh.heartbeat_seconds"] == "CHAPLAIN_NODE_MESH_HEARTBEAT_SECONDS"
    assert config.origins["seal"] == str(file)


def test_lists_are_read_from_files_and_from_text(tmp_path):
    file = node_file(tmp_path, 'neighbours = ["tcp://a:1", "tcp://b:2"]')
    assert load_node(file, {}).texts("neighbours") == ("tcp://a:1", "tcp://b:2")
    assert load_node(file, {"CHAPLAIN_NODE_NEIGHBOURS": "tcp://c:3, "}).texts("neighbours") == ("tcp://c:3",)


def test_headers_are_read_from_the_file(tmp_path):
    assert load_node(node_file(tmp_path, '[headers]\nrack = "b2"\nzone = "eu=1"'), {}).headers == {
        "rack": "b2",
        "zone": "eu=1",
    }


def test_flags_are_read_from_files_and_from_text(tmp_path):
    file = node_file(tmp_path, "[journal]\nprevalidate = false")
    assert not load_node(file, {}).flag("journal.prevalidate")
    assert load_node(file, {"CHAPLAIN_NODE_JOURNAL_PREVALIDATE": "True"}).flag("journal.prevalidate")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("id = 0", r"id \(from .*node.toml\) must be a whole number from 1 to 254, not 0"),
        ("id = 255", "from 1 to 254, not 255"),
        ('id = "one"', "must be a whole number"),
        ("id = 1.5", "must be a whole number"),
        ("id = true", "must be a whole number"),
        ("[mesh]\nheartbeat_seconds = nan", "must be a number from 0.01 to 60, not nan"),
        ("[mesh]\nheartbeat_seconds = []", "must be a number"),
        ("bind = 7400", "bind .* must be text"),
        ('seal = "none"', "must be one of aes-256-gcm, hmac-sha256, not 'none'"),
        ("[journal]\nprevalidate = 1", "journal.prevalidate .* must be true or false, not 1"),
        ('[journal]\nprevalidate = "maybe"', "must be true or false"),
        ("neighbours = [1]", "must be a list of texts"),
        ("nieghbours = []", r"'nieghbours' is no setting; did you mean 'neighbours'\?"),
        ("[mesh]\nx = 1", "'mesh.x' is no setting"),
        ("[mesh.deep]\nx = 1", "mesh.deep is a table"),
        ("clients = 1", r"\[clients\] must hold lines"),
        ("[nodes]\nzero = 'k'", "'zero'; a node's id is a number from 1 to 254"),
        ("headers = 1", r"\[headers\] must hold lines of name = \"value\""),
        ("[headers]\nrack = 1", r"\[headers\] must hold lines"),
        ("[headers]\nrack = 'b 2'", r"\[headers\] 'rack': 200 visible ASCII characters at most"),
        ("[headers]\n'a=b' = 'c'", "'a=b': a name holds no '='"),
        ("[headers]\n'chaplain.version' = '9'", "does not begin with 'chaplain.'"),
        ("id = ", "is not TOML"),
    ],
)
def test_wrong_setting_is_named_in_one_sentence(tmp_path, text, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_node(node_file(tmp_path, text), {})
    assert "\n" not in str(caught.value)


def test_wrong_environment_value_names_its_variable(tmp_path):
    with pytest.raises(ConfigError, match=r"from CHAPLAIN_NODE_ID\) must be a whole number"):
        load_node(node_file(tmp_path), {"CHAPLAIN_NODE_ID": "x"})
    with pytest.raises(ConfigError, match="'idd' is no setting"):
        load_node(node_file(tmp_path), {}, {"idd": "1"})


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere.toml: No such file"):
        load_node(tmp_path / "nowhere.toml", {})
    with pytest.raises(ConfigError, match=r"there is no cluster at .*: make one with `chaplain cluster up"):
        load_cluster(tmp_path)


def test_cluster_file_is_found_by_directory_or_path(tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(
        'cluster = "c"\nseal = "aes-256-gcm"\nidentity = "client.identity"\n'
        '[[nodes]]\nid = 1\nendpoint = "tcp://127.0.0.1:1"\nkey = "k"\n'
    )
    assert load_cluster(tmp_path) == load_cluster(file)
    assert load_cluster(tmp_path).identity == str(tmp_path / "client.identity")
    file.write_text('cluster = "c"')
    with pytest.raises(ConfigError, match=r"cluster.toml: .*missing required field"):
        load_cluster(tmp_path)


def test_page_documents_every_setting():
    rows = re.findall(r"^\| `([a-z_.]+)` \| `(.*?)` \| (.*?) ?\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    told = {name: (default, bounds, meaning) for name, default, bounds, meaning in rows}
    for setting in SETTINGS:
        shown = {str: f'"{setting.default}"', tuple: "[]", bool: str(setting.default).lower()}
        default = shown.get(type(setting.default), str(setting.default))
        bounds = ", ".join(setting.choices)
        if setting.low is not None and setting.high is not None:
            bounds = f"{setting.low:.16g} to {setting.high:.16g}"
        assert told.pop(setting.name) == (default, bounds, setting.help)
    assert not told


def test_every_environment_variable_names_one_setting():
    assert len({variable_of(setting.name) for setting in SETTINGS}) == len(SETTINGS)
