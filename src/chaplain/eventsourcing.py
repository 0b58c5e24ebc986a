"""A persistence module for the package `eventsourcing` (https://pypi.org/project/eventsourcing): its events in a
stream's SQL database.

    PERSISTENCE_MODULE=chaplain.eventsourcing
    CHAPLAIN_URL=…  or  CHAPLAIN_CLUSTER=…
    CHAPLAIN_STREAM=bank                           the stream whose database is used (default: main)

The statements are messages of the stream, so the events are ordered, replicated and provable like all others. Each
insert is one request: the events of an aggregate, of several ones, and a tracking record are stored together or not at
all. Nodes execute it in the order of the log, so that notification ids have no gaps and appear in their order. For
clusters whose database is SQLite.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Event, Thread
from typing import Any, Literal, TypeVar
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    InfrastructureFactory,
    IntegrityError,
    ListenNotifySubscription,
    Notification,
    OperationalError,
    ProcessRecorder,
    ProgrammingError,
    StoredEvent,
    Subscription,
    Tracking,
    TrackingRecorder,
)
from eventsourcing.utils import Environment, resolve_topic, strtobool

from chaplain.client.sync import Client
from chaplain.client.types.journal import RequestId
from chaplain.client.types.sql import Result, Row
from chaplain.errors import ChaplainError, Closed, StatementFailed, Unknown

ROWS_OF_INSERT = 200
"""Events of one statement; a request has as many statements as it needs."""
PAGE_ROWS = 1000
PAGE_BYTES = 2 << 20
"""A query returns at most 4 MiB, and an event has at most 256 KiB."""
RESULTS_KEPT = 256
"""The cluster stores the result of each request until the recorder deletes it: after so many requests."""
_TABLE = re.compile(r"[a-z_][a-z0-9_]*")
_TRACKING = (
    "create table if not exists tracking (application_name text primary key, notification_id integer not null,"
    " previous integer not null, check (notification_id > previous))"
)
"""`previous` was processed before: an older notification violates the check."""
_TRACK = (
    "insert into tracking (application_name, notification_id, previous) values (?, ?, -1)"
    " on conflict (application_name) do update"
    " set previous = notification_id, notification_id = excluded.notification_id"
)
_EVENT = "originator_id, originator_version, topic, state"


class ChaplainDatastore:
    """The database of a stream, shared by the recorders of an application."""

    def __init__(
        self, client: Client, stream: str = "main", originator_id_type: Literal["uuid", "text"] = "uuid"
    ) -> None:
        self.client = client
        self.stream = stream
        self._is_uuid = originator_id_type == "uuid"
        self._sql = client.sql(stream)
        self._idle = Condition()
        self._open_requests = 0
        self._results = 0
        self._last: RequestId | None = None

    def execute(self, items: Sequence[tuple[str, Sequence[Any]]]) -> Result:
        """Execute statements as one request. Raises the errors of `eventsourcing.persistence`."""
        with self._request(), _translated():
            try:
                result = self._sql.transaction(items)
            except Unknown as unknown:
                if unknown.id is None:
                    raise
                result = self._sql.transaction(items, id=unknown.id)  # a retry executes nothing twice
            self._last = result.id
            return result

    def query(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        with _translated():
            return self._sql.query(sql, list(parameters))

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Delete the results from time to time, while no request waits for its own."""
        with self._idle:
            self._results += 1
            if self._results >= RESULTS_KEPT:
                self._idle.wait_for(lambda: not self._open_requests)
                if self._results >= RESULTS_KEPT and self._last is not None:
                    self._results = 1
                    with _translated():
                        # Only of this connection: another one of this identity may wait for a result of its own.
                        self._sql.results(self._last)
            self._open_requests += 1
        try:
            yield
        finally:
            with self._idle:
                self._open_requests -= 1
                self._idle.notify_all()

    def event(self, row: Row) -> dict[str, Any]:
        """The fields of a stored event."""
        originator_id = UUID(row["originator_id"]) if self._is_uuid else row["originator_id"]
        return {
            "originator_id": originator_id,
            "originator_version": row["originator_version"],
            "topic": row["topic"],
            "state": row["state"],
        }


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except StatementFailed as failed:
        if failed.kind == "constraint":
            raise IntegrityError(str(failed)) from failed
        raise ProgrammingError(str(failed)) from failed
    except ChaplainError as error:
        raise OperationalError(str(error)) from error


class _ChaplainRecorder:
    def __init__(self, datastore: ChaplainDatastore, *, events_table_name: str = "stored_events") -> None:
        if not _TABLE.fullmatch(events_table_name):
            raise ProgrammingError(f"a table's name has small letters, digits and _, not {events_table_name!r}")
        self.datastore = datastore
        self._events = events_table_name

    def create_table(self) -> None:
        """Create the tables of this recorder, unless they exist."""
        self.datastore.execute([(statement, ()) for statement in self._tables()])

    def _tables(self) -> list[str]:
        return []


R = TypeVar("R", bound=_ChaplainRecorder)


class ChaplainAggregateRecorder(_ChaplainRecorder, AggregateRecorder):
    """Events of aggregates, or their snapshots."""

    def _tables(self) -> list[str]:
        columns = "originator_id text not null, originator_version integer not null, topic text not null, state blob"
        unique = "unique (originator_id, originator_version)"
        table = f"create table if not exists {self._events} (id integer primary key, {columns}, {unique})"
        return [*super()._tables(), table]

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        self._insert(stored_events, **kwargs)
        return None

    def _insert(
        self, stored_events: Sequence[StoredEvent], tracking: Tracking | None = None, **_: Any
    ) -> Sequence[int]:
        """Insert the events and return their ids."""
        items = [*self._statements(stored_events), *([] if tracking is None else [_tracking_statement(tracking)])]
        if not items:
            return []
        # The ids of a request have no gaps: nodes execute one request after the other.
        last = self.datastore.execute([*items, (self._last_id(), ())]).rows[0]["last"]
        return list(range(last - len(stored_events) + 1, last + 1)) if stored_events else []

    def _last_id(self) -> str:
        return f"select max(id) as last from {self._events}"  # noqa: S608  checked above

    def _statements(self, stored_events: Sequence[StoredEvent]) -> list[tuple[str, Sequence[Any]]]:
        found: list[tuple[str, Sequence[Any]]] = []
        for start in range(0, len(stored_events), ROWS_OF_INSERT):
            part = stored_events[start : start + ROWS_OF_INSERT]
            rows = ", ".join(["(?, ?, ?, ?)"] * len(part))
            values = [
                value
                for one in part
                for value in (str(one.originator_id), one.originator_version, one.topic, one.state)
            ]
            found.append((f"insert into {self._events} ({_EVENT}) values {rows}", values))  # noqa: S608  checked above
        return found

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        where, values = ["originator_id = ?"], [str(originator_id)]
        found: list[StoredEvent] = []
        for row in self._pages("originator_version", where, values, gt, lte, desc=desc, limit=limit):
            found.append(StoredEvent(**self.datastore.event(row)))
        return found

    def _pages(
        self,
        by: str,
        where: Sequence[str],
        values: Sequence[Any],
        gt: int | None,
        lte: int | None,
        *,
        desc: bool = False,
        limit: int | None = None,
    ) -> Iterator[Row]:
        """Query the events in parts that are small enough for an answer."""
        order = f"{by} {'desc' if desc else 'asc'}"
        count = 0
        while limit is None or count < limit:
            bounds = [(f"{by} > ?", gt), (f"{by} <= ?", lte)]
            conditions = [*where, *(text for text, bound in bounds if bound is not None)]
            rows = PAGE_ROWS if limit is None else min(PAGE_ROWS, limit - count)
            page = self.datastore.query(
                f"with next as (select id, {_EVENT} from {self._events} where {' and '.join(conditions) or 'true'} "  # noqa: S608  checked above
                f"order by {order} limit ?), sized as (select *, sum(length(state)) over (order by {order} rows "
                f"unbounded preceding) - length(state) as before from next) select id, {_EVENT} from sized "
                f"where before < ? order by {order}",
                [*values, *(bound for _, bound in bounds if bound is not None), rows, PAGE_BYTES],
            )
            yield from page
            count += len(page)
            if not page:
                return
            last = page[-1][by]
            gt, lte = (gt, last - 1) if desc else (last, lte)


class ChaplainApplicationRecorder(ChaplainAggregateRecorder, ApplicationRecorder):
    """Events of aggregates that are also an application's sequence of notifications."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        return self._insert(stored_events, **kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        after = None if start is None else start - 1 if inclusive_of_start else start
        where = [f"topic in ({', '.join('?' * len(topics))})"] if topics else []
        pages = self._pages("id", where, list(topics), after, stop, limit=limit)
        return [Notification(id=row["id"], **self.datastore.event(row)) for row in pages]

    def max_notification_id(self) -> int | None:
        found: int | None = self.datastore.query(self._last_id(), ())[0]["last"]
        return found

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        return ChaplainSubscription(self, gt, topics)


class ChaplainSubscription(ListenNotifySubscription[ChaplainApplicationRecorder]):
    """Follows the stream: each message may be a statement that inserted events."""

    def __init__(
        self, recorder: ChaplainApplicationRecorder, gt: int | None = None, topics: Sequence[str] = ()
    ) -> None:
        journal = recorder.datastore.client.journal(recorder.datastore.stream)
        self._reader = journal.read(start=None, follow=True)
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        self._follower = Thread(target=self._follow, args=(self._has_been_notified,), name="subscription", daemon=True)
        self._follower.start()

    def _follow(self, notified: Event) -> None:
        try:
            for _ in self._reader:
                notified.set()
        except Closed:
            return
        except ChaplainError as error:
            self._thread_error = OperationalError(str(error))
            self.stop()

    def stop(self) -> None:
        super().stop()
        self._reader.close()


class ChaplainTrackingRecorder(_ChaplainRecorder, TrackingRecorder):
    """The last notification that was processed of each upstream application."""

    def _tables(self) -> list[str]:
        return [*super()._tables(), _TRACKING]

    def insert_tracking(self, tracking: Tracking) -> None:
        self.datastore.execute([_tracking_statement(tracking)])

    def max_tracking_id(self, application_name: str) -> int | None:
        select = "select notification_id from tracking where application_name = ?"
        rows = self.datastore.query(select, [application_name])
        return rows[0]["notification_id"] if rows else None


def _tracking_statement(tracking: Tracking) -> tuple[str, Sequence[Any]]:
    return _TRACK, (tracking.application_name, tracking.notification_id)


class ChaplainProcessRecorder(ChaplainTrackingRecorder, ChaplainApplicationRecorder, ProcessRecorder):
    """Events together with the notification that they result from."""


class ChaplainFactory(InfrastructureFactory[ChaplainTrackingRecorder]):
    """Makes the recorders of an application, with a client of its own."""

    CREATE_TABLE = "CREATE_TABLE"

    def __init__(self, env: Environment | dict[str, str] | None) -> None:
        super().__init__(env)
        place = self.env.get("CHAPLAIN_CLUSTER") or self.env.get("CHAPLAIN_URL") or None
        id_type = (self.env.get("ORIGINATOR_ID_TYPE") or "uuid").lower()
        if id_type not in ("uuid", "text"):
            raise OSError(f"ORIGINATOR_ID_TYPE is 'uuid' or 'text', not {id_type!r}")
        client = Client.connect(place)
        stream = self.env.get("CHAPLAIN_STREAM") or "main"
        self.datastore = ChaplainDatastore(client, stream, "uuid" if id_type == "uuid" else "text")

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        return self._made(ChaplainAggregateRecorder(self.datastore, events_table_name=f"stored_{purpose}"))

    def application_recorder(self) -> ApplicationRecorder:
        return self._made(self._class("APPLICATION_RECORDER_TOPIC", ChaplainApplicationRecorder)(self.datastore))

    def tracking_recorder(
        self, tracking_recorder_class: type[ChaplainTrackingRecorder] | None = None
    ) -> ChaplainTrackingRecorder:
        kind = tracking_recorder_class or self._class(self.TRACKING_RECORDER_TOPIC, ChaplainTrackingRecorder)
        return self._made(kind(self.datastore))

    def process_recorder(self) -> ProcessRecorder:
        return self._made(self._class("PROCESS_RECORDER_TOPIC", ChaplainProcessRecorder)(self.datastore))

    def _class(self, name: str, kind: type[R]) -> type[R]:
        """The class that the environment names, or this one."""
        topic = self.env.get(name)
        found: type[R] = resolve_topic(topic) if topic else kind
        assert issubclass(found, kind)
        return found

    def _made(self, recorder: R) -> R:
        if strtobool(self.env.get(self.CREATE_TABLE) or "yes"):
            recorder.create_table()
        return recorder

    def close(self) -> None:
        self.datastore.client.close()
