"""The client library: one protocol core, with an API for threads and an API for asyncio."""
