"""The state of a worker of a named consumer: pure cores without a clock or a connection."""
