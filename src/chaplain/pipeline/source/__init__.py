"""Streams as Spark DataFrames: options, planning, reading segments and live nodes."""
