"""The client's protocol cores: state machines without I/O."""
