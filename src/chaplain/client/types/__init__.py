"""The values that client methods return."""
