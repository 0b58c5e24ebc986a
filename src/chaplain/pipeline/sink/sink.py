"""`write` and `writeStream` to the journal, exactly once, by two-phase commit: tasks stage rows, the driver commits
them.

Every attempt of a task has its own connection and lane (producer id), so attempts cannot interfere. The journal
remembers the last committed version of each application. If Spark repeats a batch, the tasks stage its rows again, and
the repeated commit has no effect. Staged rows that no commit names never become visible.

This module decides the application and the version of a batch:

    app       txnAppId; for a streaming query without txnAppId the query's id in its checkpoint
    version   the batch id of a streaming query; txnVersion of a batch write
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chaplain.client.two_phase import TwoPhaseWriter, commit
from chaplain.core import Frozen
from chaplain.errors import ConfigError
from chaplain.journal.execution.two_phase import VERSION_MAX, Commit, RequestRange
from chaplain.pipeline.sink.rows import batches, check_schema
from chaplain.pipeline.source.live import connect
from chaplain.pipeline.source.options import TARGETS, Target, check_names, parse_target
from chaplain.wire.limits import STRING_BYTES_MAX
from chaplain.wire.primitives import VCHAR

TIMEOUT_S = 30.0
_QUERY = "query:"
SINK = ("topic", "txnAppId", "txnVersion", "checkpointLocation", *TARGETS)


class SinkOptions(Frozen, frozen=True):
    """The parsed options of a write."""

    target: Target
    topic: str
    app: str
    version: int | None
    checkpoint: str


def parse_sink(given: Mapping[str, str], streaming: bool) -> SinkOptions:
    found = {key.lower(): value for key, value in given.items()}
    check_names(found, SINK)
    target = parse_target(found)
    if target.folder:
        raise ConfigError("segments are read-only: give cluster, or endpoints and identityFile, to write")
    app, version = found.get("txnappid", ""), found.get("txnversion")
    if app.startswith(_QUERY) or len(app) > STRING_BYTES_MAX or app.encode().translate(None, VCHAR):
        raise ConfigError(f"txnAppId {app!r}: up to {STRING_BYTES_MAX} visible ASCII characters, not 'query:…'")
    if streaming and version is not None:
        raise ConfigError("txnVersion is for batch writes: a streaming query's versions are the numbers of its batches")
    if not streaming and bool(app) != (version is not None):
        raise ConfigError("txnAppId and txnVersion must be set together: they identify the writer and its write")
    checkpoint = found.get("checkpointlocation", "")
    return SinkOptions(target, found.get("topic", ""), app, _version(version), checkpoint)


def _version(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) > VERSION_MAX:
        raise ConfigError(f"txnVersion is a number from 0 on that rises with each write, not {text!r}")
    return int(text)


@dataclass
class StagedRows(WriterCommitMessage):
    """The ranges of requests that one attempt of a task staged."""

    spans: tuple[RequestRange, ...]
    rows: int


def stage(options: SinkOptions, rows: Iterator[Any]) -> StagedRows:
    """Write the rows of one task to the log without offsets (staged)."""
    count = 0
    with connect(options.target, TIMEOUT_S) as client:
        stager = TwoPhaseWriter(client._context)
        for portion in rows:
            count += portion.num_rows
            for batch in batches(portion, options.topic):
                stager.stage(batch)
        return StagedRows(stager.spans(), count)


def commit_all(options: SinkOptions, messages: list[WriterCommitMessage | None], app: str, version: int) -> None:
    """Commit everything that the tasks staged: the journal assigns offsets, in the order of the tasks."""
    staged = [message for message in messages if isinstance(message, StagedRows)]
    spans = tuple(span for message in staged for span in message.spans)
    if spans:
        with connect(options.target, TIMEOUT_S) as client:
            commit(client._context, Commit(app, version, spans))


class SinkWriter(DataSourceArrowWriter):
    """Writes a batch query."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return stage(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_all(self._options, messages, self._options.app, self._options.version or 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: staged rows without a commit never become visible."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        _check(options, schema, overwrite)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return stage(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        commit_all(self._options, messages, self._options.app or query_of(self._options.checkpoint), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        """Nothing to do: staged rows without a commit never become visible."""


def _check(options: SinkOptions, schema: StructType, overwrite: bool) -> None:
    check_schema(schema, options.topic)
    if overwrite:
        raise ConfigError("a journal is append-only: use mode append")


def query_of(checkpoint: str) -> str:
    """Return the application id of a streaming query: the query's id in its checkpoint's metadata."""
    try:
        place = urlparse(checkpoint)
        if not checkpoint or place.scheme not in ("", "file"):
            raise OSError("not on this machine")
        return _QUERY + str(json.loads((Path(unquote(place.path)) / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"the query's id cannot be read from checkpointLocation {checkpoint!r} ({error}): set txnAppId to a"
            " name that only this query uses"
        ) from None
