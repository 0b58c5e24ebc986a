"""Adapters that run the cores of single layers as machines of the simulated world."""
