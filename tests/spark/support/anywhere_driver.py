"""One job, wherever Spark runs: `anywhere_driver local|URL CLUSTER STREAM OUT`. Copies a stream; says what it saw."""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path

from pyspark.sql import SparkSession

from chaplain.pipeline import local_session
from chaplain.pipeline.session import EXECUTOR_WAIT


def session(where: str) -> SparkSession:
    if where.startswith("sc:"):
        return local_session(remote=where, name="anywhere")
    if where.startswith("spark:"):
        small = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", EXECUTOR_WAIT: "120"}
        return local_session(where, memory="512m", name="anywhere", settings=small)
    return local_session(memory="512m", name="anywhere")


def main(where: str, cluster: str, stream: str, out: str) -> None:
    spark = session(where)
    reader = spark.read.format("chaplain").option("cluster", cluster).option("includeHeaders", "true")
    rows = reader.option("subscribe", "input").option("minPartitions", "4").load()
    seen = sorted(rows.collect(), key=lambda row: row.offset)
    sink = rows.select("key", "value", "headers").write.format("chaplain").mode("append").option("cluster", cluster)
    sink.option("topic", stream).option("txnAppId", stream).option("txnVersion", "1").save()
    digest = sha256(repr([row.asDict(recursive=True) for row in seen]).encode()).hexdigest()
    Path(out).write_text(json.dumps({"rows": len(seen), "digest": digest}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
