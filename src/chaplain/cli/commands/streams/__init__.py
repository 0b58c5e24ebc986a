"""Commands that write and read the stream kinds."""
