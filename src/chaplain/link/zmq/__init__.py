"""ZeroMQ sockets: sending, receiving, fragments, and limits on strangers."""
