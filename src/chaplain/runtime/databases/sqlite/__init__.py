"""The executor's database on SQLite."""
