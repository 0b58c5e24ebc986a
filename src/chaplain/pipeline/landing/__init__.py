"""Lands streams as Delta or Parquet tables, and folds tables to the latest row of each key."""
