"""The databases that SQL requests are executed on: one file here for each kind, and what they share."""
