"""What a worker of a named consumer knows: pure cores without a clock or a connection."""
