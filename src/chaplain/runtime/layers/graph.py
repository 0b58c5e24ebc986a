"""Puts a node's graph together from its configuration and what its disk holds, and does its errands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Any

from chaplain.config import SEGMENTS, NodeConfig
from chaplain.graph.core import GraphCore
from chaplain.graph.events import CheckSignatures, EventsRead, ReadEvents, SignaturesChecked, holds
from chaplain.graph.settings import GraphSettings
from chaplain.graph.storage.store import events_of
from chaplain.link.auth.identity import Identity
from chaplain.node.node_ids import NodeIds
from chaplain.runtime.disk.log_files import bodies_at, segments_of
from chaplain.runtime.fd_limits import reading
from chaplain.runtime.secret_files import read_public_key

LOG = "graph"


def make_graph(config: NodeConfig, identity: Identity, names: NodeIds, now_ns: int) -> GraphCore:
    """Members are all who belong to the cluster, whether or not they are there (docs/decisions/member-lists.md)."""
    settings = GraphSettings(
        config.text("cluster"),
        log=LOG,
        folder=f"{SEGMENTS}/",
        segment_bytes=config.number("graph.segment_bytes"),
        keep_events=config.number("graph.keep_events"),
        valid_ns=config.span_ns("graph.valid_seconds"),
        ahead_ns=config.span_ns("graph.valid_seconds"),
    )
    return GraphCore(
        settings,
        identity,
        SystemRandom(),
        now_ns=now_ns,
        founders=[read_public_key(key, f"[nodes] {node}") for node, key in sorted(config.nodes.items())],
        cluster_members=names.keys,
        segments=segments_of(config.path("data") / SEGMENTS, LOG),
    )


def graph_errands(folder: Path) -> dict[type, Callable[[Any], Any]]:
    """Who does what the graph wants done beside the loop."""

    def check(wanted: CheckSignatures) -> SignaturesChecked:
        return SignaturesChecked(wanted.ticket, tuple(map(holds, wanted.checks)))

    def read(wanted: ReadEvents) -> EventsRead:
        bodies = bodies_at(folder, LOG, {place.position for place in wanted.places})
        return EventsRead(wanted.token, events_of(bodies, wanted.places))

    return {CheckSignatures: check, ReadEvents: reading(read)}
