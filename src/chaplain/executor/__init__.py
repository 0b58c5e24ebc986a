"""Executes the journal's SQL requests on databases: what is decided about it, without any database."""
