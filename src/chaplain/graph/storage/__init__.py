"""Storage of the graph: its log, recovery and pruning."""
