"""A made-up world for real nodes: virtual time, a network and disks that fail on purpose, all from one seed.

Nothing is imported here: a planted bug must be in place before the module it changes is loaded.
"""
