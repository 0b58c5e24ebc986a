"""Clusters for the tests of an application: real nodes on this machine, which stop with the test run.

`chaplain.testing.Cluster` starts them. pytest finds the fixtures of `chaplain.testing.plugin` by itself:

    chaplain_cluster    a `Cluster` of one node, for the whole test run
    chaplain_client     a `Client` of it, for one test
    chaplain_stream     a name of a stream that no other test uses
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaplain.testing.cluster import Cluster as Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> object:
    """Import on first use: pytest imports this package in every project, also where nothing uses it."""
    if name != "Cluster":
        raise AttributeError(f"module 'chaplain.testing' has no attribute {name!r}")
    return getattr(import_module("chaplain.testing.cluster"), name)
