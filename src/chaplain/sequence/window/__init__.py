"""The window: the entries that a node keeps in memory."""
