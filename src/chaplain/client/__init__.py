"""The client library: one engine, a face for threads and a face for asyncio."""
