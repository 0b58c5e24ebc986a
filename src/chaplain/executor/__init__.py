"""Executes the journal's SQL requests. This package makes all decisions and contains no database code."""
