"""The graph layer: signed events linked by parent hashes. Any node appends, and all nodes converge on the same set
(graph.txt).
"""
