"""The tree over the log outside of execution: its files, and the checkpoints that nodes sign."""
