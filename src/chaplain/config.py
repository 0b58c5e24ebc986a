"""The settings of node and cluster files: names, types, defaults, bounds, and the origin of each value.

A value comes from the TOML file, then the environment (`CHAPLAIN_NODE_` and the name in capitals, dots as underscores),
then flags. The last one wins. Its origin is recorded, so that an error can say what to change.
This module does not know what the values are for: it opens no paths and decodes no keys.

Reference for users: docs/reference/configuration.md, which a test compares with `SETTINGS`.
"""

from __future__ import annotations

import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from chaplain.core import Frozen
from chaplain.errors import ConfigError
from chaplain.units import SECOND_NS

Value = str | int | float | bool | tuple[str, ...]

CLUSTER_FILE = "cluster.toml"
NODE_FILE = "node.toml"
PID_FILE = "pid"
SEGMENTS = "segments"
NODE_IDS_MAX = 254
"""255 means "no node" where one octet contains a node's id."""


class Setting(Frozen, frozen=True):
    """One name that a node's file may contain. The type of the default is the type of the value."""

    name: str
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()


SETTINGS: tuple[Setting, ...] = (
    Setting("cluster", "chaplain", "Name of the cluster; only nodes and clients with the same name connect."),
    Setting("id", 1, "Number of this node, for people.", 1, NODE_IDS_MAX),
    Setting(
        "bind",
        "tcp://127.0.0.1:7400",
        "Endpoint to listen at for nodes and clients: address, host name or interface, and port.",
    ),
    Setting("advertise", "", "Endpoint at which others reach this node; empty: the value of `bind`."),
    Setting("data", ".", "Data directory, relative to this file."),
    Setting("identity", "identity", "File with this node's key, relative to this file; mode 0600."),
    Setting("keyring", "keyring", "File with the cluster's keys, relative to this file; mode 0600."),
    Setting("neighbours", (), "Endpoints of other nodes to join the cluster through; one that answers is enough."),
    Setting(
        "http", "127.0.0.1:0", "Address and port for metrics, health and status; port 0: any free port; empty: no HTTP."
    ),
    Setting("database", "sqlite", "Database that executes journal streams.", choices=("sqlite", "postgres", "none")),
    Setting(
        "seal",
        "aes-256-gcm",
        "Algorithm that protects frames; hmac-sha256 authenticates them but does not encrypt.",
        choices=("aes-256-gcm", "hmac-sha256"),
    ),
    Setting("log", "", "File to append log lines to; empty: standard error."),
    Setting(
        "mesh.heartbeat_seconds", 1.0, "Send a heartbeat to a node after sending it nothing for this long.", 0.01, 60
    ),
    Setting(
        "mesh.ping_after_seconds",
        5.0,
        "Ping a peer whose session was silent for this long; beacons do not count.",
        0.02,
        600,
    ),
    Setting(
        "mesh.gone_after_seconds",
        30.0,
        "End the session with a client or node that was silent for this long; gossip removes a member after 2 T, if "
        "that is earlier.",
        0.05,
        3600,
    ),
    Setting(
        "gossip.silence_seconds",
        5.0,
        "T: a member that is silent for T is suspected and asked about; after 2 T it has left.",
        0.05,
        600,
    ),
    Setting(
        "journal.segment_bytes",
        64 << 20,
        "Size of the journal's files; a larger record gets a larger file. Packs that clients write through this node "
        "must be smaller than half of it; below 1 MiB the node refuses writers.",
        1 << 16,
        1 << 30,
    ),
    Setting("journal.election_seconds", 1.0, "Start an election when the master was silent for this long.", 0.05, 60),
    Setting("journal.disk", "", "Disk id, in hex, with which this node was added; empty: it is a founding node."),
    Setting(
        "journal.keep_bytes",
        0,
        "Delete log that a checkpoint covers while the log is larger than this; 0: never.",
        0,
        1 << 50,
    ),
    Setting(
        "journal.keep_seconds", 0.0, "Delete log that a checkpoint covers when it is older than this; 0: never.", 0, 1e9
    ),
    Setting(
        "journal.keep_stopped_bytes",
        1 << 30,
        "Log retained beyond these two limits for databases whose executor stopped; beyond it, "
        "they need another node's copy. 0: no limit.",
        0,
        1 << 50,
    ),
    Setting(
        "journal.room_bytes_min",
        256 << 20,
        "Accept no writes while the disk has less free space than this.",
        0,
        1 << 40,
    ),
    Setting("journal.reserved", (), "Names of the clients that may write through this node; empty: all."),
    Setting(
        "journal.prevalidate", True, "Whether a reserved node runs statements as a dry run before they are ordered."
    ),
    Setting("journal.index_only", (), "Ids of the founding nodes that serialize and store no data; empty: none."),
    Setting(
        "journal.copies", 0, "Number of nodes that must store a payload before index-only serializers order it.", 0, 254
    ),
    Setting("graph.segment_bytes", 16 << 20, "Size of the graph's files.", 4 << 20, 1 << 30),
    Setting(
        "graph.keep_events",
        0,
        "Number of newest events to retain; older ones are deleted once every member has them; 0: never.",
        0,
        1 << 40,
    ),
    Setting(
        "graph.valid_seconds",
        300.0,
        "An event whose timestamp is further in the future waits; a first broadcast further in the past is refused.",
        1,
        86400,
    ),
    Setting("graph.valid_past_seconds", 0.0, "The end of this window in the past; 0: `graph.valid_seconds`.", 0, 86400),
    Setting(
        "graph.valid_future_seconds", 0.0, "The end of this window in the future; 0: `graph.valid_seconds`.", 0, 86400
    ),
    Setting(
        "graph.max_confirms",
        0,
        "Number of confirmations that make an event read (`MAX_CONFIRMS`); 0: half of the number of members, rounded "
        "down. The author does not confirm its own event. Set it equally on all nodes.",
        0,
        254,
    ),
    Setting(
        "graph.resend_seconds",
        2.0,
        "Interval at which unread events are sent to all nodes again (`SEND_UNREAD_EVENTS_INTERVAL`).",
        0.1,
        600,
    ),
    Setting("graph.sync_seconds", 2.0, "Interval at which a node sends its leaves to all others.", 0.1, 600),
    Setting(
        "postgres.host", "", "This node's server: a host name, or the directory of its socket; empty: the local socket."
    ),
    Setting("postgres.port", 5432, "Port of the server.", 1, 65535),
    Setting("postgres.database", "", "Database that only this node uses; empty: chaplain_ and the node's id."),
    Setting("postgres.user", "chaplain", "Role to connect as; it may create roles and is not a superuser."),
    Setting("postgres.password_file", "", "File with the role's password, mode 0600; empty: libpq's defaults."),
    Setting("record.pools", (), "Pools whose messages this node records in segments, for Spark."),
    Setting("record.events", (), "Types of events that this node records in segments, for Spark; * for all."),
    Setting("record.sequence", (), "Streams of the sequence that this node records in segments, for Spark; * for all."),
    Setting(
        "record.keep_bytes",
        0,
        "Bytes to retain of each of these logs, in files of 16 MiB, at least two files; 0: all.",
        0,
        1 << 50,
    ),
    Setting(
        "record.keep_rows_bytes",
        0,
        "Bytes to retain of the log of row changes of each database; 0: all.",
        0,
        1 << 50,
    ),
    Setting(
        "sequence.silence_seconds",
        5.0,
        "Propose to remove a member of the work set that was silent for this long.",
        0.2,
        600,
    ),
    Setting(
        "sequence.patience_seconds", 10.0, "How long a majority of the nodes waits for the other nodes.", 0.1, 3600
    ),
    Setting(
        "sequence.window_bytes",
        64 << 20,
        "Bytes of delivered events retained for readers and lagging nodes.",
        1 << 16,
        4 << 30,
    ),
    Setting("witness.urls", (), "URLs of witnesses that this node offers signed checkpoints to; empty: none."),
    Setting("witness.keys", (), "Verifier keys of these witnesses, as `chaplain witness serve` prints them."),
    Setting("beacon.address", "", "Broadcast address for discovering neighbours, such as 127.255.255.255; empty: off."),
    Setting("beacon.port", 7401, "UDP port of the beacon; nodes on one machine share it.", 1, 65535),
    Setting("beacon.interface", "", "Network interface the beacon is bound to; empty: any."),
    Setting("beacon.every_seconds", 1.0, "Interval between two beacons.", 0.05, 3600),
    Setting(
        "bounds.queue_bytes_max",
        16 << 20,
        "Bytes queued for one peer; further commands are dropped and reported.",
        1 << 16,
        48 << 20,
    ),
    Setting(
        "bounds.identity_queue_bytes_max",
        32 << 20,
        "Bytes queued for all sessions of one client; further commands are dropped and reported.",
        1 << 20,
        1 << 30,
    ),
    Setting(
        "bounds.clients_queue_bytes_max",
        128 << 20,
        "Bytes queued for all clients; when it is reached, each client gets an equal share of it.",
        1 << 20,
        4 << 30,
    ),
    Setting(
        "bounds.sessions_per_client_max",
        128,
        "Sessions that one client's key may have with this node; further ones are refused.",
        1,
        4096,
    ),
    Setting(
        "bounds.client_turn_seconds",
        0.001,
        "Time for client requests before the node processes messages of other nodes; clients take turns.",
        0.0001,
        1,
    ),
    Setting(
        "bounds.client_share",
        0.35,
        "Part of the time that a node, with all its threads, may be busy before it serves only light clients, while a "
        "light client uses it beside others; a client alone is not held back.",
        0.01,
        1,
    ),
    Setting(
        "bounds.client_light_per_second",
        100,
        "Cost that one client may cause in one second and stay light: a small write costs 1, an event, a question or "
        "a configuration request 10, an append to a graph or a read of the journal 20, each 4 KiB 1 more. A client "
        "with at most one waiting request may cost five times as much.",
        1,
        1_000_000,
    ),
    Setting(
        "bounds.client_behind_bytes",
        64 << 10,
        "Bytes of writes under way at a node, 4 KiB more for each write and configuration request; with more, it "
        "serves only light clients while clients contend.",
        1 << 10,
        128 << 20,
    ),
    Setting(
        "bounds.spread_per_second",
        200,
        "Events, questions and joins of one client in one second; every node processes them; more are refused.",
        1,
        100_000,
    ),
    Setting(
        "bounds.identity_waiting_bytes_max",
        64 << 20,
        "Bytes of waiting requests of one client; beyond it, the session that sent them is closed.",
        16 << 20,
        4 << 30,
    ),
    Setting(
        "bounds.clients_waiting_bytes_max",
        256 << 20,
        "Bytes of waiting requests of all clients; beyond it, the session that sent them is closed.",
        16 << 20,
        16 << 30,
    ),
    Setting(
        "bounds.strangers_max", 192, "Connections that may be unauthenticated at a time; further ones wait.", 8, 4096
    ),
    Setting(
        "bounds.http_per_second",
        50,
        "HTTP requests answered in one second; further ones wait.",
        1,
        10_000,
    ),
    Setting(
        "bounds.write_bytes_max",
        256 << 20,
        "Bytes queued for the disk; when it is reached, the node waits.",
        1 << 20,
        4 << 30,
    ),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_FLAGS = {"true": True, "false": False}
_TABLES = ("clients", "nodes", "uris", "disks", "headers")
_HEADERS_MAX = 100
_HEADER_BYTES_MAX = 200
_LINKS_OWN = "chaplain."
_PATHS = ("data", "identity", "keyring", "log", "postgres.password_file")


class NodeConfig(Frozen, frozen=True):
    """A node's settings, complete and within bounds. Paths are absolute."""

    values: dict[str, Value]
    origins: dict[str, str]
    """By name: `default`, or the file, environment variable or flag that the value is from."""
    clients: dict[str, str]
    """Public keys, as text, of the clients that may connect, by name."""
    nodes: dict[int, str]
    """Public keys, as text, of the nodes of the cluster, by id."""
    uris: dict[int, str]
    """The endpoint at which each founding node was created, by id."""
    disks: dict[int, str]
    """The disk id, in hex, with which each founding node was created, by id. Without disks there is no journal."""
    headers: dict[str, str]
    """The headers in this node's greeting, for people and programs."""

    def text(self, name: str) -> str:
        value = self.values[name]
        assert isinstance(value, str), name
        return value

    def number(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int), name
        return value

    def flag(self, name: str) -> bool:
        value = self.values[name]
        assert isinstance(value, bool), name
        return value

    def span_ns(self, name: str) -> int:
        value = self.values[name]
        assert isinstance(value, int | float), name
        return round(value * SECOND_NS)

    def part(self, name: str) -> float:
        value = self.values[name]
        assert isinstance(value, float), name
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.values[name]
        assert isinstance(value, tuple), name
        return value

    def path(self, name: str) -> Path:
        return Path(self.text(name))


def load_node(
    file: Path, environment: Mapping[str, str] = os.environ, flags: Mapping[str, str] | None = None
) -> NodeConfig:
    """Read a node's file, then the environment and flags that override it. ConfigError names the first mistake."""
    found = _flatten(_read_toml(file), file)
    clients = _keys(found.pop("clients", {}), "clients", file)
    by_node = {
        table: {_node_id(name, file): value for name, value in _keys(found.pop(table, {}), table, file).items()}
        for table in ("nodes", "uris", "disks")
    }
    headers = _check_headers(_keys(found.pop("headers", {}), "headers", file, "value"), file)
    values: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for setting in SETTINGS:
        raw, origin = _choose(setting.name, found, file, environment, flags or {})
        values[setting.name] = setting.default if origin == "default" else _check(setting, raw, origin)
        origins[setting.name] = origin
    for name in [*found, *(flags or {})]:
        if name not in _BY_NAME:
            raise ConfigError(f"{file}: {name!r} is no setting; {_nearest(name)}")
    for name in _PATHS:
        if values[name]:
            values[name] = str((file.parent / str(values[name])).resolve())
    if by_node["disks"] and not by_node["disks"].keys() == by_node["uris"].keys() == by_node["nodes"].keys():
        raise ConfigError(f"{file}: [nodes], [uris] and [disks] must name the same nodes")
    return NodeConfig(values, origins, clients, by_node["nodes"], by_node["uris"], by_node["disks"], headers)


def variable_of(name: str) -> str:
    return "CHAPLAIN_NODE_" + name.upper().replace(".", "_")


def _read_toml(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            return tomllib.load(stream)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}; give the path of a file that exists") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error


def _flatten(tables: dict[str, object], file: Path) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in tables.items():
        if not isinstance(value, dict) or name in _TABLES:
            flat[name] = value
            continue
        for inner, inner_value in value.items():
            if isinstance(inner_value, dict):
                raise ConfigError(f"{file}: {name}.{inner} is a table; settings are at most one table deep")
            flat[f"{name}.{inner}"] = inner_value
    return flat


def _keys(table: object, name: str, file: Path, what: str = "public key") -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table.values()):
        raise ConfigError(f'{file}: [{name}] must hold lines of name = "{what}"')
    return dict(table)


def _check_headers(headers: dict[str, str], file: Path) -> dict[str, str]:
    """Refuse headers that do not fit into a greeting."""
    if len(headers) > _HEADERS_MAX:
        raise ConfigError(f"{file}: [headers] holds at most {_HEADERS_MAX} lines, not {len(headers)}")
    for name, value in headers.items():
        line = f"{name}={value}"
        if not line.isascii() or not line.isprintable() or " " in line or len(line) > _HEADER_BYTES_MAX:
            raise ConfigError(f"{file}: [headers] {name!r}: {_HEADER_BYTES_MAX} visible ASCII characters at most")
        if not name or "=" in name or name.startswith(_LINKS_OWN):
            raise ConfigError(
                f"{file}: [headers] {name!r}: a name holds no '=', and does not begin with {_LINKS_OWN!r}"
            )
    return headers


def _node_id(name: str, file: Path) -> int:
    if not name.isascii() or not name.isdigit() or not 1 <= int(name) <= NODE_IDS_MAX:
        raise ConfigError(f"{file}: [nodes] has {name!r}; a node's id is a number from 1 to {NODE_IDS_MAX}")
    return int(name)


def _choose(
    name: str, found: Mapping[str, object], file: Path, environment: Mapping[str, str], flags: Mapping[str, str]
) -> tuple[object, str]:
    if name in flags:
        return flags[name], f"the flag for {name}"
    if variable_of(name) in environment:
        return environment[variable_of(name)], variable_of(name)
    if name in found:
        return found[name], str(file)
    return None, "default"


def _check(setting: Setting, raw: object, origin: str) -> Value:
    """Convert a value that is given as text, and check its bounds."""
    kind = type(setting.default)
    wrong = ConfigError(f"{setting.name} (from {origin}) must be {_wanted(setting)}, not {raw!r}")
    if kind is tuple:
        parts = raw.split(",") if isinstance(raw, str) else raw
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise wrong
        return tuple(part.strip() for part in parts if part.strip())
    if kind is str:
        if not isinstance(raw, str) or (setting.choices and raw not in setting.choices):
            raise wrong
        return raw
    if kind is bool:
        if str(raw).lower() not in _FLAGS:
            raise wrong
        return _FLAGS[str(raw).lower()]
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise wrong
    try:
        number = msgspec.convert(raw, int | float if kind is float else int, strict=not isinstance(raw, str))
    except msgspec.ValidationError:
        raise wrong from None
    if setting.low is not None and setting.high is not None and not setting.low <= number <= setting.high:
        raise wrong
    return float(number) if kind is float else number


def _wanted(setting: Setting) -> str:
    if setting.choices:
        return "one of " + ", ".join(setting.choices)
    if isinstance(setting.default, str):
        return "text"
    if isinstance(setting.default, tuple):
        return "a list of texts"
    if isinstance(setting.default, bool):
        return "true or false"
    kind = "a whole number" if isinstance(setting.default, int) else "a number"
    return kind if setting.low is None else f"{kind} from {setting.low:.16g} to {setting.high:.16g}"


def _nearest(name: str) -> str:
    import difflib  # noqa: PLC0415  only for a message

    near = difflib.get_close_matches(name, _BY_NAME, 1)
    return f"did you mean {near[0]!r}?" if near else "see docs/reference/configuration.md"


class ClusterNode(Frozen, frozen=True):
    id: int
    endpoint: str
    key: str
    """Public, as text."""
    http: str = ""
    index_only: bool = False
    """The node serializes and stores no data, so clients do not connect to it."""


def endpoints_of(nodes: Sequence[ClusterNode], node: int | None = None) -> tuple[str, ...]:
    """The endpoints for clients: of this node, or of all nodes that store data."""
    return tuple(one.endpoint for one in nodes if (not one.index_only if node is None else one.id == node))


def choose_nodes(nodes: Sequence[ClusterNode], only: int | None) -> list[ClusterNode]:
    """All nodes, or the one with this id."""
    if only is not None and all(node.id != only for node in nodes):
        raise ConfigError(f"there is no node {only}: choose one of {', '.join(str(node.id) for node in nodes)}")
    return [node for node in nodes if only in (None, node.id)]


class ClusterFile(Frozen, frozen=True):
    """A client's description of a cluster. The file never contains the cluster key."""

    cluster: str
    seal: str
    identity: str
    """The default client's identity file, relative to the cluster's directory."""
    nodes: tuple[ClusterNode, ...]


# msgspec builds its type information at the first use of a class and crashes if two threads do so at the same time.
# This decoder makes the import of the module the first use.
msgspec.json.Decoder(ClusterFile)


def find_cluster(where: str | Path) -> Path:
    """The path of the cluster's file, from its own path or from the path of its directory."""
    path = Path(where)
    file = path / CLUSTER_FILE if path.is_dir() else path
    if not file.is_file():
        make = f"`chaplain cluster up --nodes 3 --dir {shlex.quote(str(where))}`"
        raise ConfigError(f"there is no cluster at {where}: make one with {make}")
    return file


def load_cluster(where: str | Path) -> ClusterFile:
    """Read a cluster's file. The returned identity path is absolute."""
    file = find_cluster(where)
    try:
        cluster = msgspec.convert(_read_toml(file), ClusterFile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {error}; `chaplain cluster up` writes this file") from None
    if not cluster.nodes:
        raise ConfigError(f"{file}: no [[nodes]]; `chaplain cluster up` writes this file")
    return msgspec.structs.replace(cluster, identity=str((file.parent / cluster.identity).resolve()))
