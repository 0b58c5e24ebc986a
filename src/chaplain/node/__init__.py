"""A node: one core made of the layers' cores, and how it looks from outside."""
