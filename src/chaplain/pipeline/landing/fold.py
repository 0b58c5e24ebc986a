"""`fold`: the latest row of each key, like log compaction in Kafka."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 the usual name


def fold(df: DataFrame, *, keep_keyless: bool = False) -> DataFrame:
    """Return the latest row, by offset, of each key of each stream.

    `df` has the columns of the source or of a landed table: at least `key` and `offset`, and `topic` if it contains
    several streams. Rows without a key are dropped; with `keep_keyless` all of them are kept.
    """
    latest = F.max_by(F.struct(*df.columns), F.col("offset")).alias("latest")
    by = [name for name in ("topic", "key") if name in df.columns]  # rows of a single stream may lack `topic`
    folded = df.where("key is not null").groupBy(*by).agg(latest).select("latest.*")
    return folded.unionByName(df.where("key is null")) if keep_keyless else folded
