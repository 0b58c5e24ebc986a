"""Cores of single layers as machines of the simulated world."""
