"""The graph on disk: its log, its recovery, and what is pruned."""
