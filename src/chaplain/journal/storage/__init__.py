"""The log on disk: record layout, recovery, and indexes from message to file position."""
