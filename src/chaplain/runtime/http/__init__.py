"""A node's HTTP port: metrics, health and status."""
