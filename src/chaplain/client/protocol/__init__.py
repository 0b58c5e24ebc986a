"""The client's state machines, without input or output."""
