"""A made-up world for real nodes: virtual time, a network and disks that fail on purpose, all from one seed."""
