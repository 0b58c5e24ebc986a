"""Clusters and programs that several benchmarks start."""
