"""Checkers: invariants that are verified from outside after every step."""
