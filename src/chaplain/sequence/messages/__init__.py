"""The sequence's messages, between nodes and with clients, and its log entries."""
