"""Verification of a log: which messages to check, the checks, and how their results are joined."""
