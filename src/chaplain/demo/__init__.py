"""The demo: a cluster of its own, used and broken on purpose, and a table of what was promised and what was found."""
