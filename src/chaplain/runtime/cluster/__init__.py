"""Creating, joining, starting and asking clusters on this machine."""
