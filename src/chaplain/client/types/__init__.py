"""The values that client methods return, and the checks of their arguments."""
