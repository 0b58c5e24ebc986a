"""A Spark driver that copies a stream to another one, as a process that may be killed: `sink_driver DIR CHECKPOINT`.

Every attempt of a task gives its rows in another order.
"""

from __future__ import annotations

import sys

from chaplain.pipeline import local_session


def main(cluster: str, checkpoint: str) -> None:
    spark = local_session(memory="512m", name="sink driver")
    source = spark.readStream.format("chaplain").option("cluster", cluster).option("subscribe", "input")
    rows = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "150").load()
    shuffled = rows.selectExpr("key", "value", "rand() as chance").repartition(2, "chance").select("key", "value")
    sink = shuffled.writeStream.format("chaplain").option("cluster", cluster).option("topic", "output")
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
