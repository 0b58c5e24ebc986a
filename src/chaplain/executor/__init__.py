"""Executes the journal's SQL requests: all decisions about it, without any database code."""
