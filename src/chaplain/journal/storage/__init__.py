"""The log on disk: record layout, recovery after a restart, and indexes from message to file position."""
