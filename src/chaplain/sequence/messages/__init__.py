"""Entries and messages of the sequence layer."""
