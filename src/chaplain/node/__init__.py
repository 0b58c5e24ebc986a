"""A node: one core that contains the cores of all layers, and its views for status and metrics."""
