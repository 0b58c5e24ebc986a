"""The part of the sequence that a node holds in memory."""
