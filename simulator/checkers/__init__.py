"""Invariants, checked from outside after every step."""
