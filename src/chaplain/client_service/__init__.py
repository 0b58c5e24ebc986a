"""The front desk: what clients ask of a node, and what it answers."""
