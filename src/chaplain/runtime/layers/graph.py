"""Builds a node's graph from its configuration and its disk, and handles the graph's background tasks."""

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
from chaplain.runtime.fd_limits import retry_when_exhausted
from chaplain.runtime.secret_files import read_public_key

LOG = "graph"


def make_graph(config: NodeConfig, identity: Identity, names: NodeIds, now_ns: int) -> GraphCore:
    """Build the graph's core. All members count, reachable or not (docs/decisions/member-lists.md)."""
    valid_ns = config.span_ns("graph.valid_seconds")
    settings = GraphSettings(
        config.text("cluster"),
        log=LOG,
        folder=f"{SEGMENTS}/",
        segment_bytes=config.number("graph.segment_bytes"),
        keep_events=config.number("graph.keep_events"),
        past_ns=config.span_ns("graph.valid_past_seconds") or valid_ns,
        ahead_ns=config.span_ns("graph.valid_future_seconds") or valid_ns,
        max_confirms=config.number("graph.max_confirms"),
        resend_ns=config.span_ns("graph.resend_seconds"),
        sync_ns=config.span_ns("graph.sync_seconds"),
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


def graph_tasks(folder: Path) -> dict[type, Callable[[Any], Any]]:
    """Return the handlers of the graph's background tasks, by type of effect."""

    def check(wanted: CheckSignatures) -> SignaturesChecked:
        return SignaturesChecked(wanted.ticket, tuple(map(holds, wanted.checks)))

    def read(wanted: ReadEvents) -> EventsRead:
        bodies = bodies_at(folder, LOG, {place.position for place in wanted.places})
        return EventsRead(wanted.token, events_of(bodies, wanted.places))

    return {CheckSignatures: check, ReadEvents: retry_when_exhausted(read)}
