"""Creates clusters, adds nodes to them, starts and stops local ones, and queries their status."""
