"""The client for threads, generated from `chaplain.client.aio` except `connection`, `waiting` and `executor_calls`."""

from chaplain.client.sync.client import Client as Client
