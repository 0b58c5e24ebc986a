"""With what code a node's process ends; whoever starts nodes looks at it without loading one."""

DONE, HALTED, REMOVED, BROKEN = 0, 1, 4, 70
"""Stopped when asked; stopped because a promise could not be kept; stopped because the cluster removed this node; a
fault of ours."""
