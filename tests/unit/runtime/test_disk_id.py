"""A data directory's own name: kept by restarts, lost with its log."""

from __future__ import annotations

from chaplain.config import SEGMENTS, load_node
from chaplain.runtime.cluster.create import make_cluster
from chaplain.runtime.layers.journal import disk_id


def test_created_directory_has_the_disk_id_of_its_cluster(tmp_path):
    make_cluster(tmp_path / "c", 3, "none", None)
    folder = tmp_path / "c/node-2"
    assert disk_id(folder).hex() == load_node(folder / "node.toml").disks[2]
    assert disk_id(folder) == disk_id(folder)


def test_emptied_log_folder_gets_another_disk_id(tmp_path):
    """An empty log under the founding id is a node that never ran: it would vote with nothing to remember."""
    make_cluster(tmp_path / "c", 3, "none", None)
    folder = tmp_path / "c/node-2"
    founded = disk_id(folder)
    for file in (folder / SEGMENTS).iterdir():
        file.unlink()
    assert disk_id(folder) != founded
    assert disk_id(folder) == disk_id(folder)
