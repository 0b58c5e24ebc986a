"""`chaplain pipeline`, and what it is made of, word for word as users know it.

Run by `test_pages.py` where its pages are run, for their Spark session, in a folder with a cluster `c` of three nodes.
"""

from __future__ import annotations

import io
import json
import shlex
import shutil
from contextlib import redirect_stdout
from pathlib import Path

from chaplain import Client
from chaplain.cli.main import main
from chaplain.pipeline import compress, fold, land, local_session, register, report, table, verify

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
OURS = ["kind", "client_id", "client_message_id", "message_no", "regime", "message_index", "ingest_node", "pack_digest"]
ALL = json.dumps({"rows": {"0": -1}})
EVER = json.dumps({"rows": {"0": 1}})
"""A time before everything."""


def chaplain(line: str, code: int = 0) -> str:
    said = io.StringIO()
    ended: object = None
    with redirect_stdout(said):
        try:
            main(shlex.split(line))
        except SystemExit as end:
            ended = end.code
    assert ended == code, f"{line}: {ended} {said.getvalue()}"
    return said.getvalue()


def commands() -> None:
    assert chaplain("pipeline land --cluster c --stream rows --tables tables --once") == "7 messages landed\n"
    again = "pipeline land --cluster c --stream rows --tables tables --once --master local[2] --output json"
    assert json.loads(chaplain(again)) == {"stream": "rows", "landed": 0}
    for whole in ("--cluster c", "--cluster c --node 2 --tables tables"):
        assert chaplain(f"pipeline verify {whole} --stream rows") == ""
    for whole in ("--cluster c --signatures", "--cluster c --node 2", "--path c/node-3/segments"):
        assert chaplain(f"verify {whole} --stream rows") == ""
    for place in ("--tables tables", "--path c/node-1/segments"):
        [latest] = chaplain(f"pipeline fold {place} --stream rows").splitlines()
        assert (json.loads(latest)["key"], json.loads(latest)["value"]) == ("k", "first of rows")
    assert chaplain("pipeline report --tables tables --stream rows --out page.html") == "page.html is written\n"
    assert "<html" in Path("page.html").read_text()


def breaks() -> None:
    """One octet of a message is another."""
    shutil.copytree("c/node-1", "broken/node-1", ignore=shutil.ignore_patterns("lock", "pid", "databases"))
    [file] = [
        path for path in Path("broken/node-1/segments").glob("journal-*") if b"first of rows" in path.read_bytes()
    ]
    with file.open("r+b") as stream:
        stream.seek(file.read_bytes().index(b"first of rows"))
        stream.write(b"F")
    found = chaplain("pipeline verify --path broken/node-1/segments", code=3).splitlines()
    assert found
    assert chaplain("verify --path broken/node-1/segments", code=3).splitlines() == found
    assert all(set(json.loads(line)) >= {"stream", "offset", "kind", "expected", "found"} for line in found)
    assert [(json.loads(line)["node"], json.loads(line)["file"]) for line in found] == [(1, file.name)] * len(found)


def frames() -> None:
    spark = local_session()
    register(spark)
    rows = spark.read.format("chaplain").option("cluster", "c").option("subscribe", "rows")
    assert rows.load().columns == [*COLUMNS, *OURS]
    assert rows.option("includeHeaders", "true").load().columns == [*COLUMNS, "headers", *OURS]
    of_path = spark.read.format("chaplain").option("path", "c/node-1/segments")
    assert of_path.option("subscribePattern", "row.*").load().count() == 7
    bounded = spark.read.format("chaplain").option("cluster", "c").option("assign", '{"rows": [0]}')
    for names in (
        {"startingOffsets": json.dumps({"rows": {"0": -2}}), "endingOffsets": ALL, "minPartitions": "2"},
        {"startingTimestamp": "1", "failOnDataLoss": "true"},
        {"startingOffsetsByTimestamp": EVER},
    ):
        assert bounded.options(**names).load().count() == 7, names
    for names in ({"endingTimestamp": "1"}, {"endingOffsetsByTimestamp": EVER}):
        assert bounded.options(startingOffsets="earliest", **names).load().count() == 0, names
    live = spark.readStream.format("chaplain").option("cluster", "c").option("subscribe", "rows")
    paced = live.options(
        maxOffsetsPerTrigger=3, minOffsetsPerTrigger=1, maxTriggerDelay="1s", startingOffsets="earliest"
    )
    copied = paced.load().selectExpr("value", "key").writeStream.format("chaplain").option("cluster", "c")
    copy = copied.option("topic", "copy").option("txnAppId", "job-7").option("checkpointLocation", "checkpoint")
    query = copy.trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    everywhere("copy")
    assert rows.option("subscribe", "copy").load().count() == 7


def functions() -> None:
    spark = local_session()
    assert land(spark, cluster="c", stream="rows", tables="tables", once=True) == 0
    rows = table(spark, "tables/rows")
    assert [row.offset for row in fold(rows).collect()] == [0]
    assert verify(spark, tables="tables", stream="rows", manifest=None).count() == 0
    assert callable(compress)
    assert callable(report)
    freed = json.loads(chaplain("pipeline compress --cluster c --stream rows --through 0 --output json"))
    assert {node["node"] for node in freed} == {1, 2, 3}


def prepare() -> None:
    with Client.connect("c") as client:
        client.journal("rows").write(b"first of rows", key=b"k")
        client.journal("rows").write_many([b"%d" % number for number in range(6)])
    everywhere("rows")


def everywhere(stream: str) -> None:
    """Whichever node is asked then has all seven."""
    for node in (1, 2, 3):
        with Client.connect("c", node=node) as client:
            assert len(list(client.journal(stream).read(start=0, stop=7, follow=True))) == 7


def everything() -> None:
    prepare()
    commands()
    breaks()
    frames()
    functions()
