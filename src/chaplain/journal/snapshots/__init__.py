"""Checkpoints (snapshots) of the executed state: making, confirming and installing them, and dropping the log before
them.
"""
