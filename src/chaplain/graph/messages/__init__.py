"""Events and messages of the graph layer."""
