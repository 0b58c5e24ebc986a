"""Tests of single packages, mostly of pure cores, without processes."""
