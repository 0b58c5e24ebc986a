"""The client for asyncio, and the source of the blocking one.

`tools/blocking_client.py` generates the modules of `chaplain.client.sync` from the modules here. Only `connection`,
`waiting` and `executor_calls` are written for each: they contain everything that differs between an event loop and
threads. To add a method to both clients, add it here and run the tool.
"""

from chaplain.client.aio.client import AsyncClient as AsyncClient
