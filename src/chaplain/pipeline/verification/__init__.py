"""Proof that a log or a table is complete and in order, and the names of what is not."""
