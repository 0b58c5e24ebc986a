"""File operations of a node: group commit, syncs and the system calls below them."""
