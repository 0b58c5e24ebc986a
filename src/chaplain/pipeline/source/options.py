"""Options of the source, with the meaning, defaults and errors of Spark's Kafka source.

This module validates options and resolves them to offsets, given the offsets that a stream has. It knows neither Spark
nor files. A stream corresponds to a Kafka topic with the single partition 0.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from chaplain.core import Frozen
from chaplain.errors import ConfigError, Missing

log = logging.getLogger(__name__)

EARLIEST = -2
LATEST = -1
PARTITION = "0"
MAX_TRIGGER_DELAY = "15m"
RECONNECT_S = 300.0
"""How long a query waits for a cluster that stopped answering, unless `reconnectTimeout` is set."""
TARGETS = ("cluster", "endpoints", "identityFile", "path", "kind")
SOURCE = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "failOnDataLoss",
    "failOnMalformedHeaders",
    "reconnectTimeout",
    *TARGETS,
)
_SPARKS = ("checkpointlocation", "queryname")
"""Options of Spark itself, which it passes to every source. Spark's other ones begin with two underscores."""
_SECRETS = ("identity", "secret", "key")
_UNITS_S = {"": 0.001, "ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


class Bound(Frozen, frozen=True):
    """A start or an end: offsets by stream, with Kafka's -2 (earliest) and -1 (latest), or timestamps."""

    every: int = EARLIEST
    """The offset of all streams that `offsets` does not name."""
    offsets: dict[str, int] | None = None
    times_ms: dict[str, int] | None = None
    time_ms: int | None = None
    later: Literal["error", "latest"] = "error"
    """The behaviour of a reader if no message was written at or after the timestamp."""


JOURNAL = "journal"
KINDS = (JOURNAL, "pool", "event", "sequence", "graph", "rows")
"""Kinds of streams. A node's segments contain one log of each kind."""


class Target(Frozen, frozen=True):
    """Where the streams are: a folder of segments, a cluster's folder, or endpoints. It never contains a secret."""

    folder: str = ""
    cluster: str = ""
    endpoints: tuple[str, ...] = ()
    identity_file: str = ""
    """A path on the machine that connects. If empty, `CHAPLAIN_IDENTITY` there, or the cluster's default identity."""
    kind: str = JOURNAL
    """The kind of stream. All kinds except the journal are read from segments, where a node recorded them."""


class Options(Frozen, frozen=True):
    """The parsed options of a query."""

    target: Target
    names: tuple[str, ...]
    pattern: str
    starting: Bound
    ending: Bound
    min_partitions: int
    max_offsets: int
    min_offsets: int
    max_delay_s: float
    """A batch with fewer rows than `min_offsets` is delayed at most this long."""
    headers: bool
    fail_on_loss: bool
    fail_on_headers: bool = True
    reconnect_s: float = RECONNECT_S

    def wants(self, stream: str) -> bool:
        return stream in self.names if not self.pattern else re.fullmatch(self.pattern, stream) is not None


def parse(given: Mapping[str, str], streaming: bool) -> Options:
    found = {key.lower(): value for key, value in given.items()}
    check_names(found, SOURCE)
    names, pattern = _subscription(found)
    starting = _bound(found, "starting", LATEST if streaming else EARLIEST)
    ending = _bound(found, "ending", LATEST)
    if streaming and any(key.startswith("ending") for key in found):
        raise ConfigError("ending offsets and timestamps are not for streaming queries")
    if not streaming:
        _check_batch(starting, ending)
    most, least = _positive(found, "maxOffsetsPerTrigger"), _positive(found, "minOffsetsPerTrigger")
    if most and least > most:
        raise ConfigError(f"minOffsetsPerTrigger ({least}) must not be more than maxOffsetsPerTrigger ({most})")
    return Options(
        parse_target(found),
        names,
        pattern,
        starting,
        ending,
        _positive(found, "minPartitions"),
        most,
        least,
        duration_s("maxTriggerDelay", found.get("maxtriggerdelay", MAX_TRIGGER_DELAY)),
        _flag(found, "includeHeaders", False),
        _flag(found, "failOnDataLoss", True),
        _flag(found, "failOnMalformedHeaders", True),
        reconnect_s(found),
    )


def check(given: Mapping[str, str]) -> None:
    """Check everything that batch and streaming queries have in common."""
    check_names(given, SOURCE)
    ends = ("ending", "startingoffsets")
    shared = {key: value for key, value in given.items() if not key.lower().startswith(ends)}
    parse(shared, streaming=True)
    found = {key.lower(): value for key, value in given.items()}
    _bound(found, "starting", LATEST)
    _bound(found, "ending", LATEST)


def check_names(given: Mapping[str, str], known: Sequence[str]) -> None:
    """Refuse misspelt options, which would otherwise be ignored silently.

    An option that resembles none of `known` is ignored, as Spark's Kafka source does: it may be for another component.
    """
    spelt = {name.lower(): name for name in known}
    for key in given:
        name = key.lower()
        if name in spelt or name in _SPARKS or name in _SECRETS or name.startswith("__"):
            continue
        if near := get_close_matches(name, spelt, n=1, cutoff=0.7):
            meant = f"did you mean {spelt[near[0]]}?"
            raise ConfigError(f"there is no option {key}: {meant} Options are {', '.join(known)}")


def check_named(options: Options, streams: Sequence[str]) -> None:
    """Refuse offsets or timestamps by stream that omit a subscribed stream or name another one, as Kafka's source
    does.
    """
    for side, bound in (("starting", options.starting), ("ending", options.ending)):
        named = bound.offsets if bound.offsets is not None else bound.times_ms
        if named is None:
            continue
        if missing := [stream for stream in streams if stream not in named]:
            use = "" if bound.offsets is None else f" (-2: {side} with the earliest, -1: with the latest)"
            raise ConfigError(f"{side} offsets are given by stream, but not for {missing[0]!r}: name all of them{use}")
        if extra := [stream for stream in named if stream not in streams and not options.wants(stream)]:
            raise ConfigError(f"{side} offsets are given for {extra[0]!r}, which is not subscribed to")


def parse_target(given: Mapping[str, str]) -> Target:
    """Parse the options that say where to read from or write to."""
    found = {key.lower(): value for key, value in given.items()}
    if any(secret in found for secret in _SECRETS):
        raise ConfigError("an identity is never an option's value: give its file's path on the workers as identityFile")
    ways = [name for name in ("path", "cluster", "endpoints") if found.get(name)]
    if len(ways) != 1:
        raise ConfigError(
            "exactly one of the options cluster (its folder), endpoints and path (a folder of segments) must be set"
        )
    endpoints = tuple(one.strip() for one in found.get("endpoints", "").split(",") if one.strip())
    kind = found.get("kind", JOURNAL).lower()
    if kind not in KINDS:
        raise ConfigError(f"kind is one of {', '.join(KINDS)}, not {kind!r}")
    if kind != JOURNAL and endpoints:
        raise ConfigError(f"streams of kind {kind} are read where a node recorded them: give path or cluster")
    # Options are parsed where the query is planned. The working directories of Spark's workers are others.
    path, cluster, identity = (_absolute(found.get(name, "")) for name in ("path", "cluster", "identityfile"))
    return Target(path, cluster, endpoints, identity, kind)


def _absolute(path: str) -> str:
    if path.startswith("file:"):  # as Spark's catalog stores the path of a table
        path = unquote(urlsplit(path).path)
    return str(Path(path).absolute()) if path else ""


_TABLE = "option."
"""Prefix under which Spark repeats the options of CREATE TABLE."""


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a CREATE TABLE statement without Spark's own additions; None for any other query."""
    found = {key.removeprefix(_TABLE): value for key, value in given.items() if key.startswith(_TABLE)}
    if not found:
        return None
    if path := given.get("path"):  # Spark moves this option, and has made it a URL
        found["path"] = path
    return found


def reconnect_s(found: Mapping[str, str], default_s: float = RECONNECT_S) -> float:
    return duration_s("reconnectTimeout", found["reconnecttimeout"]) if "reconnecttimeout" in found else default_s


def duration_s(name: str, text: str) -> float:
    """Parse a duration such as 500ms, 10s or 15m. A number without a unit means milliseconds, as in Spark."""
    matched = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", text.lower())
    unit = _UNITS_S.get(matched[2]) if matched else None
    if matched is None or unit is None:
        raise ConfigError(f"{name} is a time like 10s or 15m, not {text!r}")
    return int(matched[1]) * unit


def _subscription(found: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    chosen = [key for key in ("subscribe", "subscribepattern", "assign") if found.get(key)]
    if len(chosen) != 1:
        raise ConfigError("exactly one of the options subscribe, subscribePattern and assign must be set")
    value = found[chosen[0]]
    if chosen == ["subscribepattern"]:
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigError(f"subscribePattern {value!r} is no pattern: {error}") from None
        return (), value
    if chosen == ["subscribe"]:
        names = dict.fromkeys(name.strip() for name in value.split(",") if name.strip())
        if not names:
            raise ConfigError(f"subscribe names no stream, only {value!r}: give names with commas")
        return tuple(names), ""  # a stream that is named twice is read once
    assigned = _object("assign", value)
    if any(partitions != [0] for partitions in assigned.values()):
        raise ConfigError('assign: a stream has the one partition 0, as in {"orders":[0]}')
    return tuple(assigned), ""


def _bound(found: Mapping[str, str], side: str, default: int) -> Bound:
    """Parse a start or an end. As with Kafka, a global timestamp precedes timestamps by stream, and these offsets."""
    strategy = found.get("startingoffsetsbytimestampstrategy", "error") if side == "starting" else "latest"
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}")
    later: Literal["error", "latest"] = "error" if strategy == "error" else "latest"
    if time := found.get(f"{side}timestamp"):
        return Bound(default, time_ms=_number(f"{side}Timestamp", time), later=later)
    if times := found.get(f"{side}offsetsbytimestamp"):
        return Bound(default, times_ms=_by_stream(f"{side}OffsetsByTimestamp", times, 0), later=later)
    value = found.get(f"{side}offsets", "").strip()
    if not value:
        return Bound(default)
    if value.lower() in ("earliest", "latest"):
        return Bound(EARLIEST if value.lower() == "earliest" else LATEST)
    return Bound(default, offsets=_by_stream(f"{side}Offsets", value, EARLIEST))


def _check_batch(starting: Bound, ending: Bound) -> None:
    if LATEST in (starting.every, *(starting.offsets or {}).values()):
        raise ConfigError("startingOffsets cannot be latest (-1) in a batch query")
    if EARLIEST in (ending.every, *(ending.offsets or {}).values()):
        raise ConfigError("endingOffsets cannot be earliest (-2) in a batch query")


def _by_stream(name: str, text: str, least: int) -> dict[str, int]:
    numbers = {}
    for stream, partitions in _object(name, text).items():
        if not isinstance(partitions, dict) or list(partitions) != [PARTITION]:
            raise ConfigError(f'{name}: a stream has the one partition 0, as in {{"orders":{{"0":23}}}}')
        number = partitions[PARTITION]
        if not isinstance(number, int) or number < least:
            raise ConfigError(f"{name}: {number!r} is not a number from {least} on")
        numbers[stream] = number
    return numbers


def _object(name: str, text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ConfigError(f"{name} must be a JSON object of streams, not {text!r}")
    return value


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a number, not {text!r}") from None


def _positive(found: Mapping[str, str], name: str) -> int:
    """Parse a positive number; 0 if the option is not set."""
    if name.lower() not in found:
        return 0
    number = _number(name, found[name.lower()])
    if number < 1:
        raise ConfigError(f"{name} must be positive, not {number}")
    return number


def _flag(found: Mapping[str, str], name: str, default: bool) -> bool:
    value = found.get(name.lower(), str(default)).lower()
    if value not in ("true", "false"):
        raise ConfigError(f"{name} is true or false, not {value!r}")
    return value == "true"


class KnownOffsets(Frozen, frozen=True):
    """The offsets of a stream that the log contains: from `first` up to, but not including, `next`."""

    first: int
    next: int
    times: Sequence[tuple[int, int]] = ()
    """The first offset and the timestamp of each record."""

    def since(self, time_ns: int) -> int | None:
        """Return the first offset that was written at this time or later; None if there is none."""
        return next((first for first, written_ns in self.times if written_ns >= time_ns), None)


def resolve(bound: Bound, stream: str, known: KnownOffsets, fail_on_loss: bool) -> int:
    """Return the offset at which reading starts."""
    offset = _bound_offset(bound, stream, known, fail_on_loss)
    return min(skip_dropped(stream, offset, known, fail_on_loss), known.next)


def resolve_end(bound: Bound, stream: str, known: KnownOffsets, fail_on_loss: bool) -> int:
    """Return the offset before which reading ends. An end at the first retained offset is not a data loss."""
    offset = _bound_offset(bound, stream, known, fail_on_loss)
    if fail_on_loss and offset < known.first:
        raise _missing(stream, offset, known)
    return min(offset, known.next)


def _bound_offset(bound: Bound, stream: str, known: KnownOffsets, fail_on_loss: bool) -> int:
    time_ms = bound.time_ms if bound.time_ms is not None else (bound.times_ms or {}).get(stream)
    if time_ms is not None:
        offset = known.since(time_ms * 1_000_000)
        if offset is None and bound.later == "error":
            raise Missing(f"nothing was written to {stream!r} at or after {time_ms} ms: set another timestamp")
        return known.next if offset is None else offset
    offset = (bound.offsets or {}).get(stream, bound.every)
    if offset in (EARLIEST, LATEST):
        return known.first if offset == EARLIEST else known.next
    if fail_on_loss and offset > known.next:
        raise _missing(stream, offset, known)
    return offset


def skip_dropped(stream: str, offset: int, known: KnownOffsets, fail_on_loss: bool) -> int:
    """Return `offset`, or the first retained offset if `offset` was dropped.

    A dropped offset is a data loss: an error, or a warning without `fail_on_loss`.
    """
    if offset >= known.first:
        return offset
    if fail_on_loss:
        raise _missing(stream, offset, known)
    log.warning("%r: offsets %d to %d were dropped, and are left out", stream, offset, known.first - 1)
    return known.first


def _missing(stream: str, offset: int, known: KnownOffsets) -> Missing:
    held = f"offsets {known.first} to {known.next - 1}" if known.next > known.first else "nothing"
    return Missing(f"{stream!r} has {held}, not {offset}: choose others, or set failOnDataLoss to false")
