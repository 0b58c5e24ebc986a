"""A deterministic simulator for real nodes: virtual time, a network and disks that fail on purpose, all from one seed.

This package imports nothing: a planted bug must be in place before the module that it changes is loaded.
"""
