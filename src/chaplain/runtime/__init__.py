"""Everything that touches the operating system: the event loop, ZeroMQ sockets, files and fsync, signals, metrics.

The protocol cores of the other packages are pure state machines. This package builds them from the configuration, feeds
them inputs and performs their effects.
"""
