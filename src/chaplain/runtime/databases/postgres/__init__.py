"""The executor's database on PostgreSQL."""
