"""Streams become Delta or Parquet tables, and state folded from them."""
