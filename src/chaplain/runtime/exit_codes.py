"""Exit codes of a node's process. They have a module of their own, so that a supervisor does not have to import a
node.
"""

DONE, HALTED, REMOVED, BROKEN = 0, 1, 4, 70
"""`DONE`: the node stopped on request. `HALTED`: it stopped because it could no longer keep a guarantee, for example
after a failed sync. `REMOVED`: the cluster removed this node. `BROKEN`: an unexpected exception, which is a bug."""
