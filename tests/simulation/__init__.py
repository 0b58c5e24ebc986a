"""Tests of the simulator, and a few seeds of each workload."""
