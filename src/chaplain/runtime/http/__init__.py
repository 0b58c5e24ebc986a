"""The HTTP port of a node: metrics, health and status."""
