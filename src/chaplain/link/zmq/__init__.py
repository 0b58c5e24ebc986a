"""ZeroMQ sockets: sending, receiving, fragments, and limits for unauthenticated connections."""
