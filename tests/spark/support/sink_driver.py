"""A Spark driver that copies a stream to another one, as a process that may be killed: `sink_driver DIR CHECKPOINT`.

Every attempt of a task gives its rows in another order. With `STREAM TABLES` after these it lands another stream
meanwhile, for as long as it lives; with `once` at the end, only what is there.
"""

from __future__ import annotations

import sys
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from chaplain.pipeline import land, local_session


def main(*words: str) -> None:
    work(local_session(memory="512m", name="sink driver"), *words)


def work(spark: SparkSession, cluster: str, checkpoint: str, *landing: str) -> None:
    stream, tables, once = (*landing, "", "", "")[:3]
    source = spark.readStream.format("chaplain").option("cluster", cluster).option("subscribe", "input")
    rows = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "150").load()
    shuffled = rows.selectExpr("key", "value", "rand() as chance").repartition(2, "chance").select("key", "value")
    sink = shuffled.writeStream.format("chaplain").option("cluster", cluster).option("topic", "output")
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    if stream:
        failed = partial(_failed, query)
        land(spark, cluster=cluster, stream=stream, tables=tables, once=bool(once), until=failed)
    query.awaitTermination()


def _failed(query: StreamingQuery) -> bool:
    return query.exception() is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
