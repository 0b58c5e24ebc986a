"""Computes the fingerprint of an executor's database in Spark, from the recorded row changes.

    rows = (spark.read.format("chaplain").option("path", "DIR/node-1/databases/rows/main").option("kind", "rows")
            .option("subscribe", "main").load())
    fingerprint(fold(rows)).hex() == client.status()["databases"]["main"]["fingerprint"]

`fingerprint_at(spark, path, "main")` does the same in one call and checks that the row changes are complete.

`executor.fingerprint` defines the fingerprint. This module computes its hashes with Spark's `sha2`, and its sums of 256
bits as eight sums of 32 bits.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the usual name

from chaplain.errors import Missing
from chaplain.executor.fingerprint import MODULUS, SCHEMA_KEY, RowTally, fingerprint_of
from chaplain.pipeline.landing.fold import fold
from chaplain.pipeline.source.spark_errors import collect

_LIMBS = 8
_LIMB_BITS = 32
_FIXED_TEXT, _TEXT_8 = 0xA0, 0xD9
"""First octets of a MessagePack string: fixstr (up to 31 octets) and str 8 (up to 255). str 16 has a 2-octet length."""


def fingerprint_at(spark: SparkSession, path: str | Path, stream: str) -> bytes:
    """Return the fingerprint of a stream's database, from the row changes in a node's folder."""
    reader = spark.read.format("chaplain").option("path", str(path)).option("kind", "rows")
    rows = reader.option("subscribe", stream).load()
    first = collect(rows.agg(F.min("offset")))[0][0]
    if first != 0:  # a node that copied its database from another node has only the changes since then
        raise Missing(f"the row changes of {stream!r} in {path} begin with offset {first}: take another node's")
    return fingerprint(fold(rows))


def fingerprint(folded: DataFrame) -> bytes:
    """Return the fingerprint of one stream's database, from the latest row of every key."""
    schema = folded.where(F.col("key") == F.lit(SCHEMA_KEY)).select("value").collect()
    if not schema:
        raise Missing("no schema among the row changes: are they whole, from offset 0 on, and folded?")
    return fingerprint_of(bytes(schema[0][0]), tallies(folded))


def tallies(folded: DataFrame) -> dict[str, RowTally]:
    """Return, by table, the number of rows and the sum of their hashes."""
    there = folded.where((F.length("value") > 0) & (F.col("key") != F.lit(SCHEMA_KEY)))
    size = F.unhex(F.lpad(F.hex(F.length("key")), 8, "0"))
    digest = F.sha2(F.concat(size, F.col("key"), F.col("value")), 256)
    sums = [F.sum(_limb(place)).alias(f"limb_{place}") for place in range(_LIMBS)]
    hashed = there.select(_table(F.col("key")).alias("table"), digest.alias("digest"))
    rows = hashed.groupBy("table").agg(F.count("*").alias("rows"), *sums).collect()
    return {row["table"]: RowTally(row["rows"], _sum([int(row[f"limb_{n}"]) for n in range(_LIMBS)])) for row in rows}


def _limb(place: int) -> Column:
    digits = F.substring("digest", 8 * place + 1, 8)
    return F.conv(digits, 16, 10).cast("decimal(38,0)")


def _sum(limbs: list[int]) -> bytes:
    total = sum(limb << _LIMB_BITS * (_LIMBS - 1 - place) for place, limb in enumerate(limbs))
    return (total % MODULUS).to_bytes(32, "big")


def _table(key: Column) -> Column:
    """Return the table's name: a key is a MessagePack array whose first element is the name."""
    first = _number(key, 2, 1)
    short = F.substring(key, F.lit(3), first - _FIXED_TEXT)
    middle = F.substring(key, F.lit(4), _number(key, 3, 1))
    long = F.substring(key, F.lit(5), _number(key, 3, 2))
    return F.when(first < _TEXT_8, short).when(first == _TEXT_8, middle).otherwise(long).cast("string")


def _number(key: Column, start: int, size: int) -> Column:
    return F.conv(F.hex(F.substring(key, start, size)), 16, 10).cast("int")
