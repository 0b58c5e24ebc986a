"""Writes Spark rows to a journal, each batch exactly once."""
