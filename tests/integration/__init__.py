"""Tests with real node processes, sockets and files."""
