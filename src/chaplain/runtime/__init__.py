"""The real world: ZeroMQ sockets, files and fsync, timers, signals, metrics."""
