"""Streams as Spark DataFrames: options, planning, and reading from segment files or from running nodes."""
