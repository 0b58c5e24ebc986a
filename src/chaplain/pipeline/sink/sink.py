"""`write` and `writeStream` to the journal, exactly once, by two-phase commit: tasks stage rows, the driver commits
them.

Every attempt of a task has its own connection and lane (producer id), so attempts cannot interfere. The journal
remembers the last committed version of each application. If Spark repeats a batch, the tasks stage its rows again, and
the repeated commit has no effect. Staged rows that no commit names never become visible. An aborted batch and a failed
task discard their staged rows, because the cluster bounds the number of staged packs.

This module decides the application and the version of a batch:

    app       txnAppId; for a streaming query without txnAppId the query's id in its checkpoint. The journal remembers
              it together with the option topic: one function may write a batch to two topics under the same pair, as
              Delta Lake documents it for tables in `foreachBatch`
    version   the batch id of a streaming query; txnVersion of a batch write
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chaplain.client.two_phase import TwoPhaseWriter, commit, discard
from chaplain.core import Frozen
from chaplain.errors import ChaplainError, ConfigError
from chaplain.journal.execution.two_phase import VERSION_MAX, Commit, RequestRange
from chaplain.pipeline.sink.rows import BatchBuffer, check_schema
from chaplain.pipeline.source.live import ANSWER_S, connect
from chaplain.pipeline.source.options import RECONNECT_S, TARGETS, Target, check_names, parse_target, reconnect_s
from chaplain.wire.limits import STRING_BYTES_MAX
from chaplain.wire.primitives import VCHAR

log = logging.getLogger(__name__)

BATCH_RECONNECT_S = 30.0
"""The default of `reconnectTimeout` for batch writes: a user waits for the error if an address is wrong."""
_QUERY = "query:"
SINK = ("topic", "txnAppId", "txnVersion", "reconnectTimeout", "checkpointLocation", *TARGETS)


class SinkOptions(Frozen, frozen=True):
    """The parsed options of a write."""

    target: Target
    topic: str
    app: str
    version: int | None
    checkpoint: str
    reconnect_s: float = RECONNECT_S
    """How long a task and the commit wait for a cluster that does not answer."""


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
    wait_s = reconnect_s(found, RECONNECT_S if streaming else BATCH_RECONNECT_S)
    return SinkOptions(target, found.get("topic", ""), app, _version(version), checkpoint, wait_s)


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
    buffer = BatchBuffer(options.topic)
    with connect(options.target, options.reconnect_s) as client:
        stager = TwoPhaseWriter(client._context)
        try:
            for portion in rows:
                count += portion.num_rows
                for batch in buffer.add(portion):
                    stager.stage(batch)
            for batch in buffer.flush():
                stager.stage(batch)
            return StagedRows(stager.spans(), count)
        except Exception:
            with suppress(ChaplainError):  # the task failed for another reason; what stays behind expires
                stager.flush()  # raises at once if the writer itself failed
            with suppress(ChaplainError):
                discard(client._context, stager.known_spans())
            raise


def commit_all(options: SinkOptions, messages: list[WriterCommitMessage | None], app: str, version: int) -> None:
    """Commit everything that the tasks staged: the journal assigns offsets, in the order of the tasks."""
    staged = [message for message in messages if isinstance(message, StagedRows)]
    spans = _spans(messages)
    if not spans:
        return
    with connect(options.target, options.reconnect_s) as client:
        written = commit(client._context, Commit(scoped(app, options.topic), version, spans))
    if not written:  # Spark's own metrics count the rows that the tasks received
        rows = sum(message.rows for message in staged)
        log.warning("version %d of %r was written before: %d rows are not written again", version, app, rows)


def discard_all(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Discard the rows that the tasks of an aborted batch staged. If the cluster cannot be reached, they expire after
    an hour.
    """
    spans = _spans(messages)
    if not spans:
        return
    try:
        with connect(options.target, ANSWER_S) as client:
            discard(client._context, spans)
    except ChaplainError as error:  # the failure that aborted the batch must stay the one that Spark reports
        log.warning("the staged rows of an aborted batch wait until they expire: %s", error)


def _spans(messages: Sequence[WriterCommitMessage | None]) -> tuple[RequestRange, ...]:
    return tuple(span for message in messages if isinstance(message, StagedRows) for span in message.spans)


def scoped(app: str, topic: str) -> str:
    """Return the name under which the journal remembers the versions of an app for one topic.

    Rows that name their topic in a column share the empty one, because a batch is committed as a whole. The length
    makes the name unambiguous, as both parts may contain any visible character.
    """
    if not app:
        return ""
    name = f"{len(app)}:{app}:{topic}"
    return name if len(name) <= STRING_BYTES_MAX else f"sha256:{sha256(name.encode()).hexdigest()}"


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
        discard_all(self._options, messages)


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
        discard_all(self._options, messages)


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
