"""Verifies that a log or a landed table is complete, unchanged and in order, and reports every break."""
