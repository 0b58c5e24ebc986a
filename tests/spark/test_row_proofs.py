"""Proofs of rows of landed tables, made when the cluster is gone and checked by others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chaplain import Client
from chaplain.errors import Malformed, Missing, Unproven
from chaplain.pipeline import land, prove_row
from chaplain.pipeline.landing.compact import list_files
from chaplain.pipeline.tables import CHECKPOINT_KEY, table_path
from chaplain.proofs import checkpoint as checkpoints
from chaplain.proofs import policy, proof
from tests.integration.journal.support.scenes import three
from tests.support.process_cluster import shell

pytestmark = pytest.mark.timeout(280)
CHECK = Path(__file__).parents[2] / "tools" / "check_proof.py"
PARTS = 5


class Landed:
    """A table, what the stream contained, and the cluster's policy. The cluster is gone."""

    def __init__(self, folder: Path, rows: list[tuple[bytes | None, bytes]], trusted: str) -> None:
        self.tables = folder / "tables"
        self.rows = rows
        self.policy = trusted

    def prove(self, offset: int) -> proof.Proof:
        return prove_row(tables=self.tables, stream="orders", offset=offset)


@pytest.fixture(scope="module", params=["delta", "parquet"])
def landed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Landed:
    folder = tmp_path_factory.mktemp("landed")
    rows: list[tuple[bytes | None, bytes]] = []
    with three(folder / "three") as cluster, Client.connect(cluster.directory, timeout=30) as client:
        for part in range(PARTS):
            journal = client.journal("orders")
            journal.write(b"single %d" % part, key=b"key", headers={"part": b"%d" % part})
            journal.write_many([(b"many %d.%d" % (part, number), b"%d" % number) for number in range(40)])
            journal.write(b"isolated %d" % part, isolated=True)
            journal.write(b"conditional %d" % part, expect_offset=len(rows) + 42)
            for number in range(70):
                client.journal("others").write(b"%d" % number)
            rows.append((b"key", b"single %d" % part))
            rows += [(b"%d" % number, b"many %d.%d" % (part, number)) for number in range(40)]
            rows.append((None, b"isolated %d" % part))
            rows.append((None, b"conditional %d" % part))
            land(
                None, cluster=str(cluster.directory), stream="orders", tables=folder / "tables", once=True,
                format=request.param, batch_rows=17,
            )  # fmt: skip
        trusted = shell("checkpoint", "policy", "--cluster", cluster.directory)
    return Landed(folder, rows, trusted)


def test_every_row_is_proven_without_the_cluster(landed: Landed) -> None:
    trusted = policy.parse(landed.policy.encode())
    for offset, (key, value) in enumerate(landed.rows):
        proven = proof.check(landed.prove(offset), trusted, stream="orders", offset=offset, value=value)
        assert (proven.key, proven.is_signed) == (key, True)
    with pytest.raises(Missing):
        landed.prove(len(landed.rows))


@pytest.mark.parametrize("offset", ["3", "42"])
def test_command_proves_a_row_for_the_independent_checker(landed: Landed, tmp_path: Path, offset: str) -> None:
    text = shell("prove", "--tables", landed.tables, "--stream", "orders", "--offset", offset)
    (tmp_path / "one.proof").write_text(text)
    (tmp_path / "cluster.policy").write_text(landed.policy)
    done = subprocess.run(
        [sys.executable, "-I", CHECK, tmp_path / "one.proof", tmp_path / "cluster.policy"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"stream orders offset {offset}: proven" in done.stdout


@pytest.mark.parametrize("landed", ["delta"], indirect=True)
def test_each_delta_commit_has_a_signed_checkpoint(landed: Landed) -> None:
    log = Path(table_path(landed.tables, "orders"), "_delta_log")
    found = []
    for file in sorted(log.glob("*.json")):
        for line in file.read_text().splitlines():
            info = json.loads(line).get("commitInfo", {})
            if "add" in file.read_text() and CHECKPOINT_KEY in info:
                found.append(checkpoints.parse(info[CHECKPOINT_KEY].encode()))
    trusted = policy.parse(landed.policy.encode())
    for signed in found:
        policy.check(trusted, signed)
    assert len(found) >= PARTS
    sizes = [signed.checkpoint.size for signed in found]
    assert sizes == sorted(sizes)


def test_changed_row_is_not_proven(landed: Landed, tmp_path: Path) -> None:
    table = Path(table_path(landed.tables, "orders"))
    paths = sorted(table.glob("0*.parquet"))
    if (table / "_delta_log").is_dir():
        paths = [table / file.name for file in list_files(str(table))]
    path = next(path for path in paths if b"many 0.5" in pq.read_table(path).column("value").to_pylist())
    before = path.read_bytes()
    rows = pq.read_table(path)
    values = rows.column("value").to_pylist()
    at = values.index(b"many 0.5")
    values[at] = b"many 9.9"
    changed = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    try:
        pq.write_table(changed, path)
        with pytest.raises((Unproven, Malformed)):
            landed.prove(int(rows.column("offset")[at].as_py()))
    finally:
        path.write_bytes(before)
