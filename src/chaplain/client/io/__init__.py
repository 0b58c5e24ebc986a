"""Threads, event loops and sockets around the client's cores."""
