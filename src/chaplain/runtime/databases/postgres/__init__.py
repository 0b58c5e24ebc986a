"""The PostgreSQL engine of the executor."""
