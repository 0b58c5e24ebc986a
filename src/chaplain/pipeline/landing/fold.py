"""`fold`: the latest row of each key.

Rows without a key have no earlier or later selves: they are left out, unless they are asked for, and then all of them
are kept.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 as everybody calls it


def fold(df: DataFrame, *, keep_keyless: bool = False) -> DataFrame:
    """The latest row of each key of each stream."""
    latest = F.max_by(F.struct(*df.columns), F.col("offset")).alias("latest")
    by = [name for name in ("topic", "key") if name in df.columns]  # of one stream, its name need not be there
    folded = df.where("key is not null").groupBy(*by).agg(latest).select("latest.*")
    return folded.unionByName(df.where("key is null")) if keep_keyless else folded
