"""The demo: starts a cluster, uses every stream kind, injects faults, and compares promises with what it found."""
