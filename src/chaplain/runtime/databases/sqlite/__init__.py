"""The SQLite engine of the executor."""
