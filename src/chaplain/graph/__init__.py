"""The graph: signed events linked by hashes, written anywhere, in the end the same on every node (graph.txt)."""
