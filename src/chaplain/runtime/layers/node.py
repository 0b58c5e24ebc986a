"""Builds a node from its configuration and runs it. No other module knows all layers.

One process at a time uses a data directory: the process holds a lock on it and writes its process id to the `pid` file.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any, TextIO

from chaplain.client_service.events import ClientServiceSettings
from chaplain.clock import Clock
from chaplain.config import PID_FILE, SEGMENTS, NodeConfig
from chaplain.errors import ConfigError, Malformed, Missing
from chaplain.executor.journal_view import NodesJournal
from chaplain.gossip.layer_api import LayerCore
from chaplain.gossip.settings import GossipSettings
from chaplain.journal.consensus.events import DiskSpace, LogRead, ReadLog
from chaplain.journal.events import FileRead, ReadFile, Verified, Verify
from chaplain.journal.messages.signing import holds
from chaplain.journal.tree.service import TreeService
from chaplain.journal.tree.tiles import OnDisk, cut
from chaplain.link.auth.identity import identifier_of, new_instance
from chaplain.link.endpoint import bare_host, split_bind_endpoint, split_endpoint
from chaplain.link.settings import LinkSettings
from chaplain.link.zmq.sockets import Sockets
from chaplain.mesh.settings import MeshSettings
from chaplain.node.core import NodeCore
from chaplain.node.node_ids import NodeIds
from chaplain.node.recorder import Recorder
from chaplain.node.settings import ClientSettings, NodeSettings, RecorderSettings
from chaplain.proofs.checkpoint import SignedCheckpoint
from chaplain.proofs.note import VerifierKey
from chaplain.proofs.tiles import tile_path
from chaplain.runtime import fd_limits
from chaplain.runtime.allocator import retain_freed_memory
from chaplain.runtime.disk.log_files import UNREADABLE, free_bytes, read_if_exists, read_log, segments_of
from chaplain.runtime.disk.syscalls import DataDirectory
from chaplain.runtime.disk.writer import DiskWriter
from chaplain.runtime.event_loop import BackgroundTasks, EventLoop
from chaplain.runtime.http.server import HttpServer, HttpViews
from chaplain.runtime.http.witness_client import WitnessClient, parse_keys
from chaplain.runtime.json_log import JsonLog
from chaplain.runtime.layers.executor import make_databases, make_executor, read_back
from chaplain.runtime.layers.graph import graph_tasks, make_graph
from chaplain.runtime.layers.journal import make_journal
from chaplain.runtime.layers.keyring import choose_keyring
from chaplain.runtime.request_scheduler import RequestScheduler
from chaplain.runtime.secret_files import read_identity, read_public_key
from chaplain.runtime.udp_beacon import BeaconSocket
from chaplain.segment.files import refuse_other_versions
from chaplain.segment.settings import LogSettings
from chaplain.segment.tap import StreamKind, Tap, heads_name
from chaplain.sequence.core import SequenceCore
from chaplain.sequence.service import SequenceLayer
from chaplain.sequence.settings import SequenceSettings
from chaplain.wire.parcel import Layer

LOCK_FILE = "lock"
TAP_SEGMENT_BYTES = 16 << 20
SWITCH_INTERVAL_S = 0.0005
"""Interval of Python's thread switches. Measurements show that with the default of 5 ms the storage thread and the
event loop wait too long for the GIL."""


def run_node(config: NodeConfig) -> int:
    """Run a node until it stops, and return its exit code (`exit_codes`)."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    retain_freed_memory()
    os.umask(0o077)  # only the owner can read a node's files
    fd_limits.raise_fd_limit()
    with locked(config.path("data")), logged(config) as log:
        refuse_other_versions(config.path("data") / SEGMENTS)
        check_key_files(config)
        clock = Clock()
        instance = new_instance(SystemRandom())
        strangers_max = config.number("bounds.strangers_max")
        sockets = Sockets(instance, config.text("bind"), strangers_max, members_of(config))
        try:
            endpoint = advertised(config, sockets.endpoint)
            node = make_node(config, endpoint, instance, clock.now_ns())
            beacon = make_beacon(config)
        except BaseException:
            sockets.close()
            raise
        storage = DiskWriter(DataDirectory(config.text("data")), config.number("bounds.write_bytes_max"))
        scheduler = RequestScheduler(
            node, config.span_ns("bounds.client_turn_seconds"), config.part("bounds.client_share")
        )
        tasks = make_background_tasks(config, node)
        loop = EventLoop(
            node, sockets, storage, log, beacon=beacon, clock=clock, background_tasks=tasks, scheduler=scheduler
        )
        loop.stop_on_signals()
        code = _serve(config, loop, node, log)
    if loop.restart_requested:
        # The core asked for a restart from what is on disk, for example after installing a snapshot. `exec` replaces
        # the program and keeps the process id, so a supervisor does not notice.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
    return code


def _serve(config: NodeConfig, loop: EventLoop, node: NodeCore, log: JsonLog) -> int:
    server = witnesses = None
    try:
        server = make_http(config, loop, node)
        witnesses = make_witness_client(config, loop, node, log)
        http = "" if server is None else server.endpoint
        log.write("serving", {"endpoint": node.settings.link.endpoint, "http": http, "pid": os.getpid()})
        gc.freeze()  # the objects of a node live as long as the process: exempt them from garbage collection
        return loop.run()
    finally:
        if server is not None:
            server.end()
        if witnesses is not None:
            witnesses.end()
        loop.close()


def check_key_files(config: NodeConfig) -> None:
    """Raise `ConfigError` if the node cannot use its key files: before it takes its port, which may be in use."""
    read_identity(config.path("identity"))
    choose_keyring(config.path("keyring"), config.path("data"))
    witness_keys(config)


def make_node(config: NodeConfig, endpoint: str, instance: bytes, now_ns: int) -> NodeCore:
    identity = read_identity(config.path("identity"))
    nodes = {node_id: read_public_key(key, f"[nodes] {node_id}") for node_id, key in config.nodes.items()}
    if nodes.get(config.number("id"), identity.key) != identity.key:
        raise ConfigError(f"[nodes] gives node {config.number('id')} another key than its identity file has")
    nodes.setdefault(config.number("id"), identity.key)  # [nodes] does not list a node that was added later
    clients = {read_public_key(key, f"[clients] {name}"): name for name, key in config.clients.items()}
    executor = make_executor(config, identity.identifier)
    journal = make_journal(config, identity, executor) if config.disks else None
    if executor is not None and journal is not None:
        executor.attach(NodesJournal(journal))
    node_ids = {identifier_of(key): node_id for node_id, key in nodes.items()}
    names = NodeIds(node_ids, journal)
    sequence = make_sequence(config, identity.identifier, names, endpoint, now_ns)
    graph = make_graph(config, identity, names, now_ns)
    uppers: dict[Layer, LayerCore] = {Layer.SEQUENCE: sequence, Layer.GRAPH: graph}
    if executor is not None:
        uppers[Layer.EXECUTOR] = executor
    return NodeCore(
        make_settings(config, endpoint, node_ids),
        identity,
        choose_keyring(config.path("keyring"), config.path("data")),
        clients=clients,
        rng=SystemRandom(),
        instance=instance,
        now_ns=now_ns,
        journal=journal,
        uppers=uppers,
        recorder=make_recorder(config),
    )


def make_recorder(config: NodeConfig) -> Recorder | None:
    settings = RecorderSettings(config.texts("record.pools"), config.texts("record.events"))
    if not settings.records:
        return None
    return Recorder(settings, make_tap(config, "pool", StreamKind.POOL), make_tap(config, "event", StreamKind.EVENT))


def make_sequence(config: NodeConfig, identifier: int, names: NodeIds, endpoint: str, now_ns: int) -> SequenceLayer:
    """Build the sequence. Its member list is the cluster's membership, however this node learned of it.

    See docs/decisions/member-lists.md.
    """
    neighbours = tuple(neighbour for neighbour in config.texts("neighbours") if neighbour != endpoint)
    settings = SequenceSettings(
        identifier,
        neighbours=neighbours,
        silence_ns=config.span_ns("sequence.silence_seconds"),
        patience_ns=config.span_ns("sequence.patience_seconds"),
        window_bytes=config.number("sequence.window_bytes"),
    )
    tapped = config.texts("record.sequence")
    tap = make_tap(config, "sequence", StreamKind.SEQUENCE) if tapped else None
    core = SequenceCore(settings, SystemRandom(), now_ns, names.members, names.removed)
    return SequenceLayer(core, tap, tapped)


def make_tap(config: NodeConfig, log: str, kind: StreamKind) -> Tap:
    """Build the recorder of a log apart from the journal's log. It continues at the end of an existing log."""
    settings = LogSettings(log, kind, folder=f"{SEGMENTS}/", segment_bytes=TAP_SEGMENT_BYTES, free_max=0)
    folder, keep_bytes = config.path("data") / SEGMENTS, config.number("record.keep_bytes")
    heads = read_if_exists(folder / heads_name(log))
    return Tap(settings, SystemRandom(), segments_of(folder, log), heads=heads, keep_bytes=keep_bytes)


def make_background_tasks(config: NodeConfig, node: NodeCore) -> BackgroundTasks:
    """Return the handlers of the layers' background tasks, and the poll of the free disk space for the journal."""
    segments = config.path("data") / SEGMENTS
    graph = graph_tasks(segments)
    if node.journal is None:
        return BackgroundTasks(graph)
    log = node.journal.settings.order.log

    def verify(wanted: Verify) -> Verified:
        return Verified(wanted.ticket, tuple(map(holds, wanted.items)))

    @fd_limits.retry_when_exhausted
    def read(wanted: ReadLog) -> LogRead:
        return read_log(segments, log, wanted)

    @fd_limits.retry_when_exhausted
    def read_file(wanted: ReadFile) -> FileRead:
        data = read_if_exists(config.path("data") / wanted.file)
        return FileRead(wanted.token, None if data == UNREADABLE else data)

    def room() -> list[DiskSpace]:
        return [DiskSpace(free_bytes(segments))]

    if Layer.EXECUTOR not in node.uppers:
        return BackgroundTasks({Verify: verify, ReadLog: read, ReadFile: read_file, **graph}, room)
    databases = make_databases(config)
    of_journal: dict[type, Callable[[Any], Any]] = {Verify: verify, ReadLog: read, ReadFile: read_file}
    handlers = {**of_journal, **graph, **read_back(config.path("data"), log)}
    return BackgroundTasks(handlers, room, groups=databases.task_groups(), on_close=databases.close)


def make_settings(config: NodeConfig, endpoint: str, node_ids: dict[int, int]) -> NodeSettings:
    cluster = config.text("cluster")
    return NodeSettings(
        link=LinkSettings(
            cluster,
            endpoint=endpoint,
            seal=config.text("seal"),
            queue_bytes_max=config.number("bounds.queue_bytes_max"),
            identity_queue_bytes_max=config.number("bounds.identity_queue_bytes_max"),
            clients_queue_bytes_max=config.number("bounds.clients_queue_bytes_max"),
            sessions_per_client_max=config.number("bounds.sessions_per_client_max"),
            sessions_max=fd_limits.sessions_for(config.number("bounds.strangers_max")),
        ),
        mesh=MeshSettings(
            cluster=cluster,
            heartbeat_ns=config.span_ns("mesh.heartbeat_seconds"),
            ping_after_ns=config.span_ns("mesh.ping_after_seconds"),
            gone_after_ns=config.span_ns("mesh.gone_after_seconds"),
            beacon_ns=config.span_ns("beacon.every_seconds"),
            headers=config.headers,
        ),
        gossip=GossipSettings(silence_ns=config.span_ns("gossip.silence_seconds"), always_met=frozenset(node_ids)),
        client_service=ClientServiceSettings(spread_per_second_max=config.number("bounds.spread_per_second")),
        clients=ClientSettings(
            paced=True,
            identity_bytes_max=config.number("bounds.identity_waiting_bytes_max"),
            bytes_max=config.number("bounds.clients_waiting_bytes_max"),
            light_per_second=config.number("bounds.client_light_per_second"),
            behind_bytes=config.number("bounds.client_behind_bytes"),
        ),
        beacon=bool(config.text("beacon.address")),
        neighbours=tuple(neighbour for neighbour in config.texts("neighbours") if neighbour != endpoint),
        node_ids=node_ids,
    )


def members_of(config: NodeConfig) -> set[str]:
    """Return the configured addresses of nodes. Host names are not resolved."""
    return {bare_host(split_endpoint(endpoint)[0]) for endpoint in (*config.uris.values(), *config.texts("neighbours"))}


def make_beacon(config: NodeConfig) -> BeaconSocket | None:
    if not config.text("beacon.address"):
        return None
    return BeaconSocket(config.text("beacon.address"), config.number("beacon.port"), config.text("beacon.interface"))


def make_http(config: NodeConfig, loop: EventLoop, node: NodeCore) -> HttpServer | None:
    if not config.text("http"):
        return None
    address, port = split_bind_endpoint("tcp://" + config.text("http"))

    def whole_status() -> bytes:
        own = b'"pid":%d,"clock_error_seconds":%.1f' % (os.getpid(), loop.clock_error_s)
        return b'%b,%b,"member_list":%b}' % (node.status()[:-1], own, node.members())

    journal = node.journal
    tree = None if journal is None else partial(read_tree_part, loop, journal.tree, config.path("data"))
    views = HttpViews(loop, whole_status, node.ready, tree)
    return HttpServer(address, port, views, config.number("bounds.http_per_second"))


def read_tree_part(loop: EventLoop, tree: TreeService, data: Path, name: str) -> bytes | None:
    """Return a tile or the newest signed checkpoint. Call it in a thread that may wait for the disk."""
    found = loop.ask(lambda: tree.find(name))
    if not isinstance(found, OnDisk):
        return found
    file = read_if_exists(data / found.file)
    return None if file is None or file == UNREADABLE else cut(found.tile, file)


class _WitnessedTree:
    """The tree of a running node, for the thread that asks witnesses."""

    def __init__(self, loop: EventLoop, tree: TreeService, log: JsonLog) -> None:
        self._loop, self._tree, self._log = loop, tree, log

    def unpublished(self) -> SignedCheckpoint | None:
        return self._loop.ask(self._tree.unpublished)

    def publish(self, signed: SignedCheckpoint) -> None:
        self._loop.ask(lambda: self._tree.publish(signed))

    def report(self, url: str, reason: str) -> None:
        self._log.write("no cosignature", {"witness": url, "reason": reason})


def make_witness_client(config: NodeConfig, loop: EventLoop, node: NodeCore, log: JsonLog) -> WitnessClient | None:
    urls, journal = config.texts("witness.urls"), node.journal
    if not urls or journal is None:
        return None
    tree, data = journal.tree, config.path("data")

    def read(level: int, index: int, width: int) -> bytes:
        found = read_tree_part(loop, tree, data, tile_path(level, index, width))
        if found is None:
            raise Missing(f"this node does not have {tile_path(level, index, width)}")
        return found

    return WitnessClient(urls, witness_keys(config), _WitnessedTree(loop, tree, log), read)


def witness_keys(config: NodeConfig) -> tuple[VerifierKey, ...]:
    """Read the witnesses' keys. Raises `ConfigError` for URLs or keys that cannot be used."""
    urls, keys = config.texts("witness.urls"), config.texts("witness.keys")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"witness.urls: {url!r} is no URL: give http://host:port")
    if urls and not keys:
        raise ConfigError("witness.keys is empty: give the verifier keys of the witnesses in witness.urls")
    try:
        return parse_keys(keys)
    except Malformed as error:
        raise ConfigError(f"witness.keys: {error}") from None


def advertised(config: NodeConfig, bound: str) -> str:
    """Return the endpoint for other nodes: `advertise`, or the bound address if it is a single one."""
    if config.text("advertise"):
        return config.text("advertise")
    if split_bind_endpoint(bound)[0] in ("0.0.0.0", "::"):  # noqa: S104  compared with, not bound to
        raise ConfigError("advertise must be set, because bind is a wildcard address that others cannot connect to")
    return bound


@contextlib.contextmanager
def locked(data: Path) -> Iterator[None]:
    """Lock the data directory and write the process id to its `pid` file."""
    try:
        (data / SEGMENTS).mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot use the data directory {data}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"another node runs in {data}; stop it first, or use another data directory") from None
    pid_file = data / PID_FILE
    try:
        pid_file.write_text(f"{os.getpid()}\n")
        yield
        pid_file.unlink(missing_ok=True)
    finally:
        os.close(lock)


@contextlib.contextmanager
def logged(config: NodeConfig) -> Iterator[JsonLog]:
    name = f"node-{config.number('id')}"
    if not config.text("log"):
        yield JsonLog(name)
        return
    try:
        stream: TextIO = config.path("log").open("a")
    except OSError as error:
        raise ConfigError(f"cannot write the log {config.text('log')}: {error.strerror}") from error
    with stream:
        yield JsonLog(name, stream)
