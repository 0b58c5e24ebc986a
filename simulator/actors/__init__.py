"""Simulated clients and attackers."""
