"""The graph's messages, between nodes and with clients."""
